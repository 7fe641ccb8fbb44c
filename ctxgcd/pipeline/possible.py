"""Runs that their images refuse: more classes or larger batches than there are images."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING, Any

from ctxgcd.catalogue.entries import METHODS
from ctxgcd.config import completed
from ctxgcd.errors import UserError
from ctxgcd.pipeline.identity import ESTIMATED

if TYPE_CHECKING:
    import pandas as pd


def check_k(resolved: dict[str, Any], split: pd.DataFrame) -> None:
    """Refuse a K that the split of a run cannot have."""
    labelled, k = split.loc[split.role == "labelled", "class_id"], resolved["K"]
    where = f"benchmark {resolved['benchmark']}, row {resolved['row']}: K is {k}"
    if (classes := int(labelled.max()) + 1) > k:
        raise UserError(f"{where}, but the labelled images have {classes} classes; give a K of at least that")
    by_clusters = METHODS[resolved["method"]].ending == "semi-supervised k-means"
    pinned = labelled.nunique() if by_clusters else 0  # clusters that labelled images fill
    if k - pinned > (unlabelled := int((split.role == "unlabelled").sum())):
        raise UserError(f"{where}, too many for {unlabelled} unlabelled images; give a smaller K")


def check_possible(resolved: dict[str, Any], images: int) -> None:
    """Refuse a run that needs more training images than there are.

    images: number of training images, D^l and D^u together.
    """
    where = f"benchmark {resolved['benchmark']}, row {resolved['row']}"
    if resolved["K"] != ESTIMATED and resolved["K"] > images:
        raise UserError(
            f"{where}: K is {resolved['K']} but there are only {images} training images; give fewer classes"
        )
    entry = METHODS[resolved["method"]]
    if entry.trains and resolved["batch_size"] > images:
        raise UserError(
            f"{where}: batch_size {resolved['batch_size']} exceeds the {images} training images, so no step would be "
            "made; give a smaller batch_size"
        )
    if fault := entry.too_few(completed(resolved), images):
        raise UserError(f"{where}: {fault}")


def check_asked(benchmark: str, images: int) -> None:
    """Refuse the first impossible run of a benchmark that the workflow leaves in the environment variable CTXGCD_RUNS.

    So a run that its training would refuse is refused before any image is packed.
    """
    for resolved in json.loads(os.environ.get("CTXGCD_RUNS", "[]")):
        if resolved["benchmark"] == benchmark:
            check_possible(resolved, images)
