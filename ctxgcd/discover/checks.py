"""Checks of the arguments of a discovery, before torch is loaded, so that errors are reported within a second."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from ctxgcd.benchmarks.readers.own_images import images_below, not_read
from ctxgcd.config import SEEDS
from ctxgcd.discover.output import MODEL, Output
from ctxgcd.discover.presets import chosen
from ctxgcd.discover.split import FOLDERS, check_classes, labels_of_folders, make_split, read_labels, stamp
from ctxgcd.errors import UserError
from ctxgcd.models.pretrained import fetch_weights, is_address, weights_state
from ctxgcd.utils.files import require_writable


@dataclass(frozen=True)
class Request:
    """A valid request for a discovery.

    folder, out: the folders of images and results.
    values: the values of the preset, flat, with `seed` and `benchmark` (the folder's name).
    paths: paths of all images, relative to the folder; images: their stamp.
    labels: path -> class name of the labelled images; empty if no image has a label.
    classes: the number of classes; None if it is estimated.
    notes: sentences on skipped files.
    """

    folder: Path
    out: Path
    values: dict[str, Any]
    paths: Sequence[str]
    images: str
    labels: Mapping[str, str]
    classes: int | None
    notes: list[str]

    @cached_property
    def output(self) -> Output:
        """The folder `out` as this request uses it."""
        classes = self.classes or "auto"
        return Output(self.out, {"images": self.images, "labels": self.labels, "classes": classes, **self.values})


def checked_request(
    folder: Path,
    labels: Path | None,
    out: Path,
    *,
    classes: int | None,
    preset: str,
    backbone: str | None,
    weights: str | None,
    size: int | None,
    seed: int,
    balance: float | None = None,
) -> Request:
    """Check the arguments of api.discover, download the weights, and return the request. Raises UserError."""
    if not 0 <= seed < SEEDS:
        raise UserError(f"--seed is {seed}; give an integer from 0 to {SEEDS - 1}")
    if balance is not None and not 0 <= balance < math.inf:
        raise UserError(f"--balance is {balance}; give a number of 0 or more")
    values = chosen(preset, backbone, weights, size) | {"seed": seed, "benchmark": folder.resolve().name}
    if balance is not None:
        values["entropy_weight"] = float(balance)
    _require_weights(values)
    paths = images_below(folder)
    of: dict[str, str] = {}
    notes: list[str] = []
    if str(labels) == FOLDERS:
        of, notes = labels_of_folders(folder, paths)
    elif labels:
        of, notes = read_labels(labels, folder, paths)
    split = make_split(paths, of)
    check_classes(classes, set(of.values()), int((split["role"] == "unlabelled").sum()))
    if not of:
        values["supervised_weight"] = 0.0
    notes += filter(None, [not_read(folder)])
    request = Request(folder, out, values, paths, stamp(folder, paths), of, classes, notes)
    request.output.check()
    _fetch_weights(values)
    return request


def _require_weights(values: Mapping[str, Any]) -> None:
    there, state = weights_state(values["model"], values["weights"], values["sha256"])
    if not there:
        raise UserError(f"weights of {values['backbone']}: {state}")


def _fetch_weights(values: Mapping[str, Any]) -> None:
    if is_address(values["weights"]):
        fetch_weights(
            values["weights"],
            values["sha256"],
            by_hand="download it on another machine and give the file with --weights FILE",
        )


def ask_to_predict(model: Path, folder: Path, threshold: float | None, false_alarms: float | None) -> list[str]:
    """Check the arguments of api.predict; return the paths of the images below the folder. Raises UserError."""
    if threshold is not None and not -1 <= threshold <= 1:
        raise UserError(f"--threshold is {threshold}; give a number between -1 and 1")
    if false_alarms is not None and not 0 <= false_alarms <= 1:
        raise UserError(f"--false-alarms is {false_alarms}; give a share between 0 and 1, such as 0.05")
    if threshold is not None and false_alarms is not None:
        raise UserError("--threshold and --false-alarms exclude each other; give one of them")
    check_model(model)
    return images_below(folder)


def ask_to_export(model: Path, out: Path) -> None:
    """Check the arguments of api.export without its extra packages. Raises UserError."""
    check_model(model)
    require_writable(out)
    if out.resolve().is_relative_to(model.resolve()):
        raise UserError(f"{out} is in the folder of the model; choose a file in another folder")


def ask_for_features(
    folder: Path, model: Path | None, backbone: str | None, weights: str | None, size: int | None
) -> tuple[list[str], dict[str, Any]]:
    """Check the arguments of api.features; return the paths of the images and the values. Raises UserError."""
    if model and (backbone or weights or size):
        raise UserError("model has its own backbone; leave out backbone, weights and size, or model")
    if model:
        check_model(model)
    values = {} if model else chosen("quick", backbone, weights, size)
    if values:
        _require_weights(values)
    paths = images_below(folder)
    if values:
        _fetch_weights(values)
    return paths, values


def check_model(folder: Path) -> None:
    """Raise UserError for a folder without a model of a discovery."""
    if not (folder / MODEL).is_file():
        raise UserError(f"{folder} contains no {MODEL}; give the folder `model` written by `ctxgcd discover`")
