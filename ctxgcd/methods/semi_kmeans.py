"""The baseline without training that uses labels: semi-supervised k-means on frozen features (docs/methods.md)."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn.functional import normalize

from ctxgcd.clustering.semi_kmeans import nearest_centre, semi_supervised_kmeans


class SemiKMeans:
    """GCD's semi-supervised k-means, without its training. `p`: the run's resolved parameters."""

    def __init__(self, parameters: dict[str, Any]) -> None:
        self.p = parameters

    def cluster(
        self,
        unlabelled: NDArray[np.floating],
        test: NDArray[np.floating],
        labelled: NDArray[np.floating],
        labels: NDArray[np.int64],
    ) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.floating]]:
        """Cluster D^l and D^u; images of D^l keep their class, test images get the nearest centre.

        Args:
            unlabelled, test, labelled: frozen features [n, d] of the test view; L2-normalised here.
            labels: classes of D^l, int64 [n].

        Returns:
            Cluster ids of D^u, of the test part, and the centres [K, d].
        """
        p = self.p
        of_labelled, of_unlabelled, of_test = (
            normalize(torch.from_numpy(np.ascontiguousarray(x)), dim=1) for x in (labelled, unlabelled, test)
        )
        assigned, centres = semi_supervised_kmeans(
            torch.cat([of_labelled, of_unlabelled]),
            torch.from_numpy(np.concatenate([labels, np.full(len(unlabelled), -1)])),
            p["K"],
            restarts=p["restarts"],
            iterations=p["iterations"],
            seed=p["seed"],
        )
        nearest = nearest_centre(of_test, centres)[0] if len(of_test) else torch.zeros(0, dtype=torch.int64)
        return assigned[len(labels) :].numpy(), nearest.numpy(), centres.numpy()
