"""Scores against brute force over all assignments, and degenerate cases."""

from __future__ import annotations

import itertools
import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from ctxgcd.errors import UserError
from ctxgcd.evaluation.accuracy import Score, assign, contingency, v1, v2, v2b
from ctxgcd.evaluation.score_run import read_assignments, score_run
from ctxgcd.evaluation.scores import (
    HELPERS,
    ari,
    check_identity,
    empty_clusters,
    histogram,
    nmi,
    purity,
    score_all,
)
from ctxgcd.names import METRICS


def numbers(score: Score) -> list[float | None]:
    return [score.all, score.old, score.new]


def draw(n: int, classes: int, clusters: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    random = np.random.RandomState(seed)
    true = random.randint(0, classes, n)
    return np.where(random.rand(n) < 0.5, true, random.randint(0, clusters, n)) % clusters, true


def brute(predicted: np.ndarray, true: np.ndarray) -> int:
    """Return the largest matched count over every one-to-one assignment of clusters to classes."""
    d = 1 + max(predicted.max(), true.max())
    return max(
        sum(int(order[p] == y) for p, y in zip(predicted, true, strict=True))
        for order in itertools.permutations(range(d))
    )


@pytest.mark.parametrize("clusters", [2, 4, 6])
@pytest.mark.parametrize("seed", range(2))
def test_v2_and_v1_against_brute_force(clusters: int, seed: int) -> None:
    predicted, true = draw(30, 4, clusters, seed)
    old = true < 2
    score = v2(predicted, true, old)
    assert score.all == pytest.approx(100 * brute(predicted, true) / 30)
    check_identity(score, old.mean())
    separate = v1(predicted, true, old)
    assert separate.old == pytest.approx(100 * brute(predicted[old], true[old]) / old.sum())
    assert separate.new == pytest.approx(100 * brute(predicted[~old], true[~old]) / (~old).sum())
    check_identity(separate, old.mean())
    assert separate.all >= score.all


def test_contingency_and_assign() -> None:
    w = contingency([0, 0, 2, 2, 2], [1, 1, 0, 0, 4])
    assert w.dtype == np.int64
    assert w.shape == (5, 5)
    assert w.sum() == 5
    assert w[0, 1] == 2
    assert w[2, 0] == 2
    assert w[2, 4] == 1
    classes = assign(w)
    assert classes[0] == 1
    assert classes[2] == 0
    assert sorted(classes) == list(range(5))


def test_one_assignment_for_old_and_new() -> None:
    # Cluster 0 holds most of both classes: v2 gives it to one of them, v1 to each in turn.
    predicted, true = [0, 0, 0, 0, 0, 1], [0, 0, 0, 1, 1, 1]
    old = np.array(true) == 0
    assert numbers(v2(predicted, true, old)) == pytest.approx([400 / 6, 100, 100 / 3])
    assert numbers(v1(predicted, true, old)) == pytest.approx([500 / 6, 100, 200 / 3])


def test_v2b_weighs_classes_equally() -> None:
    true = np.array([0] * 8 + [1] * 2 + [2] * 2)
    predicted = np.array([0] * 8 + [1, 0] + [2, 2])
    assert numbers(v2b(predicted, true, true < 2)) == pytest.approx([250 / 3, 75, 100])
    assert v2(predicted, true, true < 2).all == pytest.approx(1100 / 12)


def test_old_is_a_property_of_the_class_not_of_its_number() -> None:
    predicted, true = np.array([3, 3, 5, 5]), np.array([9, 9, 2, 2])
    assert v2(predicted, true, true == 9) == Score(100.0, 100.0, 100.0)
    assert v2([3, 3, 5, 3], true, true == 9) == Score(75.0, 100.0, 50.0)


def test_scores_ignore_the_names_of_clusters() -> None:
    predicted, true = draw(500, 8, 8, 0)
    names = np.random.RandomState(1).permutation(8)
    before, after = (score_all(p, true, true < 4, 8) for p in (predicted, names[predicted]))
    for a, b in zip(before, after, strict=True):
        assert a["all"] == pytest.approx(b["all"])


CORNERS = {
    "fewer clusters": ([0, 1, 0, 1, 0], [0, 1, 2, 3, 4], 2, 2),
    "more clusters": ([0, 9, 3, 4, 5], [0, 0, 0, 1, 1], 1, 12),
    "empty clusters": ([7, 7, 7, 7], [0, 1, 0, 1], 1, 8),
    "one class": ([0, 0, 0], [0, 0, 0], 1, 1),
    "one class, several clusters": ([0, 1, 2], [0, 0, 0], 1, 3),
    "no new image": ([0, 1, 1], [0, 1, 0], 2, 2),
    "no old image": ([0, 1, 1], [0, 1, 0], 0, 2),
    "one image": ([3], [5], 6, 4),
    "large ids": ([10**9, 10**9, 4], [10**12, 10**12, 8], 10, 10**9 + 1),
}


@pytest.mark.parametrize("name", CORNERS)
def test_degenerate_cases_give_numbers(name: str) -> None:
    predicted, true, old_below, k = CORNERS[name]
    old = np.array(true) < old_below
    rows = score_all(predicted, true, old, min(k, 100)) if k < 100 else []
    scores = [metric(predicted, true, old) for metric in (v2, v2b, v1, purity, nmi, ari)]
    for score in scores[:4]:
        assert (score.old is None) == (not old.any())
        assert (score.new is None) == bool(old.all())
        values = [value for value in (score.all, score.old, score.new) if value is not None]
        assert all(0 <= value <= 100 for value in values)
    assert all(np.isfinite(score.all) for score in scores)
    check_identity(scores[0], float(old.mean()))
    assert all(row["n"] == len(true) and np.isfinite(row["all"]) for row in rows)


def test_large_ids_score_as_small_ones() -> None:
    predicted, true = draw(400, 12, 9, 3)
    for metric in (v2, v2b, v1):
        small = metric(predicted, true, true < 6)
        assert metric(predicted * 10**6, true * 10**6, true < 6).all == pytest.approx(small.all)


@pytest.mark.parametrize(
    ("predicted", "true", "old"),
    [
        ([], [], []),
        ([0, 1], [0], [True]),
        ([0], [0, 1], [True, False]),
        ([-1, 0], [0, 1], [True, False]),
        ([0.0, 1.0], [0, 1], [True, False]),
        ([[0, 1]], [[0, 1]], [[True, False]]),
        ([0, 1], [0, 1], [1, 0]),
        ([0, 1], [0, 1], [True]),
        ([0, 1], [0, 0], [True, False]),
    ],
)
def test_bad_input_is_refused(predicted: list[int], true: list[int], old: list[bool]) -> None:
    for metric in (v2, v2b, v1, nmi, ari, purity):
        with pytest.raises(UserError):
            metric(predicted, true, old)
    with pytest.raises(UserError):
        score_all(predicted, true, old, 2)


def test_nmi_ari_purity() -> None:
    true = np.array([0, 0, 1, 1, 2, 2])
    perfect = np.array([2, 2, 0, 0, 1, 1])
    old = true < 1
    for metric in (nmi, ari, purity):
        assert metric(perfect, true, old).all == pytest.approx(100)
    assert nmi(perfect, true, old).old is None
    assert ari(perfect, true, old).new is None
    mixed = np.array([0, 0, 0, 1, 1, 1])
    assert numbers(purity(mixed, true, old)) == pytest.approx([400 / 6, 100, 50])
    assert ari(np.tile([0, 1], 3), true, old).all < 0
    # A tie goes to the lowest class.
    assert purity([0, 0], [4, 3], [True, False]) == Score(50.0, 0.0, 100.0)


def test_purity_against_loops() -> None:
    predicted, true = draw(300, 7, 5, 2)
    counts = [np.bincount(true[predicted == c]).max() for c in range(5)]
    assert purity(predicted, true, true < 3).all == pytest.approx(100 * sum(counts) / 300)


def test_histogram() -> None:
    assert histogram([1, 1, 3], 5).tolist() == [0, 2, 0, 1, 0]
    assert empty_clusters([1, 1, 3], 5) == 3
    assert empty_clusters([0, 1], 2) == 0
    with pytest.raises(UserError, match="K = 3"):
        histogram([1, 1, 3], 3)


def test_score_all() -> None:
    predicted, true = draw(200, 6, 6, 1)
    rows = score_all(predicted, true, true < 3, 8)
    assert tuple(row["metric"] for row in rows) == METRICS + HELPERS
    assert all(list(row) == ["metric", "n", "all", "old", "new"] and row["n"] == 200 for row in rows)
    by_name = {row["metric"]: row for row in rows}
    assert by_name["empty_clusters"]["all"] == 2
    w = by_name["old_share"]["all"] / 100
    assert by_name["v2"]["all"] == pytest.approx(w * by_name["v2"]["old"] + (1 - w) * by_name["v2"]["new"], abs=1e-9)


def test_identity_is_enforced() -> None:
    check_identity(Score(60.0, 70.0, 50.0), 0.5)
    check_identity(Score(60.0, 60.0, None), 1.0)
    for score in (Score(61.0, 70.0, 50.0), Score(60.0 + 1e-8, 70.0, 50.0), Score(float("nan"), 70.0, 50.0)):
        with pytest.raises(ArithmeticError):
            check_identity(score, 0.5)


def test_a_thousand_classes_and_a_million_images_in_seconds() -> None:
    predicted, true = draw(1_000_000, 1000, 1000, 0)
    began = time.perf_counter()
    score = v2(predicted, true, true < 500)
    assert time.perf_counter() - began < 10
    assert score.all == pytest.approx(50, abs=0.5)


def test_scoring_needs_no_torch() -> None:
    code = "import sys, ctxgcd.evaluation.scores; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


# -- several processes -----------------------------------------------------------------------------------


def scored(folder: Path, parts: list[pd.DataFrame]) -> tuple[dict[str, Any], bytes]:
    """Return the metrics and predictions of a run with assignments in several files."""
    folder.mkdir()
    images = pd.concat(parts)["id"].nunique()
    draws = np.random.RandomState(0)
    split = pd.DataFrame({"id": np.arange(images + 40), "path": "x", "class_id": draws.randint(0, 9, images + 40)})
    split["old"] = (split["class_id"] < 4).astype(int)
    split["role"] = np.where(split["id"] >= images, "labelled", np.where(split["id"] % 3 == 0, "test", "unlabelled"))
    parameters = {"benchmark": "b", "row": "simgcd", "method": "simgcd", "seed": 0, "K": 11, "K_source": "true"}
    (folder / "run.json").write_text(json.dumps({"epoch": 9, "parameters": parameters}))
    files = [folder / f"assignments{number}.csv" for number in range(len(parts))]
    for part, file in zip(parts, files, strict=True):
        part.to_csv(file, index=False)
    outputs = {"unlabelled": folder / "predictions.csv", "test": folder / "predictions_test.csv"}
    score_run(folder / "run.json", files, split, folder / "metrics.json", outputs, code="")
    return json.loads((folder / "metrics.json").read_text()), b"".join(file.read_bytes() for file in outputs.values())


@pytest.mark.parametrize("processes", [2, 3, 4])
def test_the_number_of_processes_changes_no_score(tmp_path: Path, processes: int) -> None:
    whole = pd.DataFrame({"id": np.arange(501), "predicted": np.random.RandomState(1).randint(0, 11, 501)})
    # As a distributed sampler shares images out: in turns, the last ones padded with the first.
    padded = pd.concat([whole, whole.iloc[: -len(whole) % processes]])
    parts = [padded.iloc[number::processes] for number in range(processes)]
    assert len({len(part) for part in parts}) == 1
    assert scored(tmp_path / "several", parts) == scored(tmp_path / "one", [whole])


def test_processes_that_disagree_are_refused(tmp_path: Path) -> None:
    whole = pd.DataFrame({"id": np.arange(50), "predicted": np.arange(50) % 11})
    other = whole.assign(predicted=(whole["predicted"] + (whole["id"] == 7)) % 11)
    with pytest.raises(UserError, match="image 7 has two classes"):
        scored(tmp_path / "a", [whole, other])
    stranger = pd.DataFrame({"id": [99], "predicted": [0]})
    with pytest.raises(UserError, match="50 of the 51 images of the split and 1 others"):
        scored(tmp_path / "b", [whole.iloc[:20], whole.iloc[20:], stranger])
    labelled = pd.DataFrame({"id": [60], "predicted": [0]})  # in the split, but not to be scored
    with pytest.raises(UserError, match="50 of the 51 images of the split and 1 others"):
        scored(tmp_path / "c", [whole, labelled])


def test_a_process_without_images_and_damaged_files(tmp_path: Path) -> None:
    whole = pd.DataFrame({"id": np.arange(50), "predicted": np.arange(50) % 11})
    assert scored(tmp_path / "a", [whole, whole.iloc[:0]]) == scored(tmp_path / "b", [whole])
    assert scored(tmp_path / "c", [whole.assign(rank=0), whole.assign(rank=1)]) == scored(tmp_path / "d", [whole])
    for number, text in enumerate(
        ("", "id\n1\n", "id,predicted\n1,2.5\n", "id,predicted\n1,x\n", "id,predicted\n1,23")
    ):
        file = tmp_path / f"{number}.csv"
        file.write_text(text)
        with pytest.raises(UserError, match="is damaged; delete it and run the same command again"):
            read_assignments([file])
