"""Stanford Cars: annotations in .mat files, images numbered with 5 or 6 digits."""

from __future__ import annotations

import hashlib
import os
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd

from ctxgcd.benchmarks.readers.decoding import missing
from ctxgcd.benchmarks.readers.reader import Reader, as_manifest, present, require
from ctxgcd.errors import UserError

CLASSES = 196
TRAIN_IMAGES = 8144
# SHA-256 of the official training classes (1-based, int64, in order), because some mirrors have other annotations.
TRAIN_CLASSES_SHA256 = "767f488d73eb0c1e2596d600061e48b089b6c85373d13469c9991f296b284b2c"
TRAIN = "devkit/cars_train_annos.mat"
META = "devkit/cars_meta.mat"
# The devkit does not contain the labelled test annotations; both locations of the separate file are common.
TEST = ("devkit/cars_test_annos_withlabels.mat", "cars_test_annos_withlabels.mat")


@dataclass(frozen=True, kw_only=True)
class Scars(Reader):
    """The canonical order is that of the annotations."""

    def manifest(self, folder: Path) -> pd.DataFrame:
        require(folder, self.files)
        names, class_ids = _annotations(folder / TRAIN)
        if len(class_ids) == TRAIN_IMAGES and _digest(class_ids) != TRAIN_CLASSES_SHA256:
            raise UserError(
                f"{folder / TRAIN} has other classes than the official file, as on some mirrors; "
                "use the file from the official devkit"
            )
        paths = _on_disk(folder, "cars_train", names)
        parts = ["train"] * len(paths)
        for test in present(folder, TEST)[:1]:
            names, test_ids = _annotations(test)  # always read, so that a file without labels is reported
            if not self._test(folder):
                continue
            paths += _on_disk(folder, "cars_test", names)
            class_ids += test_ids
            parts += ["test"] * len(test_ids)
        titles = _titles(folder / META)
        return as_manifest(paths, class_ids, [titles[class_id] for class_id in class_ids], parts)

    def list_files(self, folder: Path) -> list[Path]:
        return [folder / TRAIN, *present(folder, [META]), *self._test(folder)]

    def stamped(self, folder: Path) -> list[Path]:
        # The manifest contains the images' names on disk, with 5 or 6 digits.
        return self.list_files(folder) + present(folder, ("cars_train", "cars_test"))

    def remarks(self, folder: Path, manifest: pd.DataFrame) -> list[str]:
        stem = Path(manifest["path"][0]).stem
        found = [f"image names have {len(stem)} digits; the official names have 5"] if len(stem) != 5 else []
        if present(folder, TEST) and not self._test(folder):
            found.append("the test annotations exist, but cars_test/ is missing")
        return found

    def _test(self, folder: Path) -> list[Path]:
        """Return the labelled test annotations if they and the images exist; the test part is optional."""
        return present(folder, TEST)[:1] if (folder / "cars_test").is_dir() else []


def _read(path: Path, variable: str) -> np.ndarray:
    """Return one variable of a .mat file as a flat array. Raises UserError for an invalid file."""
    from scipy.io import loadmat  # here, because its import is slow

    try:
        return np.atleast_1d(loadmat(path, squeeze_me=True)[variable])
    except Exception as error:  # loadmat can raise almost any error for a damaged file
        raise UserError(f"{path} is not the official .mat file ({error}); replace it") from error


def _annotations(path: Path) -> tuple[list[str], list[int]]:
    """Return file names and 0-based classes in the order of the annotations."""
    annotations = _read(path, "annotations")
    if annotations.dtype.names is None or not {"class", "fname"} <= set(annotations.dtype.names):
        raise UserError(f"{path} has no labels (fields 'class' and 'fname'); use the file with labels")
    try:
        numbers = np.array(annotations["class"].tolist(), "float64")
        names = [os.path.basename(str(name)) for name in annotations["fname"]]
    except (TypeError, ValueError) as error:
        raise UserError(
            f"{path} has an annotation that is not one class and one name; use the official file"
        ) from error
    if numbers.shape != (len(names),) or not names:
        raise UserError(f"{path} contains no list of annotations; use the official file")
    if not np.isin(numbers, np.arange(1, CLASSES + 1)).all():
        raise UserError(f"{path} has classes outside 1..{CLASSES}; use the official file")
    return names, (numbers.astype(int) - 1).tolist()


def _digest(class_ids: list[int]) -> str:
    return hashlib.sha256((np.array(class_ids, "<i8") + 1).tobytes()).hexdigest()


def _on_disk(folder: Path, name: str, listed: list[str]) -> list[str]:
    """Return the path of each listed image, with 5 or 6 digits as on disk."""
    if not (folder / name).is_dir():
        raise missing(folder / name)
    there = set(os.listdir(folder / name))
    ways = [[_with_digits(file, digits) for file in listed] for digits in (5, 6)]
    found = [sum(file in there for file in files) for files in ways]
    if any(found):  # the more frequent form; missing images are reported later
        return [f"{name}/{file}" for file in ways[int(found[1] > found[0])]]
    raise UserError(
        f"{folder / name} contains no images named as {_with_digits(listed[0], 5)} or "
        f"{_with_digits(listed[0], 6)}; extract the official images there"
    )


def _with_digits(file: str, digits: int) -> str:
    stem, suffix = os.path.splitext(file)
    return f"{int(stem):0{digits}d}{suffix}" if stem.isdecimal() else file


def _titles(path: Path) -> list[str]:
    """Return the class names, or their numbers if the file with the names is missing, as on some mirrors."""
    if not path.is_file():
        return [str(number) for number in range(1, CLASSES + 1)]
    titles = [str(title) for title in _read(path, "class_names")]
    if len(titles) != CLASSES:
        raise UserError(f"{path} has {len(titles)} classes, but expected {CLASSES}; use the official file")
    return titles


SCARS = Scars(
    files=(TRAIN, "cars_train"),
    test_files=(TEST[0], "cars_test"),
    how_to_get=(
        "manual: the official URLs no longer work; get cars_train/, cars_test/, devkit/ and "
        "cars_test_annos_withlabels.mat from a mirror (Kaggle requires an account) and put them in this folder"
    ),
    drawn_order=True,
    gigabytes=1.9,
)
