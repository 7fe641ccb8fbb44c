"""Checks of the arguments of a discovery, before torch is loaded, so that errors are reported within a second."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from ctxgcd.benchmarks.readers.own_images import images_below, not_read
from ctxgcd.config import SEEDS
from ctxgcd.discover.output import FROM_MODEL, MODEL, OPTIONS, Output
from ctxgcd.discover.presets import chosen
from ctxgcd.discover.results import Results
from ctxgcd.discover.split import FOLDERS, check_classes, labels_of_folders, make_split, read_labels, stamp
from ctxgcd.errors import UserError
from ctxgcd.models.pretrained import fetch_weights, is_address, weights_state
from ctxgcd.names import counted
from ctxgcd.utils.files import file_sha256, require_writable

DEFAULTS = {"preset": "quick", "seed": 0}  # of options; the default of others is None


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
    continued: Continued | None = None

    @cached_property
    def output(self) -> Output:
        """The folder `out` as this request uses it."""
        if self.continued and self.continued.unchanged:
            return self.continued.results.output
        asked = {"images": self.images, "labels": self.labels, "classes": self.classes or "auto", **self.values}
        return Output(self.out, asked | (self.continued.asked if self.continued else {}))


@dataclass(frozen=True)
class Continued:
    """What a continued discovery takes from the results in OUT.

    labels: path -> class (key) of the images of the file of labels; corrected: of moved and confirmed images.
    dropped: classes that end, because --classes is smaller than their number.
    unchanged: whether the results in OUT are already those of the request.
    """

    results: Results
    labels: Mapping[str, str]
    corrected: Mapping[str, str]
    dropped: Collection[str]
    unchanged: bool

    @cached_property
    def asked(self) -> dict[str, str]:
        """The part of the request that names where it starts."""
        return {FROM_MODEL: file_sha256(self.results.model / MODEL)}


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
    if results := Results.there(out):
        results.refuse_edited()
        if results.continues:
            given = {"preset": preset, "backbone": backbone, "weights": weights, "crop": size, "seed": seed}
            return continued_request(results, folder, labels, classes, given | {"entropy_weight": balance})
    values = chosen(preset, backbone, weights, size) | {"seed": seed, "benchmark": folder.resolve().name}
    if balance is not None:
        values["entropy_weight"] = float(balance)
    _require_weights(values)
    paths = images_below(folder)
    of, notes = _labels(labels, folder, paths, results)
    split = make_split(paths, of)
    check_classes(classes, set(of.values()), int((split["role"] == "unlabelled").sum()))
    if not of:
        values["supervised_weight"] = 0.0
    notes += filter(None, [not_read(folder)])
    request = Request(folder, out, values, paths, stamp(folder, paths), of, classes, notes)
    return _ready(request)


def _ready(request: Request) -> Request:
    """Check the folder of a request and download its weights. Raises UserError."""
    request.output.check()
    _fetch_weights(request.values)
    return request


def _require_weights(values: Mapping[str, Any]) -> None:
    there, state = weights_state(values["model"], values["weights"], values["sha256"])
    if not there:
        raise UserError(f"weights of {values['backbone']}: {state}")


def _fetch_weights(values: Mapping[str, Any]) -> None:
    if is_address(values["weights"]):
        by_hand = "download it on another machine and give the file with --weights FILE"
        fetch_weights(values["weights"], values["sha256"], by_hand=by_hand)


def _labels(
    labels: Path | None, folder: Path, paths: Sequence[str], results: Results | None
) -> tuple[dict[str, str], list[str]]:
    """Return path -> class name of the labelled images, and notes; results: those in OUT. Raises UserError."""
    if labels is None:
        return {}, []
    if str(labels) == FOLDERS:
        return labels_of_folders(folder, paths)
    of, notes = read_labels(labels, folder, paths)
    if results:
        results.refuse_ids(labels, of)
    return of, notes


def continued_request(
    results: Results, folder: Path, labels: Path | None, classes: int | None, given: Mapping[str, Any]
) -> Request:
    """Return the request of a discovery that continues from the results in OUT. Raises UserError.

    given: the options of the command by the names of their values; those at their default are those of the results.
    """
    asked, state = results.asked, results.state
    values = {key: value for key, value in asked.items() if key not in ("images", "labels", "classes", FROM_MODEL)}
    others = [key for key, value in given.items() if value != DEFAULTS.get(key) and value != values[key]]
    if others:
        names = " and ".join(f"--{OPTIONS[key]}" for key in others)
        raise UserError(
            f"{results.out} has corrections, so the discovery continues from its model, which was trained with "
            f"another {names}; leave {names} out, or give another --out to start anew"
        )
    _require_weights(values)
    every = images_below(folder)
    if results.predicted.keys().isdisjoint(every):
        raise UserError(
            f"{folder} contains no image of {results.out}, from which the discovery continues; give the folder of its "
            "images, or another --out to start anew"
        )
    of, notes = _labels(labels, folder, every, results) if labels else (asked["labels"], [])
    paths = [path for path in every if path not in state.out]
    there_now = set(paths)
    of = {path: name for path, name in of.items() if path in there_now}
    if gone := len(state.labels.keys() - there_now):
        notes.append(f"{counted(gone, 'corrected image')} {'is' if gone == 1 else 'are'} not in {folder} any more")
    notes += filter(None, [not_read(folder)])
    keys = {name: state.key_of(name) for name in of.values()}
    corrected = {path: key for path in state.labels if path in there_now and (key := state.label_of(path))}
    labelled = {path: keys[name] for path, name in of.items() if path not in corrected}
    found = {**labelled, **corrected}
    # A discovery without any label has no supervised terms.
    values["supervised_weight"] = chosen(values["preset"], None, None, None)["supervised_weight"] if found else 0.0
    alive = [*state.alive, *(key for key in dict.fromkeys(keys.values()) if key not in state.alive)]
    wanted = len(alive) if classes is None else classes
    check_classes(wanted, {state.names.get(key, key) for key in found.values()}, len(paths) - len(found))
    sizes = Counter(results.shown.values())
    free = sorted((key for key in alive if key not in found.values()), key=lambda key: (key in state.named, sizes[key]))
    dropped = free[: max(0, len(alive) - wanted)]
    images = stamp(folder, paths)
    same = (images, of, state.digest, wanted) == (
        *(asked[key] for key in ("images", "labels")),
        results.record["taken"],
        len(results.classes.keys),
    )
    continued = Continued(results, labelled, corrected, dropped, same)
    return _ready(Request(folder, results.out, values, paths, images, of, wanted, notes, continued))


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
