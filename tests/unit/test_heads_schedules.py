"""Heads, their start and their gradients; learning rate, teacher temperature, decay groups."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils.parametrizations import weight_norm

from ctxgcd.errors import UserError
from ctxgcd.methods.optimiser import parameter_groups
from ctxgcd.methods.schedules import cosine_lr, teacher_temperature
from ctxgcd.models.heads import CosineClassifier, Projector

torch.set_num_threads(1)


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def test_projector() -> None:
    projector = Projector(48, 256, 16, generator=seeded())
    linear = [layer for layer in projector if isinstance(layer, nn.Linear)]
    assert [tuple(layer.weight.shape) for layer in linear] == [(256, 48), (256, 256), (16, 256)]
    for layer in linear:
        assert not layer.bias.any()
        assert layer.weight.std().item() == pytest.approx(0.02, rel=0.05)
        assert abs(layer.weight.mean().item()) < 0.001
    x = torch.randn(3, 48, generator=seeded(1))
    hidden = x
    for layer in linear[:-1]:
        product = hidden @ layer.weight.T
        hidden = product * 0.5 * (1 + torch.erf(product / math.sqrt(2)))
    torch.testing.assert_close(projector(x), hidden @ linear[-1].weight.T)
    assert all(p.requires_grad and p.device.type == "cpu" for p in projector.parameters())


def test_heads_draw_from_their_generator_only() -> None:
    def heads(seed: int) -> list[Tensor]:
        generator = seeded(seed)
        made = nn.ModuleList([Projector(8, 8, 4, generator=generator), CosineClassifier(8, 5, generator=generator)])
        return [parameter.detach() for parameter in made.parameters()]

    torch.manual_seed(5)
    before = torch.get_rng_state()
    first = heads(0)
    assert torch.equal(before, torch.get_rng_state())
    torch.manual_seed(6)
    assert all(torch.equal(a, b) for a, b in zip(first, heads(0), strict=True))
    assert not torch.equal(first[0], heads(1)[0])
    assert not torch.equal(first[-1], heads(1)[-1])


def test_classifier_start_and_output() -> None:
    classifier = CosineClassifier(64, 200, generator=seeded())
    assert [name for name, _ in classifier.named_parameters()] == ["direction"]
    direction = classifier.direction.detach()
    bound = 1 / math.sqrt(64)
    assert direction.abs().max() <= bound
    assert direction.std().item() == pytest.approx(bound / math.sqrt(3), rel=0.02)
    x = torch.randn(4, 64, generator=seeded(1)) * 30
    expected = torch.cosine_similarity(x[:, None], direction[None], dim=2)
    torch.testing.assert_close(classifier(x), expected)
    torch.testing.assert_close(classifier(x * 7), expected)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(classifier(x), classifier(x.clone()))
        assert classifier(x).dtype == torch.float32
        torch.testing.assert_close(classifier(x), expected)
    assert classifier(torch.zeros(1, 64)).isfinite().all()


def test_classifier_trains_as_a_weight_norm_layer() -> None:
    ours = CosineClassifier(12, 5, generator=seeded()).double()
    layer = nn.Linear(12, 5, bias=False).double()
    with torch.no_grad():
        layer.weight.copy_(ours.direction)
    theirs = weight_norm(layer)
    gain, direction = theirs.parametrizations.weight.original0, theirs.parametrizations.weight.original1
    with torch.no_grad():
        gain.fill_(1)
    gain.requires_grad_(False)
    optimisers = [
        torch.optim.SGD([parameter], lr=0.5, momentum=0.9, weight_decay=0.1)
        for parameter in (ours.direction, direction)
    ]
    start = ours.direction.detach().norm(dim=1)
    for step in range(5):
        x = torch.randn(7, 12, dtype=torch.float64, generator=seeded(step))
        for model, optimiser in zip((ours, theirs), optimisers, strict=True):
            optimiser.zero_grad()
            (model(nn.functional.normalize(x, dim=1)) / 0.1).logsumexp(dim=1).sum().backward()
            optimiser.step()
    torch.testing.assert_close(ours.direction, direction, rtol=1e-10, atol=1e-12)
    assert not torch.allclose(ours.direction.detach().norm(dim=1), start)  # never renormalised
    assert torch.autograd.gradcheck(ours, torch.randn(3, 12, dtype=torch.float64, requires_grad=True))


def test_cosine_lr() -> None:
    assert cosine_lr(0, 200, 0.1, 1e-3) == 0.1
    assert cosine_lr(100, 200, 0.1, 1e-3) == pytest.approx((0.1 + 1e-4) / 2)
    assert cosine_lr(200, 200, 0.1, 1e-3) == pytest.approx(1e-4)
    assert cosine_lr(0, 1, 0.1, 1e-3) == 0.1
    rates = [cosine_lr(epoch, 200, 0.8, 1e-3) for epoch in range(200)]
    assert rates == sorted(rates, reverse=True)
    assert rates[-1] > 0.8e-3


def test_cosine_lr_is_torchs() -> None:
    optimiser = torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=0.1)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, 20, eta_min=1e-4)
    for epoch in range(20):
        assert optimiser.param_groups[0]["lr"] == pytest.approx(cosine_lr(epoch, 20, 0.1, 1e-3), rel=1e-12)
        optimiser.step()
        schedule.step()


@pytest.mark.parametrize("shape", ["linear", "cosine"])
def test_teacher_temperature(shape: str) -> None:
    values = [teacher_temperature(epoch, 30, 0.07, 0.04, shape) for epoch in range(200)]
    assert values[0] == 0.07
    assert values[29] == 0.04
    assert set(values[29:]) == {0.04}
    assert values[:30] == sorted(values[:30], reverse=True)
    assert len(set(values[:30])) == 30
    assert teacher_temperature(0, 1, 0.07, 0.04, shape) == 0.07
    assert teacher_temperature(1, 1, 0.07, 0.04, shape) == 0.04
    assert teacher_temperature(0, 0, 0.07, 0.04, shape) == 0.04


def test_teacher_temperature_shapes() -> None:
    assert teacher_temperature(10, 30, 0.07, 0.04, "linear") == pytest.approx(0.07 - 0.03 * 10 / 29)
    half_cosine = 0.04 + 0.03 * (1 + math.cos(math.pi * 10 / 29)) / 2
    assert teacher_temperature(10, 30, 0.07, 0.04, "cosine") == pytest.approx(half_cosine)
    with pytest.raises(UserError, match="did you mean 'cosine'"):
        teacher_temperature(0, 30, 0.07, 0.04, "cosin")


def test_parameter_groups() -> None:
    class Network(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.frozen = nn.Linear(2, 2)
            self.frozen.requires_grad_(False)
            self.block = nn.Sequential(nn.Linear(2, 3), nn.LayerNorm(3))
            self.odd = nn.ParameterDict({"bias": nn.Parameter(torch.zeros(2, 2))})
            self.classifier = CosineClassifier(3, 4, generator=seeded())

    network = Network()
    decayed, plain = parameter_groups(network.named_parameters(), 5e-5)
    assert decayed["weight_decay"] == 5e-5
    assert plain["weight_decay"] == 0.0
    linear, norm = network.block
    assert [id(p) for p in decayed["params"]] == [id(linear.weight), id(network.classifier.direction)]
    expected = [linear.bias, norm.weight, norm.bias, network.odd["bias"]]
    assert [id(p) for p in plain["params"]] == [id(p) for p in expected]
    torch.optim.SGD(parameter_groups(network.classifier.named_parameters(), 5e-5), lr=0.1).step()
