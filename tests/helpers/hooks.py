"""A minimal method with hooks, and its trainings on synthetic features."""

from __future__ import annotations

import csv
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import normalize

from ctxgcd.losses.cross_entropy import cross_entropy
from ctxgcd.losses.info_nce import info_nce
from ctxgcd.methods.by_classifier import ByClassifier
from ctxgcd.methods.method import Method
from ctxgcd.methods.step import Batch, Losses, Plan
from ctxgcd.models.network import Network, Outputs, TailNetwork
from ctxgcd.training.row import Row
from ctxgcd.training.step_inputs import StepInputs
from ctxgcd.training.views import BankViews
from tests.helpers import training
from tests.helpers.training import (
    ABOUT,
    DIM,
    IMAGES,
    TEST,
    Recorder,
    Training,
    made_up,
    parameters,
)

torch.set_num_threads(1)


STEPS = IMAGES // 8
EVERY_IMAGE = torch.arange(IMAGES + TEST)


def network(seed: int) -> Network:
    """Return the network of tests.helpers.training, with a projector large enough for a gradient of InfoNCE."""
    net = training.network(seed)
    with torch.no_grad():
        for value in net.projector.parameters():
            value.mul_(10)
    return net


class Plain(ByClassifier):
    """InfoNCE and cross-entropy of the first group; records its batches."""

    def __init__(self, parameters: dict[str, Any]) -> None:
        super().__init__(parameters)
        self.seen: list[Batch] = []

    def network(self, tail: nn.Module, dim: int, old_classes: int) -> TailNetwork:
        return network(self.p["seed"])

    def terms(self) -> dict[str, int]:
        return {"info_nce": 0, "cls": 0}

    def weights(self, batch: Batch) -> dict[str, float]:
        return {"info_nce": 0.5, "cls": 1.0}

    def losses(self, network: Any, batch: Batch) -> Losses:
        self.seen.append(batch)
        rows = next(iter(batch.groups.values()))
        return Losses(self.of(network(rows.views), rows.labels))

    def of(self, out: Outputs, labels: Tensor) -> dict[str, Tensor]:
        return {
            "info_nce": info_nce(normalize(out.projections, dim=1), 1.0),
            "cls": cross_entropy(out.logits, labels, labels >= 0, 0.1),
        }


def begun(
    folder: Path,
    kind: type[Method],
    name: str = "last.pt",
    stop_at: int | None = None,
    start: int = 0,
    tail_of: Callable[[Any], nn.Module] = lambda p: network(0).tail,
    **changes: Any,
) -> tuple[Training, Recorder]:
    """Return a training of a method on the synthetic data; start: seed of the initial heads, replaced when resumed."""
    p = parameters(**{"epochs": 3, "lr": 0.02, **changes})
    bank, test_view, labels = made_up()
    recorder = Recorder(BankViews(bank, test_view), stop_at)
    net = kind({**p, "seed": start}).network(tail_of(p), DIM, 2)
    row = Row(kind(p), net.eval(), folder / name, "made-up", ABOUT)
    return Training(row, StepInputs(recorder, labels, p["precision"], p["seed"])), recorder


def whole_run(folder: Path, kind: type[Method], **changes: Any) -> tuple[Training, Recorder]:
    made, recorder = begun(folder, kind, name="whole.pt", **changes)
    made.train()
    return made, recorder


def resumed_run(folder: Path, kind: type[Method], stop_at: int, **changes: Any) -> tuple[Training, Recorder]:
    """Return a run that is interrupted at its `stop_at`-th views, and resumed as by another process."""
    broken, _ = begun(folder, kind, stop_at=stop_at, **changes)
    with pytest.raises(KeyboardInterrupt):
        broken.train()
    made, recorder = begun(folder, kind, start=5 if any(folder.glob("*last.pt")) else 0, **changes)
    made.train()
    return made, recorder


# -- what a hook returns ---------------------------------------------------------------------------------


def changed_losses(found: Losses, **changes: Any) -> Losses:
    return replace(found, terms={**found.terms, **changes})


def extra_plan(plan: Plan, group: Any) -> Plan:
    return replace(plan, steps=[{**step, "more": group} for step in plan.steps])


NONE = torch.empty(0, dtype=torch.int64)


def rows_of(file: Path) -> list[dict[str, str]]:
    with open(file, newline="", encoding="utf-8") as opened:
        return list(csv.DictReader(opened))
