"""Optimisers of a method: several, reset, and in a later phase; all can be resumed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from ctxgcd.methods.schedules import cosine_lr
from ctxgcd.methods.step import Look, Plan
from ctxgcd.models.network import TailNetwork
from ctxgcd.training import loop
from tests.helpers.hooks import STEPS, Plain, begun, network, resumed_run, whole_run
from tests.helpers.training import (
    equal,
    made_up,
    parameters,
)

torch.set_num_threads(1)


class Fresh(Plain):
    def before_epoch(self, network: Any, look: Look) -> Plan:
        return replace(super().before_epoch(network, look), fresh_optimiser=look.epoch == 2)


def test_a_fresh_optimiser_has_no_momentum(tmp_path: Path) -> None:
    """Epoch 2 equals the first epoch of a run that starts with the same network."""
    for kind, is_fresh in ((Fresh, True), (Plain, False)):
        made, _ = begun(tmp_path, kind, epochs=4)
        for epoch in range(2):
            loop.train_epoch(made.row, made.inputs, epoch)
        other, _ = begun(tmp_path, Plain, epochs=4)
        other.row.network.load_state_dict(made.row.network.state_dict())
        for one in (made, other):
            loop.train_epoch(one.row, one.inputs, 2)
        expected = other.row.network.state_dict()
        same = [torch.equal(value, expected[name]) for name, value in made.row.network.state_dict().items()]
        assert all(same) == is_fresh
        made.row.begin(made.inputs.look(made.row.network, 2))
        assert all(bool(optimiser.state) != is_fresh for optimiser in made.row.optimisers)


@pytest.mark.parametrize("epochs_done", [2, 3])
def test_a_fresh_optimiser_is_resumed(tmp_path: Path, epochs_done: int) -> None:
    whole, _ = whole_run(tmp_path, Fresh, epochs=5)
    assert not equal(whole, whole_run(tmp_path / "without", Plain, epochs=5)[0])
    again, rest = resumed_run(tmp_path, Fresh, epochs_done * STEPS + 3, epochs=5)
    assert equal(again, whole)
    assert len(rest.calls) == (5 - epochs_done) * STEPS


class Two(Plain):
    """Adam at a constant rate for the classifier; SGD by the cosine for the rest, the tail at a third of it."""

    def optimisers(self, network: Any) -> list[torch.optim.Optimizer]:
        groups = [
            {"params": list(part.parameters()), "factor": factor}
            for part, factor in ((network.tail, 1 / 3), (network.projector, 1.0))
        ]
        adam = torch.optim.Adam(network.classifier.parameters(), lr=0.003)
        return [adam, torch.optim.SGD(groups, lr=self.p["lr"], momentum=0.5)]


def test_several_optimisers_step_and_are_resumed(tmp_path: Path) -> None:
    made, recorder = whole_run(tmp_path, Two)
    net, labels = network(0), made_up()[2]
    adam = torch.optim.Adam(net.classifier.parameters(), lr=0.003)
    tail = torch.optim.SGD(net.tail.parameters(), lr=1.0, momentum=0.5)
    head = torch.optim.SGD(net.projector.parameters(), lr=1.0, momentum=0.5)
    for number, (ids, views) in enumerate(recorder.calls):
        lr = cosine_lr(number // STEPS, 3, 0.02, 1.0e-3)
        tail.param_groups[0]["lr"], head.param_groups[0]["lr"] = lr * (1 / 3), lr
        terms = Plain(parameters()).of(net(views), labels[ids])
        net.zero_grad()
        (0.5 * terms["info_nce"] + terms["cls"]).backward()
        for optimiser in (adam, tail, head):
            optimiser.step()
    for name, value in made.row.network.state_dict().items():
        torch.testing.assert_close(value, net.state_dict()[name], rtol=1e-5, atol=1e-6)
    of_adam, of_sgd = made.row.optimisers
    assert [group["lr"] for group in of_adam.param_groups] == [0.003]
    assert [group["lr"] for group in of_sgd.param_groups] == [lr * (1 / 3), lr]
    again, _ = resumed_run(tmp_path, Two, 2 * STEPS + 3)
    assert equal(again, made)
    assert [row["lr"] for row in again.row.history] == [cosine_lr(epoch, 3, 0.02, 1.0e-3) for epoch in range(3)]


class Scheduled(Two):
    """Adam divided by ten from epoch 2 on; the rest as in Two."""

    def schedule(self, optimisers: Sequence[torch.optim.Optimizer], epoch: int) -> None:
        super().schedule(optimisers, epoch)
        optimisers[0].param_groups[0]["lr"] = 0.003 if epoch < 2 else 0.0003


def test_each_optimiser_may_have_a_schedule(tmp_path: Path) -> None:
    made, _ = begun(tmp_path, Scheduled, epochs=4)
    rates = []
    for epoch in range(4):
        loop.train_epoch(made.row, made.inputs, epoch)
        rates.append([group["lr"] for optimiser in made.row.optimisers for group in optimiser.param_groups])
    expected = [cosine_lr(epoch, 4, 0.02, 1.0e-3) for epoch in range(4)]
    assert [rate[0] for rate in rates] == [0.003, 0.003, 0.0003, 0.0003]
    assert [rate[1:] for rate in rates] == [[lr * (1 / 3), lr] for lr in expected]
    whole, _ = whole_run(tmp_path, Scheduled, epochs=4)
    assert not equal(whole, whole_run(tmp_path / "two", Two, epochs=4)[0])
    assert equal(resumed_run(tmp_path, Scheduled, 3 * STEPS + 3, epochs=4)[0], whole)


class Phased(Plain):
    """Other optimisers from epoch 1 on; a buffer stores the phase."""

    def network(self, tail: nn.Module, dim: int, old_classes: int) -> TailNetwork:
        net = network(self.p["seed"])
        net.register_buffer("phase", torch.zeros((), dtype=torch.int64))
        return net

    def optimisers(self, network: Any) -> list[torch.optim.Optimizer]:
        if not network.phase:
            return super().optimisers(network)
        return [torch.optim.Adam(network.projector.parameters(), lr=0.003), *super().optimisers(network)]

    def before_epoch(self, network: Any, look: Look) -> Plan:
        network.phase.fill_(min(look.epoch, 1))
        return replace(super().before_epoch(network, look), fresh_optimiser=look.epoch == 1)


@pytest.mark.parametrize("epochs_done", [0, 1, 2])
def test_optimisers_of_a_later_phase_are_resumed(tmp_path: Path, epochs_done: int) -> None:
    whole, _ = whole_run(tmp_path, Phased)
    assert len(whole.row.optimisers) == 2
    assert equal(resumed_run(tmp_path, Phased, epochs_done * STEPS + 3)[0], whole)
