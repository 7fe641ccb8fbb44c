"""Pairs of classes that look like one, and classes that look like several, by the trained features."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ctxgcd.clustering.kmeans import kmeans

LEAST_IMAGES = 20  # of a class that is divided into halves
LEAST_SHARE = 0.2  # of the smaller half; a smaller one is a few odd images
RESTARTS = 3
Features = NDArray[np.floating]


@dataclass(frozen=True)
class Pair:
    """Two classes, the larger one first, and the cosine between their mean features."""

    first: int
    second: int
    cosine: float


@dataclass(frozen=True)
class Halves:
    """A class divided in two: the rows of its larger and its smaller half, and the cosine between their means."""

    number: int
    larger: NDArray[np.int64]
    smaller: NDArray[np.int64]
    cosine: float


def similar_pairs(features: Features, classes: NDArray[np.int64], known: int) -> list[Pair]:
    """Return all pairs of classes with images, of which at least one is new, from the largest cosine.

    features: float [n, d], L2-normalised; classes: int [n], below `known` for known classes.
    """
    ids, sizes = np.unique(classes, return_counts=True)
    means = np.stack([_mean(features[classes == c]) for c in ids]) if len(ids) else np.zeros((0, 1))
    cosines = means @ means.T
    size = dict(zip(ids.tolist(), sizes.tolist(), strict=True))
    pairs = []
    for i, j in zip(*np.triu_indices(len(ids), 1), strict=True):
        first, second = sorted((int(ids[i]), int(ids[j])), key=lambda c: -size[c])
        if max(first, second) >= known:
            pairs.append(Pair(first, second, float(cosines[i, j])))
    return sorted(pairs, key=lambda pair: -pair.cosine)


def halves(features: Features, classes: NDArray[np.int64], *, threads: int) -> list[Halves]:
    """Return the classes of at least LEAST_IMAGES images divided by 2-means, from the smallest cosine.

    A class is left out if its smaller half has less than LEAST_SHARE of its images.
    """
    found = []
    for c in np.unique(classes).tolist():
        rows = np.flatnonzero(classes == c)
        if len(rows) < LEAST_IMAGES or len(np.unique(features[rows], axis=0)) < 2:
            continue
        assigned, _ = kmeans(features[rows], 2, restarts=RESTARTS, seed=0, threads=threads)
        smaller, larger = sorted((rows[assigned == half] for half in (1, 0)), key=len)
        if len(smaller) >= LEAST_SHARE * len(rows):
            cosine = float(_mean(features[larger]) @ _mean(features[smaller]))
            found.append(Halves(c, larger, smaller, cosine))
    return sorted(found, key=lambda halves: halves.cosine)


def most_central(features: Features, rows: NDArray[np.int64], count: int) -> list[int]:
    """Return at most `count` of the rows, the nearest to their mean first."""
    order = np.argsort(-(features[rows] @ _mean(features[rows])), kind="stable")
    return [int(row) for row in rows[order[:count]]]


def _mean(rows: Features) -> Features:
    mean = rows.mean(axis=0)
    unit: Features = mean / max(float(np.linalg.norm(mean)), 1e-12)
    return unit
