"""Learning rate, teacher temperature, decay groups."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from ctxgcd.errors import UserError
from ctxgcd.methods.optimiser import parameter_groups
from ctxgcd.methods.schedules import cosine_lr, teacher_temperature
from ctxgcd.models.heads import CosineClassifier
from tests.helpers.models import seeded

torch.set_num_threads(1)


def test_cosine_lr() -> None:
    assert cosine_lr(0, 200, 0.1, 1e-3) == 0.1
    assert cosine_lr(100, 200, 0.1, 1e-3) == pytest.approx((0.1 + 1e-4) / 2)
    assert cosine_lr(200, 200, 0.1, 1e-3) == pytest.approx(1e-4)
    assert cosine_lr(0, 1, 0.1, 1e-3) == 0.1
    rates = [cosine_lr(epoch, 200, 0.8, 1e-3) for epoch in range(200)]
    assert rates == sorted(rates, reverse=True)
    assert rates[-1] > 0.8e-3


def test_cosine_lr_equals_torch() -> None:
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
