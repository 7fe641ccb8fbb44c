"""A training on synthetic features: its parameters, images, network, and views that record their calls."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import normalize

from ctxgcd.catalogue.entries import load
from ctxgcd.models.network import Network
from ctxgcd.training import loop
from ctxgcd.training.row import Row
from ctxgcd.training.step_inputs import StepInputs
from ctxgcd.training.views import Asked, BankViews
from ctxgcd.utils.seeding import Draws
from tests.helpers.params import values

torch.set_num_threads(1)

IMAGES, TEST, KEPT, DIM, CLASSES, BANK = 60, 10, 6, 8, 4, 3
VARIANTS = ("paper", "released", "mended")


def parameters(**changes: Any) -> dict[str, Any]:
    """Return values of a short run of the full method on the synthetic images, with changes."""
    usual: dict[str, Any] = {
        **{"K": CLASSES, "epochs": 5, "T_warm": 2, "batch_size": 8, "lr": 0.1, "tail_lr_factor": 0.5, "k": 4},
        **{"teacher_warmup_epochs": 2, "precision": "float32", "tail": "blocks", "entropy_weight": 1.0},
        "neighbour_images": 13,  # three queries of four images: 12, so that no pair of views is mistaken for a batch
    }
    return values(**usual | changes)


SIMGCD = {"method": "simgcd"}
ABOUT = {"identity": "0123456789abcdef", "split_sha256": "a", "code": "b"}
CONTROL = {"lambda_n": 0.0, "lambda_c": 0.0}


def made_up() -> tuple[Tensor, Tensor, Tensor]:
    """Return a bank [BANK, IMAGES, KEPT], test views and labels: four noisy classes, two of them old."""
    stream = torch.Generator().manual_seed(0)
    centres = torch.randn(CLASSES, KEPT, generator=stream) * 2
    classes = torch.arange(IMAGES + TEST) % CLASSES
    clean = centres[classes]
    test_view = clean + torch.randn(clean.shape, generator=stream) * 0.5
    bank = torch.stack([clean[:IMAGES] + torch.randn(IMAGES, KEPT, generator=stream) * 0.5 for _ in range(BANK)])
    labelled = (classes[:IMAGES] < 2) & (torch.arange(IMAGES) % 8 < 4)
    return bank, test_view, classes[:IMAGES].where(labelled, torch.tensor(-1))


class Recorder:
    """Views that record their calls, and can be interrupted."""

    def __init__(self, inner: BankViews, stop_at: int | None = None) -> None:
        self.inner, self.stop_at = inner, stop_at
        self.calls: list[tuple[Tensor, Tensor]] = []

    def pairs(self, groups: Asked, device: torch.device) -> Iterator[Tensor]:
        return (self.pair(ids, drawn) for ids, drawn in groups)

    def pair(self, ids: Tensor, drawn: Draws) -> Tensor:
        if len(self.calls) == self.stop_at:
            raise KeyboardInterrupt
        [rows] = self.inner.pairs([(ids, drawn)], ids.device)
        self.calls.append((ids.clone(), rows.clone()))
        return rows

    def train(self, ids: Tensor, drawn: Draws) -> Tensor:
        return self.inner.train(ids, drawn)

    def test(self, ids: Tensor) -> Tensor:
        return self.inner.test(ids)

    def of(self, images: int) -> list[tuple[Tensor, Tensor]]:
        return [call for call in self.calls if len(call[0]) == images]


def network(seed: int) -> Network:
    tail = nn.Linear(KEPT, DIM, device="meta").to_empty(device="cpu")
    stream = torch.Generator().manual_seed(99)
    with torch.no_grad():
        for parameter in tail.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=stream) * 0.5)
    return Network(tail, DIM, CLASSES, 16, 7, seed)


@dataclass
class Training:
    """A run and its images."""

    row: Row
    inputs: StepInputs

    def train(self) -> None:
        loop.train(self.row, self.inputs)

    def features(self, ids: Tensor) -> Tensor:
        return self.inputs.features(self.row.network, ids)


def training(
    folder: Path, changes: dict[str, Any], stop_at: int | None = None, start: int | None = None, name: str = "last.pt"
) -> tuple[Training, Recorder]:
    """Return a training on the synthetic data; `start`: another seed of the heads than the run's."""
    p = parameters(**changes)
    bank, test_view, labels = made_up()
    recorder = Recorder(BankViews(bank, test_view), stop_at)
    net = network(p["seed"] if start is None else start)
    row = Row(load(p["method"])(p), net.eval(), folder / name, "made-up", ABOUT)
    return Training(row, StepInputs(recorder, labels, p["precision"], p["seed"])), recorder


def trained(folder: Path, name: str, **changes: Any) -> tuple[Training, Recorder]:
    made, recorder = training(folder, changes, name=name)
    made.train()
    return made, recorder


def equal(one: Training, other: Training) -> bool:
    first, second = one.row.network.state_dict(), other.row.network.state_dict()
    return all(torch.equal(first[name], second[name]) for name in first) and one.row.history == other.row.history


# -- neighbours ------------------------------------------------------------------------------------------


def slow_lists(features: Tensor, k: int) -> list[list[int]]:
    """Return each image's k most similar others, by sorting."""
    z = normalize(features, dim=1)
    table = (z @ z.T).tolist()
    return [sorted((j for j in range(len(z)) if j != i), key=lambda j: -row[j])[:k] for i, row in enumerate(table)]
