"""What is asked of a discovery, judged before torch is loaded: a mistake is told in a second."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ctxgcd.benchmarks.own import images_below, not_read
from ctxgcd.benchmarks.weights import weights_state
from ctxgcd.discover.settings import chosen
from ctxgcd.discover.split import check_classes, make_split, read_labels, stamp
from ctxgcd.errors import UserError
from ctxgcd.files import read_object, write_text

FILE = "asked.json"  # in OUT/work: what the discovery there was asked for
RESULTS = ("predictions.csv", "report.html", "unreadable.csv", "model")
MODEL = "model.pt"  # in OUT/model


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

    def begin(self) -> None:
        """Make `out` the place of this discovery; results of another one, which is told, are deleted."""
        file = self.out / "work" / FILE
        if self.out.exists() and not self.out.is_dir():
            raise UserError(f"{self.out} is a file; name a new or an empty folder with --out")
        if self.out.is_dir() and any(self.out.iterdir()) and not file.is_file():
            raise UserError(f"{self.out} holds other files; name a new or an empty folder with --out")
        asked = {"images": self.images, "labels": self.labels, "classes": self.classes or "auto", **self.values}
        asked = json.loads(json.dumps(asked))
        if file.is_file():
            try:
                before = read_object(file)
            except UserError:
                before = {}
            if before == asked:
                return
            changed = [key for key in asked if before.get(key) != asked[key]]
            print(
                f"{self.out} holds a discovery with other {', '.join(changed)}; its results are deleted, and what of "
                "its images and features still serves is kept",
                flush=True,
            )
            for made in (self.out / name for name in RESULTS):
                shutil.rmtree(made) if made.is_dir() else made.unlink(missing_ok=True)
        write_text(file, json.dumps(asked, indent=1) + "\n")


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
    """Return what api.discover describes, or refuse what cannot be done."""
    values = chosen(preset, backbone, weights, size) | {"seed": seed, "benchmark": folder.resolve().name}
    there, said = weights_state(values["weights"], values["sha256"])
    if not there:
        raise UserError(f"weights of {values['backbone']}: {said}")
    paths = images_below(folder)
    of, notes = read_labels(labels, folder, paths)
    split = make_split(paths, of)
    check_classes(classes, len(set(of.values())), int((split["role"] == "unlabelled").sum()))
    notes += filter(None, [not_read(folder)])
    return Asked(folder, out, values, paths, stamp(folder, paths), of, classes, notes)


def ask_to_predict(model: Path, folder: Path, threshold: float | None) -> list[str]:
    """Return the paths of the images below a folder, or refuse what `predict` cannot do."""
    if threshold is not None and not -1 <= threshold <= 1:
        raise UserError(f"--threshold is {threshold}; a score lies between -1 and 1")
    check_model(model)
    return images_below(folder)


def check_model(folder: Path) -> None:
    """Refuse a folder that holds no model of a discovery."""
    if not (folder / MODEL).is_file():
        raise UserError(f"{folder} holds no {MODEL}; name the folder `model` that `ctxgcd discover` has written")
