"""The adapter tail: its initial values, its output, and the supported models."""

from __future__ import annotations

import pytest
import timm
import torch
from torch import Tensor, nn

from ctxgcd.errors import UserError
from ctxgcd.methods.optimiser import parameter_groups
from ctxgcd.models.backbone import Adapter, adapted, cut

torch.set_num_threads(1)

# ViTs with a CLS token and without, networks that cannot be cut, two whose features are longer than `num_features`.
MODELS = (
    "test_vit",
    "test_vit4",
    "test_resnet",
    "test_convnext",
    "mixer_s32_224",
    "mobilenetv3_small_050",
    "ghostnet_050",
)


def frozen(model: str) -> nn.Module:
    torch.manual_seed(0)
    made: nn.Module = timm.create_model(model, num_classes=0).eval().requires_grad_(False)
    return made


def images(net: nn.Module, n: int = 2) -> Tensor:
    side = net.pretrained_cfg["input_size"][-1]  # type: ignore[index]
    return torch.randn(n, 3, side, side, generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("model", MODELS)
@torch.no_grad()
def test_training_starts_from_the_frozen_features_of_any_model(model: str) -> None:
    net = frozen(model)
    backbone, seen = adapted(net), images(net)
    features = cut(net, 0).features(seen)
    assert features.shape == (2, backbone.dim)
    assert torch.equal(backbone.trunk(seen), features)
    assert torch.equal(backbone.features(seen), features)
    assert not any(parameter.requires_grad for parameter in backbone.trunk.parameters())
    trained = {name: tuple(value.shape) for name, value in backbone.tail.named_parameters() if value.requires_grad}
    assert trained == {"weight": (backbone.dim, backbone.dim), "bias": (backbone.dim,)}


def test_initialisation_draws_no_random_number() -> None:
    before = torch.get_rng_state()
    Adapter(5)
    assert torch.equal(torch.get_rng_state(), before)


def test_the_features_and_their_gradient_are_those_of_the_equation() -> None:
    """Compared with a loop: f'_i = f_i + sum_j W_ij f_j + b_i."""
    n, dim = 4, 3
    draw = torch.Generator().manual_seed(0)
    made = Adapter(dim).double()
    with torch.no_grad():
        for value in made.parameters():
            value.normal_(generator=draw)
    features, outer = (torch.randn(n, dim, generator=draw, dtype=torch.float64) for _ in range(2))
    found = made(features)
    (found * outer).sum().backward()
    weight, bias = (value.detach() for value in (made.weight, made.bias))
    of_weight, of_bias = torch.zeros_like(weight), torch.zeros_like(bias)
    for row in range(n):
        for i in range(dim):
            plain = features[row, i] + bias[i] + sum(weight[i, j] * features[row, j] for j in range(dim))
            assert found[row, i].item() == pytest.approx(plain.item(), abs=1e-12)
            of_bias[i] += outer[row, i]
            for j in range(dim):
                of_weight[i, j] += outer[row, i] * features[row, j]
    assert made.weight.grad is not None
    assert made.bias.grad is not None
    torch.testing.assert_close(made.weight.grad, of_weight)
    torch.testing.assert_close(made.bias.grad, of_bias)


def test_the_weight_is_decayed_and_the_bias_is_not() -> None:
    tail = Adapter(4)
    decayed, plain = parameter_groups(tail.named_parameters(), 0.1)
    assert (decayed["params"], decayed["weight_decay"]) == ([tail.weight], 0.1)
    assert (plain["params"], plain["weight_decay"]) == ([tail.bias], 0.0)


def test_features_in_half_precision_are_not_rounded_again() -> None:
    """A change that bfloat16 would round to 1 is not lost in the sum."""
    tail = Adapter(2)
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        tail.bias.fill_(1e-3)
        found = tail(torch.ones(3, 2, dtype=torch.bfloat16))
    assert found.dtype == torch.float32
    assert (found > 1).all()


def test_a_model_without_one_vector_an_image_is_refused() -> None:
    class Places(nn.Module):
        num_features = 8

        def forward(self, images: Tensor) -> Tensor:
            return images.new_zeros(len(images), 5, 8)

    with pytest.raises(
        UserError, match=r"Places returns features of shape \(5, 8\) per image, but expected one vector of length 8"
    ):
        adapted(Places()).trunk(torch.zeros(1, 3, 4, 4))
