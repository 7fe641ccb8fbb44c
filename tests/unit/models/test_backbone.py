"""The cut backbone against the uncut model, and its trained parameters."""

from __future__ import annotations

import shutil
from typing import Any

import pytest
import timm
import torch
from timm.models.eva import EvaAttention
from torch import Tensor, nn

from ctxgcd.errors import UserError
from ctxgcd.models.backbone import Backbone, _note_whole_block, adapted, cut
from ctxgcd.models.network import Network
from ctxgcd.models.weights import shortened
from ctxgcd.training.devices import compiled
from tests.helpers.models import DIM, LITE, VIT, frozen_copy, images, randomised, trainable

torch.set_num_threads(1)


# -- the cut ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("model", "blocks"), [(VIT, 0), (VIT, 1), (VIT, 2), (VIT, 12), (LITE, 0), (LITE, 1)])
@torch.no_grad()
def test_trunk_and_tail_give_the_uncut_model(nets: dict[str, nn.Module], model: str, blocks: int) -> None:
    whole = nets[model](images())  # by timm: for a ViT the CLS row after the final norm
    backbone = cut(frozen_copy(nets[model], model), blocks)
    assert backbone.dim == DIM[model]
    found = backbone.features(images())
    assert found.shape == (5, DIM[model])
    assert (whole.std(dim=0) > 1e-3).float().mean() > 0.5  # the features of images differ
    # Channels-last convolutions add in another order: rounding, relative to numbers around 1.
    torch.testing.assert_close(found, whole, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(backbone.tail(backbone.trunk(images())), found, rtol=0, atol=0)


@torch.no_grad()
def test_vit_feature_is_the_cls_row(nets: dict[str, nn.Module]) -> None:
    net: Any = nets[VIT]
    tokens = net.forward_features(images())
    assert tokens.shape == (5, 5, 192)  # CLS and 2 x 2 patches
    torch.testing.assert_close(cut(frozen_copy(net, VIT), 1).features(images()), tokens[:, 0], rtol=1e-5, atol=1e-6)


SMALL = {"depth": 3, "img_size": 32}
DINOV3 = "vit_small_patch16_dinov3"
BLOCKS: dict[str, tuple[str, dict[str, Any]]] = {
    "plain": (VIT, SMALL),
    "LayerScale": (VIT, SMALL | {"init_values": 0.5}),
    "without biases": (VIT, SMALL | {"qkv_bias": False, "proj_bias": False}),
    "normalised queries and keys": (VIT, SMALL | {"qk_norm": True}),
    "normalised attention and MLP": (VIT, SMALL | {"scale_attn_norm": True, "scale_mlp_norm": True}),
    "DINOv2": ("vit_small_patch14_dinov2", SMALL | {"img_size": 28}),
    "DINOv2 with registers": ("vit_small_patch14_reg4_dinov2", SMALL | {"img_size": 28}),
    "SwiGLU, as in DINOv2's ViT-g": (
        "vit_giant_patch14_reg4_dinov2",
        SMALL | {"img_size": 28, "embed_dim": 96, "num_heads": 3},
    ),
    "DINOv3": (DINOV3, SMALL),
    "DINOv3 with biases": ("vit_small_patch16_dinov3_qkvb", SMALL),
    "DINOv3 with SwiGLU": ("vit_small_plus_patch16_dinov3", SMALL),
    "rotary, normalised, with biases": (DINOV3, SMALL | {"attn_type": "rope", "qk_norm": True, "qkv_bias": True}),
    "rotary, gated, without LayerScale": (DINOV3, SMALL | {"init_values": None}),
    "EVA-02": ("eva02_tiny_patch14_224", SMALL | {"img_size": 28, "use_fc_norm": False, "qkv_fused": False}),
}


def block_net(kind: str, dtype: torch.dtype = torch.float64) -> Any:
    model, changes = BLOCKS[kind]
    net: Any = timm.create_model(model, num_classes=0, **changes)
    if "gated" in kind:  # an argument of timm's attention that no model sets
        for block in net.blocks:
            prefix, norm = net.num_prefix_tokens, nn.LayerNorm
            block.attn = EvaAttention(384, 6, num_prefix_tokens=prefix, norm_layer=norm, rotate_half=True, gated=True)
    return randomised(net).eval().requires_grad_(False).to(dtype)


@pytest.mark.parametrize("blocks", [1, 2])
@pytest.mark.parametrize(("kind", "dtype"), [*((kind, torch.float64) for kind in BLOCKS), ("plain", torch.float32)])
def test_the_cls_row_alone_has_the_whole_blocks_gradients(
    kind: str, blocks: int, dtype: torch.dtype, capsys: pytest.CaptureFixture[str]
) -> None:
    net = block_net(kind, dtype)
    backbone = cut(net, blocks)
    tail: Any = backbone.tail
    assert tail.cls_alone
    assert capsys.readouterr().out == ""
    t, d = net.patch_embed.num_patches + net.num_prefix_tokens, backbone.dim
    tokens = torch.randn(7, t, d, generator=torch.Generator().manual_seed(2), dtype=dtype)
    upstream = torch.randn(7, d, generator=torch.Generator().manual_seed(3), dtype=dtype)
    found = []
    for alone in (True, False):
        tail.cls_alone = alone
        tail.zero_grad()
        out = tail(tokens)
        (out * upstream).sum().backward()
        found.append((out.detach(), {name: p.grad for name, p in tail.named_parameters() if p.requires_grad}))
    close = 1e-5 if dtype == torch.float32 else 1e-12
    torch.testing.assert_close(found[0][0], found[1][0], rtol=close, atol=close)
    assert found[0][1].keys() == found[1][1].keys()
    largest = max(gradient.norm() for gradient in found[1][1].values())
    for name, gradient in found[1][1].items():
        assert (found[0][1][name] - gradient).norm() <= close * (gradient.norm() + largest * 1e-3), name
        assert gradient.norm() > 0, name


@pytest.mark.parametrize("kind", BLOCKS)
@pytest.mark.parametrize("blocks", [0, 1, 3])
@torch.no_grad()
def test_the_feature_of_a_vit_is_its_cls_token_after_the_final_norm(kind: str, blocks: int) -> None:
    """Also with registers, and for DINOv3, whose default in timm is the mean of the patches."""
    net = block_net(kind)
    views = images(3).double()[..., : net.patch_embed.img_size[0], : net.patch_embed.img_size[1]]
    expected = net.forward_features(views)[:, 0]
    assert expected.std() > 0.1
    torch.testing.assert_close(cut(net, blocks).features(views), expected, rtol=1e-10, atol=1e-10)
    if net.global_pool == "token":
        torch.testing.assert_close(net(views), expected, rtol=0, atol=0)


@torch.no_grad()
def test_eva_models_without_a_final_norm_give_their_pooled_features() -> None:
    net = timm.create_model("eva02_tiny_patch14_224", num_classes=0, img_size=28, depth=1).eval()
    views = images(2)[..., :28, :28]
    torch.testing.assert_close(cut(net, 0).features(views), net(views), rtol=0, atol=0)
    with pytest.raises(UserError, match="Eva cannot be cut with tail_blocks 1"):
        cut(net, 1)


@pytest.mark.parametrize("kind", ["DINOv2 with registers", "DINOv3"])
@torch.no_grad()
def test_bf16_gives_close_features(kind: str) -> None:
    net = block_net(kind, torch.float32)
    views = images(3)[..., : net.patch_embed.img_size[0], : net.patch_embed.img_size[1]]
    backbone = cut(net, 1)
    exact = backbone.features(views)
    with torch.autocast("cpu", torch.bfloat16):
        rounded = backbone.features(views)
    assert nn.functional.cosine_similarity(exact, rounded.float()).min() > 0.999


VIT_BLOCK = {
    *("norm1.weight", "norm1.bias", "attn.qkv.weight", "attn.qkv.bias", "attn.proj.weight", "attn.proj.bias"),
    *("norm2.weight", "norm2.bias", "mlp.fc1.weight", "mlp.fc1.bias", "mlp.fc2.weight", "mlp.fc2.bias"),
}


@pytest.mark.parametrize(
    ("model", "blocks", "names", "count"),
    [
        (VIT, 0, set(), 0),
        # A block of width d: 12 d^2 + 13 d parameters.
        (VIT, 1, {f"blocks.11.{name}" for name in VIT_BLOCK}, 12 * 192**2 + 13 * 192),
        (VIT, 2, {f"blocks.{b}.{name}" for b in (10, 11) for name in VIT_BLOCK}, 2 * (12 * 192**2 + 13 * 192)),
        (LITE, 0, set(), 0),
        (LITE, 1, {"conv.weight"}, 320 * 1280),
    ],
)
def test_exactly_the_tail_trains(
    nets: dict[str, nn.Module], model: str, blocks: int, names: set[str], count: int
) -> None:
    net = frozen_copy(nets[model], model)
    backbone = cut(net, blocks)
    found = trainable(backbone.tail)
    assert set(found) == names
    assert sum(found.values()) == count
    # The same for the whole model: not a ViT's final norm; of the CNN only its last convolution.
    assert set(trainable(net)) == (names if model == VIT else {"conv_head.weight"} if blocks else set())


def test_gradients_reach_only_the_tail(nets: dict[str, nn.Module]) -> None:
    for model in (VIT, LITE):
        net = frozen_copy(nets[model], model)
        backbone = cut(net, 1)
        before = {name: value.clone() for name, value in net.state_dict().items()}
        backbone.features(images()).square().sum().backward()
        reached = {name for name, parameter in net.named_parameters() if parameter.grad is not None}
        assert reached == set(trainable(net))
        assert all(parameter.grad.abs().sum() > 0 for parameter in net.parameters() if parameter.grad is not None)
        # No running statistic moves: evaluation mode throughout.
        assert all(torch.equal(before[name], value) for name, value in net.state_dict().items())


def test_network_trains_tail_and_heads(nets: dict[str, nn.Module]) -> None:
    backbone = cut(frozen_copy(nets[VIT], VIT), 1)
    network = Network(backbone.tail, backbone.dim, 7, 16, 8, 0)
    found = trainable(network)
    assert {name for name in found if not name.startswith("tail.")} == {
        *(f"projector.{layer}.{kind}" for layer in (0, 2, 4) for kind in ("weight", "bias")),
        "classifier.direction",
    }
    heads = (192 * 16 + 16) + (16 * 16 + 16) + (16 * 8 + 8) + 7 * 192
    assert sum(found.values()) == 12 * 192**2 + 13 * 192 + heads
    out = network(backbone.trunk(images()))
    assert (out.features.shape, out.projections.shape, out.logits.shape) == ((5, 192), (5, 8), (5, 7))
    assert torch.equal(out[1:3].logits, out.logits[1:3])


def test_initial_heads_depend_only_on_the_seed() -> None:
    def start(seed: int, dim: int = 12) -> dict[str, Tensor]:
        torch.manual_seed(torch.randint(0, 99, (1,)).item())
        return Network(nn.Identity(), dim, 5, 9, 4, seed).state_dict()

    first, again, other = start(0), start(0), start(1)
    assert all(torch.equal(first[name], again[name]) for name in first)
    assert not torch.equal(first["classifier.direction"], other["classifier.direction"])
    assert not torch.equal(first["projector.0.weight"], other["projector.0.weight"])


@pytest.mark.parametrize(
    ("model", "blocks"),
    [
        (VIT, 13),
        (LITE, 2),
        ("resnet18", 1),
        ("vit_base_patch16_siglip_224", 1),
        (DINOV3, 13),
        ("vit_small_patch16_rope_mixed_224", 1),
    ],
)
def test_models_that_cannot_be_cut(model: str, blocks: int) -> None:
    with torch.device("meta"):
        net = timm.create_model(model, num_classes=0)
    with pytest.raises(UserError, match=f"cannot be cut with tail_blocks {blocks}"):
        cut(net, blocks)


@torch.no_grad()
@pytest.mark.parametrize("model", [VIT, DINOV3])
def test_the_first_blocks_of_a_vit_are_its_backbone(model: str) -> None:
    net = randomised(timm.create_model(model, num_classes=0, img_size=32, depth=3)).eval()
    expected = randomised(timm.create_model(model, num_classes=0, img_size=32, depth=2)).eval()
    expected.load_state_dict({name: net.state_dict()[name] for name in expected.state_dict()})
    rows = expected.forward_features(images())[:, 0]
    short = shortened(net, 2)
    for tail_blocks in (0, 1, 2):
        torch.testing.assert_close(cut(short, tail_blocks).features(images()), rows, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(adapted(short).features(images()), rows, rtol=1e-4, atol=1e-4)
    assert len(shortened(short, 0).blocks) == 2
    with pytest.raises(
        UserError, match="blocks is 3, but the backbone is a ViT with 2 blocks; give at most its number"
    ):
        shortened(short, 3)
    with pytest.raises(UserError, match="blocks is 1, but the backbone is not a ViT; give "):
        shortened(timm.create_model("resnet18", num_classes=0), 1)


@torch.no_grad()
def test_any_model_can_be_used_uncut() -> None:
    net = randomised(timm.create_model("resnet18", num_classes=0)).eval()
    backbone = cut(net, 0)
    assert isinstance(backbone, Backbone)
    assert backbone.dim == 512
    torch.testing.assert_close(backbone.features(images()), net(images()), rtol=0, atol=0)


@pytest.mark.parametrize(
    ("name", "changes"),
    [
        (VIT, {"proj_drop_rate": 0.1}),
        ("vit_small_patch16_18x2_224", {}),
        ("vit_base_patch16_xp_224", {}),
        (DINOV3, {"use_post_norm": True}),
    ],
)
def test_other_kinds_of_blocks_are_computed_whole_with_one_note(
    name: str, changes: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    _note_whole_block.cache_clear()
    net = timm.create_model(name, img_size=32, num_classes=0, depth=2, **changes).eval().requires_grad_(False)
    images = torch.randn(2, 3, 32, 32)
    expected = net.forward_features(images)[:, 0]
    backbone = cut(net, 1)
    assert not backbone.tail.cls_alone
    cut(net, 2)
    note = capsys.readouterr().out
    assert note.startswith(f"note: the last block ({type(net.blocks[-1]).__name__}) is computed for all tokens")
    assert note.count("\n") == 1
    with torch.no_grad():
        torch.testing.assert_close(backbone.features(images), expected, rtol=1e-4, atol=1e-5)


# -- compiled on a GPU -----------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("g++") is None, reason="torch.compile needs a C++ compiler on a CPU")
def test_a_compiled_trunk_computes_the_same() -> None:
    """As on a GPU, but compiled for the CPU: one graph for any number of images."""
    from torch._inductor import config

    torch._dynamo.reset()
    net = timm.create_model("vit_tiny_patch16_224", img_size=32, num_classes=0, depth=2).eval().requires_grad_(False)
    trunk = cut(net, 1).trunk
    quick = torch.compile(trunk, dynamic=True, fullgraph=True)
    with torch.no_grad(), config.patch(compile_threads=1):  # no pool of processes, each of which would import torch
        for images in (torch.randn(2, 3, 32, 32), torch.randn(5, 3, 32, 32)):
            torch.testing.assert_close(quick(images), trunk(images), rtol=1e-4, atol=1e-4)


def test_without_a_working_compiler_the_trunk_is_used_uncompiled(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def broken(*_: object, **__: object) -> object:
        def call(images: torch.Tensor) -> torch.Tensor:
            raise RuntimeError("Python.h: No such file")

        return call

    monkeypatch.setattr(torch, "compile", broken)
    trunk = torch.nn.Flatten()
    assert compiled(trunk, 8, "float32", torch.device("cpu")) is trunk
    assert capsys.readouterr().out == ""
    assert compiled(trunk, 8, "float32", torch.device("meta")) is trunk
    assert (
        capsys.readouterr().out
        == "warning: torch.compile failed (RuntimeError); the backbone runs uncompiled and slower\n"
    )
