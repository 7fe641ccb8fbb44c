"""What the baseline computes from a batch: its terms are the written formula."""

from __future__ import annotations

import pytest
import torch

from ctxgcd.methods.simgcd import SimGCD
from tests.helpers.methods import (
    asks_for_neighbours,
    batch,
    close,
    losses,
    network,
    of_rows,
    parameters,
    written_baseline,
)

torch.set_num_threads(1)


@pytest.mark.parametrize("seed", [0, 1])
def test_baseline_is_the_written_formula(seed: int) -> None:
    net, of, p = network(seed), batch(seed=seed), parameters(supervised_weight=0.2 + 0.3 * seed)
    found = losses(SimGCD(p), net, of)
    close(found, written_baseline(net(of.sampled.views), of.sampled.labels, p))
    assert all(value.ndim == 0 and value.isfinite() for value in found.values())


@pytest.mark.parametrize(
    "changed",
    [
        {"supervised_weight": 0.5},
        {"info_nce_weight": 2.0},
        {"sup_con_weight": 0.0},
        {"entropy_weight": 3.0},
        {"student_temperature": 0.2},
        {"teacher_temperature_end": 0.09},
        {"info_nce_temperature": 0.5},
        {"sup_con_temperature": 0.2},
    ],
    ids=lambda changed: next(iter(changed)),
)
def test_each_parameter_of_the_baseline_counts(changed: dict[str, float]) -> None:
    net, of = network(), batch()
    before = losses(SimGCD(parameters()), net, of)["loss"]
    assert abs(losses(SimGCD(parameters(**changed)), net, of)["loss"] - before) > 1e-3


def test_a_batch_without_labels_has_the_unsupervised_half_alone() -> None:
    net, of, p = network(), batch(), parameters()
    found = losses(SimGCD(p), net, of_rows(of.sampled.views, torch.full_like(of.sampled.labels, -1)))
    assert found["sup_con"] == found["cls"] == 0
    unsupervised = found["info_nce"] + found["distill"] + p["entropy_weight"] * found["entropy"]
    torch.testing.assert_close(found["loss"], 0.65 * unsupervised)


def test_simgcd_never_asks_for_neighbours() -> None:
    method = SimGCD(parameters())
    assert not any(asks_for_neighbours(method, epoch) for epoch in range(300))
    assert method.terms() == dict.fromkeys(("info_nce", "sup_con", "distill", "entropy", "cls"), 0)
