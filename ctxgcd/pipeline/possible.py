"""Checks that a run has enough images for its classes and batches."""

from __future__ import annotations

import importlib.util
import json
import os
from typing import TYPE_CHECKING, Any

from ctxgcd.catalogue.entries import METHODS
from ctxgcd.config import completed
from ctxgcd.errors import UserError
from ctxgcd.pipeline.identity import ESTIMATED

if TYPE_CHECKING:
    import pandas as pd

PACKAGES = {"infomap": "'infomap>=2.15,<3'"}  # what `pip install` installs, as the extra of the same name


def check_k(resolved: dict[str, Any], split: pd.DataFrame) -> None:
    """Raise UserError for a K that does not fit the split of a run."""
    labelled, classes = split.loc[split.role == "labelled", "class_id"], resolved["K"]
    where = f"benchmark {resolved['benchmark']}, row {resolved['row']}: K is {classes}"
    if (known := int(labelled.max()) + 1 if len(labelled) else 0) > classes:
        raise UserError(f"{where}, but the labelled images have {known} classes; give a K of at least {known}")
    by_clusters = METHODS[resolved["method"]].ending == "semi-supervised k-means"
    pinned = labelled.nunique() if by_clusters else 0  # clusters that labelled images fill
    if classes - pinned > (unlabelled := int((split.role == "unlabelled").sum())):
        raise UserError(f"{where}, which is too large for {unlabelled} unlabelled images; give a smaller K")


def missing_package(method: str) -> str:
    """Return what a method's package that is not installed is and how to get it, or an empty string."""
    package = METHODS[method].package
    if not package or importlib.util.find_spec(package):
        return ""
    return (
        f"{method} requires the package {package}, which is missing; run `pip install {PACKAGES[package]}`, or leave "
        "the row out of `rows` and `rows_of` of params.yaml"
    )


def check_installed(resolved: dict[str, Any]) -> None:
    """Raise UserError for a run whose method requires a package that is not installed."""
    if fault := missing_package(resolved["method"]):
        raise UserError(f"benchmark {resolved['benchmark']}, row {resolved['row']}: {fault}")


def check_possible(resolved: dict[str, Any], images: int) -> None:
    """Raise UserError for a run that needs more training images than available.

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
            f"{where}: batch_size {resolved['batch_size']} exceeds the {images} training images, so no batch is "
            "complete; give a smaller batch_size"
        )
    if fault := entry.too_few(completed(resolved), images):
        raise UserError(f"{where}: {fault}")


def check_requested(benchmark: str, images: int) -> None:
    """Raise UserError for the first impossible run of a benchmark in the environment variable CTXGCD_RUNS.

    The workflow sets the variable, so that an impossible run is refused before any image is packed.
    """
    for resolved in json.loads(os.environ.get("CTXGCD_RUNS", "[]")):
        if resolved["benchmark"] == benchmark:
            check_possible(resolved, images)
