"""A stage before epoch 0, and preparation; both can be resumed."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from ctxgcd.methods.method import Method
from ctxgcd.methods.step import Batch, Look, Losses
from ctxgcd.training import checkpoint, loop
from ctxgcd.training.row import Row
from ctxgcd.training.step_inputs import StepInputs
from ctxgcd.training.views import BankViews
from tests.helpers.hooks import STEPS, Plain, network, resumed_run, whole_run
from tests.helpers.training import (
    ABOUT,
    CLASSES,
    IMAGES,
    equal,
    made_up,
)

torch.set_num_threads(1)


class Before(Plain):
    def optimisers(self, network: Any) -> list[torch.optim.Optimizer]:
        return [torch.optim.Adam(network.parameters(), lr=0.01)]

    def losses(self, network: Any, batch: Batch) -> Losses:
        found = super().losses(network, batch)
        return Losses({"info_nce": found.terms["info_nce"]}, {"drawn": torch.rand((), generator=batch.stream("own"))})

    logged = ("drawn",)

    def terms(self) -> dict[str, int]:
        return {"info_nce": 0}


STAGE_STEPS = IMAGES // 12


class Staged(Plain):
    """Two epochs with another loss, batch size and optimiser; then the classifier is initialised from features."""

    logged = ("drawn",)

    def __init__(self, parameters: dict[str, Any]) -> None:
        super().__init__(parameters)
        self.prepared = 0

    def stage(self) -> Method:
        return Before(self.p | {"epochs": 2, "batch_size": 12})

    def prepare(self, network: Any, look: Look) -> None:
        self.prepared += 1
        with torch.no_grad():
            network.classifier.direction.copy_(look.features(torch.arange(CLASSES)))

    def losses(self, network: Any, batch: Batch) -> Losses:
        return replace(super().losses(network, batch), logged={"drawn": torch.rand((), generator=batch.stream("own"))})


def test_a_stage_is_a_training_before_epoch_0(tmp_path: Path) -> None:
    made, recorder = whole_run(tmp_path, Staged)
    p, (bank, test_view, labels) = made.row.parameters, made_up()
    net, views = network(0), BankViews(bank, test_view)
    stage = Row(Before(p | {"epochs": 2, "batch_size": 12}), net.eval(), tmp_path / "1.pt", "stage", ABOUT)
    loop.train(stage, StepInputs(views, labels, "float32", 0, streams="stage/"))
    with torch.no_grad():
        net.classifier.direction.copy_(net.tail(test_view[:CLASSES]))
    after = type("After", (Staged,), {"stage": lambda self: None, "prepare": lambda self, network, look: None})
    row = Row(after(p), net, tmp_path / "2.pt", "after", ABOUT)
    loop.train(row, StepInputs(views, labels, "float32", 0))
    assert all(torch.equal(value, net.state_dict()[name]) for name, value in made.row.network.state_dict().items())
    assert made.row.history == row.history
    assert len(recorder.calls) == 2 * STAGE_STEPS + 3 * STEPS
    assert checkpoint.load(tmp_path / "stage-whole.pt", "ctxgcd-state")["history"] == stage.history
    # Steps of the stage and of the training have different images and random numbers.
    assert isinstance(stage.method, Before)
    assert made.row.steps == stage.steps + 3 * STEPS == 2 * STAGE_STEPS + 3 * STEPS
    assert isinstance(row.method, Staged)
    drawn = [{float(torch.rand((), generator=b.stream("own"))) for b in m.seen} for m in (stage.method, row.method)]
    assert (len(drawn[0]), len(drawn[1]), drawn[0] & drawn[1]) == (2 * STAGE_STEPS, 3 * STEPS, set())
    firsts = [recorder.calls[i][0].tolist()[:8] for i in (0, 2 * STAGE_STEPS)]
    assert firsts[0] != firsts[1]


@pytest.mark.parametrize(
    ("stop_at", "stage_epochs", "epochs"),
    [
        (3, 0, 0),  # in the stage's first epoch
        (STAGE_STEPS + 3, 1, 0),
        (2 * STAGE_STEPS, 2, 0),  # between the stage and epoch 0
        (2 * STAGE_STEPS + 3, 2, 0),
        (2 * STAGE_STEPS + STEPS + 3, 2, 1),
    ],
)
def test_a_stage_is_resumed(tmp_path: Path, stop_at: int, stage_epochs: int, epochs: int) -> None:
    whole, _ = whole_run(tmp_path, Staged)
    assert isinstance(whole.row.method, Staged)
    assert whole.row.method.prepared == 1
    again, rest = resumed_run(tmp_path, Staged, stop_at)
    assert equal(again, whole)
    assert again.row.shares == whole.row.shares
    assert len(rest.of(12)) == (2 - stage_epochs) * STAGE_STEPS
    assert len(rest.of(8)) == (3 - epochs) * STEPS
    assert isinstance(again.row.method, Staged)
    assert again.row.method.prepared == (epochs == 0)  # once per training, and not if epochs are finished
