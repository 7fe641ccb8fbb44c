"""Clustering accuracy: v2 (the tables' number), v2b (balanced) and v1.

Source: GCD (CVPR 2022) and SimGCD (ICCV 2023), the evaluation protocol (equation `v2` of docs/methods.md).
Predictions and true classes are non-negative ints, one per image; `old` says, per image, whether its true class
is in the Old set. Every function raises UserError for empty, unequally long, negative or non-integer input.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.optimize import linear_sum_assignment

from ctxgcd.errors import UserError

Ids = NDArray[np.int64]
Mask = NDArray[np.bool_]

# Above this, clusters and classes are renumbered separately before they are counted, because the square table of the
# largest id would not fit into memory.
DENSE_IDS = 5000


@dataclass(frozen=True)
class Score:
    """One metric in percent, over all images and over those of Old and New classes; None if undefined."""

    all: float
    old: float | None = None
    new: float | None = None


def as_ids(values: ArrayLike, what: str) -> Ids:
    """Return `values` as int64 [n]. Raises UserError unless they are a non-empty list of non-negative integers."""
    array = np.asarray(values)
    if array.size == 0:
        raise UserError(f"{what}: there are no images; give at least one image to score")
    if array.ndim != 1 or array.dtype.kind not in "iu":
        raise UserError(
            f"{what}: found dtype {array.dtype} and shape {array.shape}, but expected one integer id per image"
        )
    if array.min() < 0:
        raise UserError(f"{what}: the id {array.min()} is negative; give non-negative ids")
    return array.astype(np.int64)


def _pair(predicted: ArrayLike, true: ArrayLike) -> tuple[Ids, Ids]:
    p, y = as_ids(predicted, "predictions"), as_ids(true, "true classes")
    if len(p) != len(y):
        raise UserError(f"there are {len(p)} predictions and {len(y)} true classes, but expected one of each per image")
    return p, y


def checked(predicted: ArrayLike, true: ArrayLike, old: ArrayLike) -> tuple[Ids, Ids, Mask]:
    """Return the three inputs as arrays of one length. Raises UserError if a class is both Old and New."""
    p, y = _pair(predicted, true)
    mask = np.asarray(old)
    if mask.shape != y.shape or mask.dtype != np.bool_:
        raise UserError(
            f"old: found dtype {mask.dtype} and shape {mask.shape}, but expected a boolean for each of {len(y)} images"
        )
    both = np.intersect1d(y[mask], y[~mask])
    if both.size:
        raise UserError(f"class {both[0]} is marked both Old and New; correct the class list")
    return p, y, mask


def contingency(predicted: ArrayLike, true: ArrayLike) -> Ids:
    """Return w[p, y], the number of images of class y in cluster p: int64 [D, D], D = 1 + largest id."""
    p, y = _pair(predicted, true)
    d = int(max(p.max(), y.max())) + 1
    table: Ids = np.bincount(p * d + y, minlength=d * d).reshape(d, d)
    return table


def assign(w: Ids) -> Ids:
    """Return each cluster's class, int64 [D]: the one-to-one assignment with the largest matched count."""
    _, classes = linear_sum_assignment(w, maximize=True)
    assigned: Ids = classes.astype(np.int64)
    return assigned


def _matched(p: Ids, y: Ids) -> Mask:
    """Return, per image, whether its cluster is assigned to its class."""
    if max(p.max(), y.max()) >= DENSE_IDS:
        (clusters, p), (classes, y) = (np.unique(ids, return_inverse=True) for ids in (p, y))
        w = np.bincount(p * len(classes) + y, minlength=len(clusters) * len(classes)).reshape(len(clusters), -1)
        class_of = np.full(len(clusters), -1)
        given, its = linear_sum_assignment(w, maximize=True)
        class_of[given] = its
        apart: Mask = class_of[p] == y
        return apart
    matched: Mask = assign(contingency(p, y))[p] == y
    return matched


def percent(values: NDArray[np.floating] | Mask) -> float | None:
    """Return 100 times the mean, or None if there is no value."""
    return 100 * float(values.mean()) if values.size else None


def split(values: NDArray[np.floating] | Mask, old: Mask) -> Score:
    """Return the mean of `values` in percent, over all, Old and New images."""
    return Score(100 * float(values.mean()), percent(values[old]), percent(values[~old]))


def v2(predicted: ArrayLike, true: ArrayLike, old: ArrayLike) -> Score:
    """Return the share of matched images under one assignment over all images, used for Old and New too."""
    p, y, mask = checked(predicted, true, old)
    return split(_matched(p, y), mask)


def v2b(predicted: ArrayLike, true: ArrayLike, old: ArrayLike) -> Score:
    """Return the mean over classes of each class's matched share, under v2's assignment."""
    p, y, mask = checked(predicted, true, old)
    _, first, inverse, counts = np.unique(y, return_index=True, return_inverse=True, return_counts=True)
    recall = np.bincount(inverse, weights=_matched(p, y)) / counts
    return split(recall, mask[first])


def v1(predicted: ArrayLike, true: ArrayLike, old: ArrayLike) -> Score:
    """Return the matched shares under separate assignments for Old and New images, which is optimistic."""
    p, y, mask = checked(predicted, true, old)
    matched = np.empty(len(y), dtype=np.bool_)
    for side in (mask, ~mask):
        if side.any():
            matched[side] = _matched(p[side], y[side])
    return split(matched, mask)
