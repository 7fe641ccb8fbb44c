"""What is asked of a discovery, judged before torch is loaded: a mistake is told in a second."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from ctxgcd.benchmarks.readers.own_images import images_below, not_read
from ctxgcd.config import SEEDS
from ctxgcd.discover.output import MODEL, Output
from ctxgcd.discover.presets import chosen
from ctxgcd.discover.split import check_classes, make_split, read_labels, stamp
from ctxgcd.errors import UserError
from ctxgcd.models.pretrained import fetch_weights, is_address, weights_state
from ctxgcd.utils.files import require_writable


@dataclass(frozen=True)
class Asked:
    """A discovery that can begin.

    folder, out: of the images, and of what is made.
    values: of the settings, flat; `seed` and `benchmark`, the folder's name, with them.
    paths: of all images, below the folder; images: their stamp.
    labels: path -> class name of the labelled ones.
    classes: their number, None where it is to be estimated.
    notes: sentences on what is left out.
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


def ask(
    folder: Path,
    labels: Path,
    out: Path,
    *,
    classes: int | None,
    preset: str,
    backbone: str | None,
    weights: str | None,
    size: int | None,
    seed: int,
) -> Asked:
    """Return what api.discover describes, its weights fetched, or refuse what cannot be done."""
    if not 0 <= seed < SEEDS:
        raise UserError(f"--seed is {seed}; give a whole number from 0 to {SEEDS - 1}")
    values = chosen(preset, backbone, weights, size) | {"seed": seed, "benchmark": folder.resolve().name}
    there, said = weights_state(values["weights"], values["sha256"])
    if not there:
        raise UserError(f"weights of {values['backbone']}: {said}")
    paths = images_below(folder)
    of, notes = read_labels(labels, folder, paths)
    split = make_split(paths, of)
    check_classes(classes, set(of.values()), int((split["role"] == "unlabelled").sum()))
    notes += filter(None, [not_read(folder)])
    asked = Asked(folder, out, values, paths, stamp(folder, paths), of, classes, notes)
    asked.output.check()
    if is_address(values["weights"]):
        fetch_weights(
            values["weights"], values["sha256"], by_hand="download it elsewhere and name it with --weights FILE"
        )
    return asked


def ask_to_predict(model: Path, folder: Path, threshold: float | None) -> list[str]:
    """Return the paths of the images below a folder, or refuse what `predict` cannot do."""
    if threshold is not None and not -1 <= threshold <= 1:
        raise UserError(f"--threshold is {threshold}; a score lies between -1 and 1")
    check_model(model)
    return images_below(folder)


def ask_to_export(model: Path, out: Path) -> None:
    """Refuse what `export` cannot do, as far as that is known without the packages that it needs."""
    check_model(model)
    require_writable(out)
    if out.resolve().is_relative_to(model.resolve()):
        raise UserError(f"{out} lies in the folder of the model; name a file elsewhere")


def check_model(folder: Path) -> None:
    """Refuse a folder that holds no model of a discovery."""
    if not (folder / MODEL).is_file():
        raise UserError(f"{folder} holds no {MODEL}; name the folder `model` that `ctxgcd discover` has written")
