"""Checks that a run has the images, classes and packages that it requires."""

from __future__ import annotations

import importlib
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


def missing_package(method: str) -> str:
    """Return why a method's package cannot be used and what to do, or an empty string."""
    package = METHODS[method].package
    if not package:
        return ""
    try:
        importlib.import_module(package)
    except Exception as error:  # of the package's own code
        absent = isinstance(error, ModuleNotFoundError) and error.name == package
        why = "which is missing" if absent else f"which cannot be imported ({type(error).__name__}: {error})"
        install = "install " if absent else "install --force-reinstall "
        return (
            f"{method} requires the package {package}, {why}; run `pip {install}{PACKAGES[package]}`, or leave the row "
            "out of `rows` and `rows_of` of params.yaml"
        )
    return ""


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


def check_k(resolved: dict[str, Any], split: pd.DataFrame) -> None:
    """Raise UserError for a K that does not fit the split of a run; an estimated one is not known yet."""
    if (classes := resolved["K"]) == ESTIMATED:
        return
    entry, labelled = METHODS[resolved["method"]], split.loc[split.role == "labelled", "class_id"]
    where = f"benchmark {resolved['benchmark']}, row {resolved['row']}: K is {classes}"
    known = int(labelled.max()) + 1 if len(labelled) else 0
    if classes < (least := known + entry.needs_new):
        more = f" and {resolved['method']} requires a New class" * entry.needs_new
        raise UserError(f"{where}, but the labelled images have {known} classes{more}; give a K of at least {least}")
    pinned = labelled.nunique() if entry.ending == "semi-supervised k-means" else 0  # clusters of labelled images
    if classes - pinned > (unlabelled := int((split.role == "unlabelled").sum())):
        raise UserError(f"{where}, which is too large for {unlabelled} unlabelled images; give a smaller K")


def check_split(resolved: dict[str, Any], split: pd.DataFrame) -> None:
    """Raise UserError for a run with too many classes, or too few images or classes, for a split."""
    check_possible(resolved, int((split.part == "train").sum()))
    check_k(resolved, split)


def check_requested(benchmark: str, split: pd.DataFrame) -> None:
    """Raise UserError for the first run of a benchmark in the environment variable CTXGCD_RUNS that is impossible.

    The workflow sets the variable, so that an impossible run is refused before any image is packed.
    """
    for resolved in json.loads(os.environ.get("CTXGCD_RUNS", "[]")):
        if resolved["benchmark"] == benchmark:
            check_split(resolved, split)
