"""k-means with a given number of restarts and a given seed; both change the result."""

from __future__ import annotations

import warnings
from functools import cache

import numpy as np
from numpy.typing import NDArray
from sklearn.cluster import KMeans
from sklearn.exceptions import ConvergenceWarning
from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]

from ctxgcd.errors import UserError


def kmeans(
    features: NDArray[np.floating], clusters: int, *, restarts: int, seed: int, threads: int
) -> tuple[NDArray[np.int64], NDArray[np.floating]]:
    """Return each row's cluster and the centres: scikit-learn's k-means, best of `restarts` starts.

    threads: several are faster, but sum rows in an arbitrary order, so results may differ by rounding.

    features: float [N, d]. Returns int64 [N] in 0..clusters-1 and float [clusters, d]. Raises UserError if
    clusters is not in 1..N, or if a feature is not finite.
    """
    if not np.isfinite(features).all():
        raise UserError("k-means: some features are not finite; check the backbone's weights")
    if not 1 <= clusters <= len(features):
        raise UserError(
            f"k-means has {clusters} clusters, but expected 1 to {len(features)} (the number of images); "
            "change the number of clusters"
        )
    model = KMeans(n_clusters=clusters, n_init=restarts, random_state=seed)
    with threadpool_limits(threads), warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # would be printed for each start of each K
        labels: NDArray[np.int64] = model.fit_predict(features).astype(np.int64)
    if len(np.unique(labels)) < clusters:
        note_empty_clusters()
    return labels, model.cluster_centers_


@cache
def note_empty_clusters() -> None:
    """Print a note on empty clusters, once per process."""
    print("note: k-means has more clusters than there are distinct images, so some clusters are empty", flush=True)
