"""Every score of one set of predictions, and the numbers that describe the clusters."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ctxgcd.errors import UserError
from ctxgcd.evaluation.accuracy import Ids, Score, as_ids, checked, split, v1, v2, v2b

# Rows of score_all in addition to names.METRICS: a count, and w_old in percent.
HELPERS = ("empty_clusters", "old_share")


def nmi(predicted: ArrayLike, true: ArrayLike, old: ArrayLike) -> Score:
    """Return the normalised mutual information in percent (arithmetic mean); a property of the whole set.

    100 if both partitions have a single part, 0 if only one of them has.
    """
    p, y, _ = checked(predicted, true, old)
    joint = _occupied(p, y) / len(p)
    entropies = [_entropy(joint.sum(axis=axis)) for axis in (0, 1)]
    mean = sum(entropies) / 2
    return Score(100 * (sum(entropies) - _entropy(joint[joint > 0])) / mean if mean > 0 else 100.0)


def ari(predicted: ArrayLike, true: ArrayLike, old: ArrayLike) -> Score:
    """Return the adjusted Rand index in percent, negative below chance; a property of the whole set."""
    p, y, _ = checked(predicted, true, old)
    table = _occupied(p, y)
    together, in_p, in_y = (_pairs(counts) for counts in (table, table.sum(axis=1), table.sum(axis=0)))
    expected = in_p * in_y / max(_pairs(np.array([len(p)])), 1)
    most = (in_p + in_y) / 2
    return Score(100 * (together - expected) / (most - expected) if most != expected else 100.0)


def _occupied(p: Ids, y: Ids) -> Ids:
    """Return the counts of clusters against classes, without empty ones."""
    clusters, classes = (np.unique(ids, return_inverse=True)[1] for ids in (p, y))
    shape = (clusters.max() + 1, classes.max() + 1)
    counts: Ids = np.bincount(clusters * shape[1] + classes, minlength=shape[0] * shape[1]).reshape(shape)
    return counts


def _entropy(shares: NDArray[np.float64]) -> float:
    return float(-(shares * np.log(shares)).sum())


def _pairs(counts: Ids) -> float:
    """Return the number of pairs within groups of these sizes."""
    return float((counts.astype(np.float64) * (counts - 1) / 2).sum())


def purity(predicted: ArrayLike, true: ArrayLike, old: ArrayLike) -> Score:
    """Return the share of images whose class is the most frequent one of their cluster (ties: the lowest id)."""
    p, y, mask = checked(predicted, true, old)
    cells, cell, counts = np.unique(np.stack([p, y], axis=1), axis=0, return_inverse=True, return_counts=True)
    # Sorted by cluster, decreasing count and class: the first cell of each cluster is its most frequent class.
    order = np.lexsort((cells[:, 1], -counts, cells[:, 0]))
    _, first = np.unique(cells[order, 0], return_index=True)
    common = np.zeros(len(cells), dtype=np.bool_)
    common[order[first]] = True
    return split(common[cell.reshape(-1)], mask)


def histogram(predicted: ArrayLike, clusters: int) -> Ids:
    """Return the number of images in each cluster, int64 [clusters]. Raises UserError for a larger id."""
    p = as_ids(predicted, "predictions")
    if p.max() >= clusters:
        raise UserError(f"predictions: the id {p.max()} is not below K = {clusters}; give the K of the run")
    return np.bincount(p, minlength=clusters).astype(np.int64)


def empty_clusters(predicted: ArrayLike, clusters: int) -> int:
    """Return the number of empty clusters."""
    return int((histogram(predicted, clusters) == 0).sum())


def check_identity(score: Score, old_share: float, tolerance: float = 1e-9) -> None:
    """Raise ArithmeticError unless All = w_old*Old + (1-w_old)*New.

    score: in percent. old_share: w_old, in 0..1. tolerance: in percentage points. Holds for v2 and
    v1 by construction, not for v2b. Old or New without images has weight 0.
    """
    expected = old_share * (score.old or 0.0) + (1 - old_share) * (score.new or 0.0)
    if not abs(score.all - expected) <= tolerance:
        raise ArithmeticError(f"All is {score.all}, but {expected} follows from Old, New and w_old {old_share}")


METRIC_FUNCTIONS = {"v2": v2, "v2b": v2b, "v1": v1, "nmi": nmi, "ari": ari, "purity": purity}


def score_all(predicted: ArrayLike, true: ArrayLike, old: ArrayLike, clusters: int) -> list[dict[str, Any]]:
    """Return one row {metric, n, all, old, new} for each of names.METRICS, then for each of HELPERS.

    Metrics are in percent, None if undefined; n is the number of images.
    """
    p, y, mask = checked(predicted, true, old)
    scores = {name: function(p, y, mask) for name, function in METRIC_FUNCTIONS.items()}
    check_identity(scores["v2"], float(mask.mean()))
    scores["empty_clusters"] = Score(empty_clusters(p, clusters))
    scores["old_share"] = Score(100 * float(mask.mean()))
    return [
        {"metric": name, "n": len(y), "all": score.all, "old": score.old, "new": score.new}
        for name, score in scores.items()
    ]
