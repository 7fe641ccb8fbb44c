"""The cut backbone against the uncut model, and its trained parameters."""

from __future__ import annotations

import shutil
from typing import Any

import pytest
import timm
import torch
from torch import Tensor, nn

from ctxgcd.errors import UserError
from ctxgcd.models.backbone import Backbone, cut
from ctxgcd.models.network import Network
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


@pytest.mark.parametrize("blocks", [1, 2])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_cls_row_alone_has_the_whole_blocks_gradients(
    nets: dict[str, nn.Module], blocks: int, dtype: torch.dtype
) -> None:
    net: Any = frozen_copy(nets[VIT], VIT).to(dtype)
    tail = cut(net, blocks).tail
    assert tail.cls_alone
    tokens = torch.randn(7, 5, 192, generator=torch.Generator().manual_seed(2), dtype=dtype)
    upstream = torch.randn(7, 192, generator=torch.Generator().manual_seed(3), dtype=dtype)
    found = []
    for alone in (True, False):
        tail.cls_alone = alone
        tail.zero_grad()
        out = tail(tokens)
        (out * upstream).sum().backward()
        found.append((out.detach(), {name: p.grad.clone() for name, p in tail.named_parameters() if p.requires_grad}))
    close = 1e-5 if dtype == torch.float32 else 1e-13
    torch.testing.assert_close(found[0][0], found[1][0], rtol=close, atol=close)
    for name, gradient in found[1][1].items():
        assert (found[0][1][name] - gradient).norm() <= close * gradient.norm(), name


@pytest.mark.parametrize("odd", [{"init_values": 0.5}, {"qk_norm": True}, {"proj_drop_rate": 0.1}])
@torch.no_grad()
def test_other_blocks_are_computed_whole(odd: dict[str, Any]) -> None:
    net: Any = randomised(timm.create_model(VIT, num_classes=0, img_size=32, **odd)).eval().requires_grad_(False)
    backbone = cut(net, 1)
    assert not backbone.tail.cls_alone
    torch.testing.assert_close(backbone.features(images()), net(images()), rtol=1e-4, atol=1e-5)


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
    ("model", "blocks"), [(VIT, 13), (LITE, 2), ("resnet18", 1), ("vit_base_patch16_siglip_224", 1)]
)
def test_models_that_cannot_be_cut(model: str, blocks: int) -> None:
    with torch.device("meta"):
        net = timm.create_model(model, num_classes=0)
    with pytest.raises(UserError, match=f"cannot be cut with tail_blocks {blocks}"):
        cut(net, blocks)


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
        (VIT, {"qkv_bias": False}),
        (VIT, {"init_values": 0.1}),
        (VIT, {"qk_norm": True}),
        ("vit_small_patch16_18x2_224", {}),
        ("vit_base_patch16_xp_224", {}),
    ],
)
def test_other_kinds_of_blocks_are_computed_whole(name: str, changes: dict[str, Any]) -> None:
    net = timm.create_model(name, img_size=32, num_classes=0, depth=2, **changes).eval().requires_grad_(False)
    images = torch.randn(2, 3, 32, 32)
    expected = net.forward_features(images)[:, 0]
    backbone = cut(net, 1)
    assert not backbone.tail.cls_alone
    with torch.no_grad():
        torch.testing.assert_close(backbone.features(images), expected, rtol=1e-4, atol=1e-5)


# -- compiled on a GPU -----------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("g++") is None, reason="torch.compile needs a C++ compiler on a CPU")
def test_a_compiled_trunk_computes_the_same() -> None:
    """As on a GPU, but compiled for the CPU: one graph for any number of images."""
    torch._dynamo.reset()
    net = timm.create_model("vit_tiny_patch16_224", img_size=32, num_classes=0, depth=2).eval().requires_grad_(False)
    trunk = cut(net, 1).trunk
    quick = torch.compile(trunk, dynamic=True, fullgraph=True)
    with torch.no_grad():
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
