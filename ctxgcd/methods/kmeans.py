"""The baseline without training: k-means on frozen features (docs/methods.md, "kmeans, gcd, simgcd")."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ctxgcd.clustering.kmeans import kmeans


class KMeans:
    """k-means on D^u; test images get the nearest centre. `p`: the run's resolved parameters."""

    def __init__(self, parameters: dict[str, Any]) -> None:
        self.p = parameters

    def cluster(
        self,
        unlabelled: NDArray[np.floating],
        test: NDArray[np.floating],
        labelled: NDArray[np.floating],
        labels: NDArray[np.int64],
    ) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.floating]]:
        """Cluster D^u.

        Args:
            unlabelled, test: frozen features [n, d] of the test view; L2-normalised here.
            labelled, labels: not used.

        Returns:
            Cluster ids of D^u, of the test part, and the centres [K, d].
        """
        p = self.p
        unlabelled, test = (x / np.linalg.norm(x, axis=1, keepdims=True).clip(min=1e-12) for x in (unlabelled, test))
        clusters, centres = kmeans(unlabelled, p["K"], restarts=p["restarts"], seed=p["seed"], threads=p["threads"])
        # argmin |x - c|^2 = argmax x.c - |c|^2 / 2, in one matrix product
        nearest = (test @ centres.T - (centres**2).sum(axis=1) / 2).argmax(axis=1)
        return clusters, nearest, centres
