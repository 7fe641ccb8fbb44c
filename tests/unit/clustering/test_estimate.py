"""Estimation of K from the labels of D^l only."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from numpy.typing import NDArray
from scipy.optimize import minimize_scalar

from ctxgcd.clustering.estimate import estimate_k, estimate_to
from ctxgcd.clustering.kmeans import kmeans
from ctxgcd.errors import UserError
from ctxgcd.pipeline.identity import read_estimate

HOW = {"most": 40, "restarts": 5, "seed": 0, "threads": 1}


def blobs(classes: int, each: int, seed: int = 0) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    draw = np.random.RandomState(seed)
    truth = np.arange(classes * each) % classes
    centres = draw.randn(classes, 12)
    return centres[truth] + 0.2 * draw.randn(len(truth), 12), truth


def labelled_half(truth: NDArray[np.int64], old: int) -> NDArray[np.int64]:
    turn = np.arange(len(truth)) // (truth.max() + 1)
    return np.where((truth < old) & (turn % 2 == 0), truth, -1)


def test_separate_classes_are_counted() -> None:
    features, truth = blobs(20, 30)
    k, tried = estimate_k(features, labelled_half(truth, 15), **HOW | {"most": 200})
    # With more clusters than classes the old classes are divided; with fewer, some may be complete.
    assert tried[k] == max(tried.values())
    assert k == min(n for n in tried if tried[n] == tried[k])
    assert abs(k - 20) <= 4  # k-means itself merges and splits a few of 20 classes
    assert min(tried) > 15
    assert max(tried) <= 200
    longer = features * np.arange(1, 601)[:, None]  # directions count, lengths do not
    assert estimate_k(longer, labelled_half(truth, 15), **HOW | {"most": 200}) == (k, tried)


@pytest.mark.parametrize("seed", [0, 2])
def test_the_search_rounds_its_points_and_the_smallest_best_k_tried_is_returned(seed: int) -> None:
    features, truth = blobs(10, 12, seed)
    k, tried = estimate_k(features, labelled_half(truth, 7), **HOW | {"most": 60})
    points: list[float] = []

    def loss(point: float) -> float:
        points.append(point)
        return -tried[round(point)]

    minimize_scalar(loss, bounds=(8, 60), method="bounded", options={"xatol": 0.5})
    assert {round(point) for point in points} == tried.keys()  # each rounded; truncated, other K would be tried
    assert {int(point) for point in points} != tried.keys()
    assert k == min(n for n in tried if tried[n] == max(tried.values()))


def test_only_labels_of_d_l_are_scored() -> None:
    features, truth = blobs(8, 20)
    labels = labelled_half(truth, 4)
    found = estimate_k(features, labels, **HOW)
    rows = features / np.linalg.norm(features, axis=1, keepdims=True)
    for k, accuracy in found[1].items():
        clusters = kmeans(rows, k, restarts=5, seed=0, threads=1)[0]
        own, true = clusters[labels >= 0], labels[labels >= 0]
        # One-to-one assignments of four classes, by brute force over the clusters that hold labelled images.
        counts = np.array([[np.sum((own == c) & (true == t)) for t in range(4)] for c in np.unique(own)])
        assert accuracy == pytest.approx(100 * _best(counts) / len(true))


def _best(counts: NDArray[np.int64]) -> int:
    if counts.shape[1] == 0:
        return 0
    rest = [0 if len(counts) == 1 else _best(np.delete(counts, i, 0)[:, 1:]) for i in range(len(counts))]
    return max(max(int(counts[i, 0]) + rest[i] for i in range(len(counts))), _best(counts[:, 1:]))


def test_bounds() -> None:
    features, truth = blobs(4, 6)
    labels = labelled_half(truth, 3)
    assert estimate_k(features, labels, **HOW | {"most": 4})[0] == 4
    assert max(estimate_k(features, labels, **HOW | {"most": 1000})[1]) <= 24
    with pytest.raises(UserError, match="3 labelled classes, and the largest K to try is 3"):
        estimate_k(features, labels, **HOW | {"most": 3})
    with pytest.raises(UserError, match="label more images"):
        estimate_k(features, np.full(24, -1), **HOW)


def test_files(tmp_path: Path) -> None:
    features, truth = blobs(5, 16)
    labels = labelled_half(truth, 3)
    roles = np.where(np.arange(80) >= 70, "test", np.where(labels >= 0, "labelled", "unlabelled"))
    split = pd.DataFrame({"id": np.arange(80), "role": roles, "class_id": truth})
    split["part"] = np.where(split.role == "test", "test", "train")
    shuffled = split.sample(frac=1, random_state=0)
    far = features.copy()
    far[70:] = 1e6  # the test part is not used
    estimate_to(tmp_path / "k.json", tmp_path / "k.csv", shuffled, far, code="", **HOW)
    content = json.loads((tmp_path / "k.json").read_text())
    tried = pd.read_csv(tmp_path / "k.csv")
    assert content["K"] == read_estimate(tmp_path / "k.json") == estimate_k(features[:70], labels[:70], **HOW)[0]
    assert {key: content[key] for key in HOW} == HOW
    assert list(tried.columns) == ["K", "accuracy"]
    assert tried["accuracy"].max() == content["accuracy"]
    assert len(tried) == content["tried"]
