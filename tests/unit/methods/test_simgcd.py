"""The baseline on a batch: its terms equal the formula."""

from __future__ import annotations

import pytest
import torch

from ctxgcd.methods.simgcd import SimGCD
from tests.helpers.methods import (
    batch,
    close,
    has_neighbours,
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


def test_a_batch_without_labels_has_only_the_unsupervised_half() -> None:
    net, of, p = network(), batch(), parameters()
    found = losses(SimGCD(p), net, of_rows(of.sampled.views, torch.full_like(of.sampled.labels, -1)))
    assert found["sup_con"] == found["cls"] == 0
    unsupervised = found["info_nce"] + found["distill"] + p["entropy_weight"] * found["entropy"]
    torch.testing.assert_close(found["loss"], 0.65 * unsupervised)


def test_simgcd_has_no_neighbour_images() -> None:
    method = SimGCD(parameters())
    assert not any(has_neighbours(method, epoch) for epoch in range(300))
    assert method.terms() == dict.fromkeys(("info_nce", "sup_con", "distill", "entropy", "cls"), 0)


def _simgcd(new_by: str) -> SimGCD:
    return SimGCD(parameters(new_by=new_by))


def test_new_classes_by_kmeans_follow_the_features() -> None:
    """Two groups of images that the classifier mixes are separated; images of old classes keep their class."""
    stream, net = torch.Generator().manual_seed(0), network()
    old = 3  # of 5 classes
    with torch.no_grad():  # features e0, e1, e2 are old; e3 and e4 are new, and the classifier cannot separate them
        net.classifier.direction.zero_()
        net.classifier.direction[[0, 1, 2], [0, 1, 2]] = 1.0
        net.classifier.direction[3:, 3:5] = 1.0
    kinds = torch.arange(5).repeat(20)
    rows = torch.eye(8)[kinds] + 0.05 * torch.randn(100, 8, generator=stream)
    labels = torch.where((kinds < old) & (torch.arange(100) < 30), kinds, -1)
    free = (labels < 0).nonzero()[:, 0]
    by = {
        new_by: _simgcd(new_by).discover(net, rows.__getitem__, labels, free[:-10], free[-10:])
        for new_by in ("classifier", "kmeans")
    }
    truth = kinds[free]
    found = torch.cat([by["kmeans"].unlabelled, by["kmeans"].test])
    assert torch.equal(found[truth < old], truth[truth < old])
    of_new = {int(kind): found[truth == kind].unique().tolist() for kind in (3, 4)}
    assert sorted(of_new.values()) == [[3], [4]]
    assert by["kmeans"].found["centres"].shape == (2, 8)
    mixed = torch.cat([by["classifier"].unlabelled, by["classifier"].test])
    assert len(mixed[truth >= old].unique()) == 1


def test_with_too_few_new_images_the_classifier_is_used(capsys: pytest.CaptureFixture[str]) -> None:
    net = network()
    with torch.no_grad():
        net.classifier.direction.zero_()
        net.classifier.direction[:, :5] = torch.eye(5)
    rows, labels = torch.eye(8)[torch.tensor([0, 1, 2, 0, 1, 2])], torch.tensor([0, 1, 2, -1, -1, -1])
    found = _simgcd("kmeans").discover(
        net, rows.__getitem__, labels, torch.tensor([3, 4, 5]), torch.tensor([], dtype=torch.int64)
    )
    assert found.unlabelled.tolist() == [0, 1, 2]
    assert not found.found
    assert "assigns only 0 images" in capsys.readouterr().out
