"""The baseline without training: k-means on frozen features (peers.md)."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ctxgcd.clustering.kmeans import kmeans


def discover(
    unlabelled: NDArray[np.floating],
    test: NDArray[np.floating],
    classes: int,
    *,
    restarts: int,
    seed: int,
    threads: int,
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.floating]]:
    """Cluster D^u; give each image of the test part the nearest centre.

    Args:
        unlabelled, test: frozen features [n, d] of the test view; L2-normalised here.

    Returns:
        Cluster ids of D^u, of the test part, and the centres [classes, d].
    """
    unlabelled, test = (x / np.linalg.norm(x, axis=1, keepdims=True).clip(min=1e-12) for x in (unlabelled, test))
    clusters, centres = kmeans(unlabelled, classes, restarts=restarts, seed=seed, threads=threads)
    # argmin |x - c|^2 = argmax x.c - |c|^2 / 2, in one matrix product
    nearest = (test @ centres.T - (centres**2).sum(axis=1) / 2).argmax(axis=1)
    return clusters, nearest, centres
