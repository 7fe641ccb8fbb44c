"""A check of a discovery on its labels: half of the labelled classes are hidden and discovered again."""

from __future__ import annotations

import io
from collections.abc import Mapping
from contextlib import redirect_stdout
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import normalize

from ctxgcd.benchmarks.split import trial_split
from ctxgcd.clustering.kmeans import kmeans
from ctxgcd.clustering.semi_kmeans import semi_supervised_kmeans
from ctxgcd.evaluation.accuracy import v2
from ctxgcd.methods.build import method_of
from ctxgcd.pipeline.few_images import fitted
from ctxgcd.training.in_memory import train_in_memory

LEAST_CLASSES, LEAST_IMAGES = 4, 4  # labelled classes, and labelled images of each
RESTARTS, ITERATIONS = 10, 200  # of the clusterings
OWN = "this method"


def skipped(values: Mapping[str, Any], split: pd.DataFrame) -> str:
    """Return why there is no check, or an empty string."""
    if not (split["role"] == "labelled").any():
        return "no image has a label"
    if not values["view_bank"]:
        return f"a training with the preset {values['preset']} takes too long"
    if (enough := checked_images(split)["class_id"].nunique()) < LEAST_CLASSES:
        return (
            f"it needs {LEAST_CLASSES} classes with at least {LEAST_IMAGES} labelled images each, and there "
            f"{'is' if enough == 1 else 'are'} {enough}"
        )
    return ""


def checked_images(split: pd.DataFrame) -> pd.DataFrame:
    """Return the labelled images of the classes that have enough of them, by id."""
    labelled = split[split["role"] == "labelled"]
    sizes = labelled.groupby("class_id")["id"].transform("size")
    return labelled[sizes >= LEAST_IMAGES].sort_values("id")


def hidden_half(split: pd.DataFrame) -> tuple[pd.DataFrame, Tensor]:
    """Return the split of the check by its own ids, and the id of each of its images in the discovery."""
    images = checked_images(split)
    trial = trial_split(images, seed=0, labelled_share=0.5).sort_values("id")
    return trial, torch.tensor(images["id"].to_numpy())


def check(
    values: Mapping[str, Any], trial: pd.DataFrame, bank: Tensor, test_view: Tensor, frozen: Tensor, weights: Path
) -> dict[str, Any]:
    """Train on the split of the check and score its unlabelled images, beside clusterings of the frozen features.

    All of them are given the true number of classes of the split, the hidden ones included.

    Args:
        values: the values of the preset, before they are adapted to a number of images.
        trial: split of `hidden_half`.
        bank, test_view: the trunk's outputs for the views of its images on the device, [V, n, ...] and [n, ...].
        frozen: their features before training, float32 [n, d] on the host.
        weights: the backbone's prepared weights.

    Returns:
        `images` (scored), `classes`, `hidden` (classes), `hidden_images` (numbers) and `scores`, the accuracy (v2,
        percent) of All, Old and New images by the name of the method, OWN first.
    """
    classes, device = int(trial["class_id"].nunique()), test_view.device
    parameters, _ = fitted({**values, "K": classes, "K_source": "given"}, len(trial))
    labels = torch.tensor(trial["class_id"].where(trial["role"] == "labelled", -1).to_numpy())
    own = trial[trial["role"] == "unlabelled"]
    method, ids = method_of(parameters), torch.tensor(own["id"].to_numpy(), device=device)
    row, inputs = train_in_memory(method, labels.to(device), bank, test_view, weights, "check on your labels")
    with redirect_stdout(io.StringIO()):
        found = method.discover(
            row.network, partial(inputs.features, row.network), inputs.labels, ids, ids[:0]
        ).unlabelled.cpu()
    assigned = {OWN: found.numpy(), **clusterings(frozen, labels, classes, values["seed"])}
    old = own["old"].to_numpy().astype(np.bool_)
    scores = {name: v2(of, own["class_id"].to_numpy(), old) for name, of in assigned.items()}
    return {
        "images": len(own),
        "classes": classes,
        "hidden": int(own.loc[~old, "class_id"].nunique()),
        "hidden_images": int((~old).sum()),
        "scores": {name: {"all": of.all, "old": of.old, "new": of.new} for name, of in scores.items()},
    }


def clusterings(features: Tensor, labels: Tensor, classes: int, seed: int) -> dict[str, NDArray[np.int64]]:
    """Return the clusters of the unlabelled images by k-means and by semi-supervised k-means.

    features: float [n, d] on the host; labels: int64 [n], -1 for unlabelled images.
    """
    rows, free = normalize(features.float(), dim=1), labels < 0
    found, _ = kmeans(rows[free].numpy(), classes, restarts=RESTARTS, seed=seed, threads=1)
    with redirect_stdout(io.StringIO()):
        semi, _ = semi_supervised_kmeans(rows, labels, classes, restarts=RESTARTS, iterations=ITERATIONS, seed=seed)
    return {"k-means": found, "semi-supervised k-means": semi[free].numpy()}
