"""Estimation of the number of classes K from frozen features and the labels of D^l only (GCD, CVPR 2022)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy.optimize import minimize_scalar

from ctxgcd.clustering.kmeans import kmeans
from ctxgcd.errors import UserError
from ctxgcd.evaluation.accuracy import v2
from ctxgcd.utils.files import write_rows, write_text

SCHEMA = 1


def estimate_k(
    features: NDArray[np.floating], labels: NDArray[np.int64], *, most: int, restarts: int, seed: int, threads: int
) -> tuple[int, dict[int, float]]:
    """Return the K whose k-means on all rows has the highest accuracy on the labelled rows, and every K tried.

    The accuracy (v2, percent) is computed on D^l only, with its own assignment. K is searched over the integers in
    (|Old|, most] by a bounded scalar search, so not all are tried; of equal values, the smallest is returned.

    Args:
        features: float [N, d], of D^l and D^u; L2-normalised here.
        labels: int64 [N], the class of an image of D^l, -1 for D^u.
        most: the largest K, limited to N.
        restarts, seed, threads: parameters of every k-means.

    Raises:
        UserError: there is no K to try.
    """
    labelled = labels >= 0
    least, most = len(np.unique(labels[labelled])) + 1, min(most, len(features))
    if not labelled.any() or least > most:
        raise UserError(
            f"K cannot be estimated: there are {least - 1} labelled classes, and the largest K to try is {most}; "
            "label more images, or increase estimate.most in params.yaml"
        )
    rows = features / np.linalg.norm(features, axis=1, keepdims=True).clip(min=1e-12)
    true, old = labels[labelled], np.ones(int(labelled.sum()), dtype=np.bool_)
    tried: dict[int, float] = {}

    def loss(point: float) -> float:
        clusters = int(np.clip(round(point), least, most))
        if clusters not in tried:
            assigned, _ = kmeans(rows, clusters, restarts=restarts, seed=seed, threads=threads)
            tried[clusters] = v2(assigned[labelled], true, old).all
            print(f"K = {clusters}: accuracy {tried[clusters]:.1f}% on the labelled images", flush=True)
        return -tried[clusters]

    if least == most:
        loss(least)
    else:
        minimize_scalar(loss, bounds=(least, most), method="bounded", options={"xatol": 0.5})
    return max(sorted(tried), key=lambda clusters: tried[clusters]), tried


def estimate_to(
    json_path: Path, csv_path: Path, split: pd.DataFrame, features: NDArray[np.floating], *, code: str, **how: Any
) -> None:
    """Write the estimate with its parameters (JSON) and every K tried with its accuracy (CSV).

    features: float [images, d] by image id, the test part included, which is not used. how: as for estimate_k.
    code: hash of the estimation code, stored in the JSON.
    """
    training = split[split.part == "train"].sort_values("id")
    labels = training.class_id.where(training.role == "labelled", -1).to_numpy("int64")
    clusters, tried = estimate_k(features[training.id.to_numpy()], labels, **how)
    write_rows(csv_path, ("K", "accuracy"), ({"K": n, "accuracy": tried[n]} for n in sorted(tried)))
    content = {"schema": SCHEMA, "K": clusters, "accuracy": tried[clusters], "tried": len(tried), **how, "code": code}
    write_text(json_path, json.dumps(content, indent=1) + "\n")
    print(f"estimated K: {clusters}", flush=True)
