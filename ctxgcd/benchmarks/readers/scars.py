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
# sha256 of the official training classes (1-based, int64, in order): some mirrors carry other annotations.
TRAIN_CLASSES_SHA256 = "767f488d73eb0c1e2596d600061e48b089b6c85373d13469c9991f296b284b2c"
TRAIN = "devkit/cars_train_annos.mat"
META = "devkit/cars_meta.mat"
# The devkit does not hold the labelled test annotations; people put the separate file in either place.
TEST = ("devkit/cars_test_annos_withlabels.mat", "cars_test_annos_withlabels.mat")


@dataclass(frozen=True, kw_only=True)
class Scars(Reader):
    """Canonical order is that of the annotations."""

    def manifest(self, folder: Path) -> pd.DataFrame:
        require(folder, self.files)
        names, class_ids = _annotations(folder / TRAIN)
        if len(class_ids) == TRAIN_IMAGES and _digest(class_ids) != TRAIN_CLASSES_SHA256:
            raise UserError(
                f"{folder / TRAIN} gives classes that differ from the official ones, as some mirrors do; "
                "take the file from the official devkit"
            )
        paths = _on_disk(folder, "cars_train", names)
        parts = ["train"] * len(paths)
        for test in present(folder, TEST)[:1]:
            names, test_ids = _annotations(test)  # read in any case: a file without labels is a mistake
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
        # The images' names on disk, of 5 or 6 digits, stand in the manifest.
        return self.list_files(folder) + present(folder, ("cars_train", "cars_test"))

    def remarks(self, folder: Path, manifest: pd.DataFrame) -> list[str]:
        stem = Path(manifest["path"][0]).stem
        found = [f"images named with {len(stem)} digits, officially 5"] if len(stem) != 5 else []
        if present(folder, TEST) and not self._test(folder):
            found.append("the test annotations are there, but no cars_test/")
        return found

    def _test(self, folder: Path) -> list[Path]:
        """Return the labelled test annotations, where they and the images are there: the test part is optional."""
        return present(folder, TEST)[:1] if (folder / "cars_test").is_dir() else []


def _read(path: Path, variable: str) -> np.ndarray:
    """Return one variable of a .mat file as a flat array; raises UserError that names the file."""
    from scipy.io import loadmat  # here, because importing it costs more than the rest of this room

    try:
        return np.atleast_1d(loadmat(path, squeeze_me=True)[variable])
    except Exception as error:  # a damaged file can make the reader raise nearly anything
        raise UserError(f"{path} is not the official .mat file ({error}); replace it") from error


def _annotations(path: Path) -> tuple[list[str], list[int]]:
    """Return file names and 0-based classes in the order of the annotations."""
    annotations = _read(path, "annotations")
    if annotations.dtype.names is None or not {"class", "fname"} <= set(annotations.dtype.names):
        raise UserError(f"{path} has no labels (fields 'class' and 'fname'); take the file with labels")
    try:
        numbers = np.array(annotations["class"].tolist(), "float64")
        names = [os.path.basename(str(name)) for name in annotations["fname"]]
    except (TypeError, ValueError) as error:
        raise UserError(
            f"{path} has an annotation that is not one class and one name; take the official file"
        ) from error
    if numbers.shape != (len(names),) or not names:
        raise UserError(f"{path} holds no list of annotations; take the official file")
    if not np.isin(numbers, np.arange(1, CLASSES + 1)).all():
        raise UserError(f"{path} has classes outside 1..{CLASSES}; take the official file")
    return names, (numbers.astype(int) - 1).tolist()


def _digest(class_ids: list[int]) -> str:
    return hashlib.sha256((np.array(class_ids, "<i8") + 1).tobytes()).hexdigest()


def _on_disk(folder: Path, name: str, listed: list[str]) -> list[str]:
    """Return the path of each listed image, with 5 or 6 digits as the files on disk have."""
    if not (folder / name).is_dir():
        raise missing(folder / name)
    there = set(os.listdir(folder / name))
    ways = [[_with_digits(file, digits) for file in listed] for digits in (5, 6)]
    found = [sum(file in there for file in files) for files in ways]
    if any(found):  # the way of most of them: one that is missing is told later, by its name
        return [f"{name}/{file}" for file in ways[int(found[1] > found[0])]]
    raise UserError(
        f"{folder / name} holds images neither as {_with_digits(listed[0], 5)} nor as "
        f"{_with_digits(listed[0], 6)}, the two ways in which they are named; extract the official images there"
    )


def _with_digits(file: str, digits: int) -> str:
    stem, suffix = os.path.splitext(file)
    return f"{int(stem):0{digits}d}{suffix}" if stem.isdecimal() else file


def _titles(path: Path) -> list[str]:
    """Return the class names; their numbers where a mirror lacks the file that names them."""
    if not path.is_file():
        return [str(number) for number in range(1, CLASSES + 1)]
    titles = [str(title) for title in _read(path, "class_names")]
    if len(titles) != CLASSES:
        raise UserError(f"{path} names {len(titles)} classes, expected {CLASSES}; take the official file")
    return titles


SCARS = Scars(
    files=(TRAIN, "cars_train"),
    test_files=(TEST[0], "cars_test"),
    how_to_get=(
        "manual: the official addresses are dead; get cars_train/, cars_test/, devkit/ and "
        "cars_test_annos_withlabels.mat from a mirror (Kaggle's need an account) and put them in this folder"
    ),
    drawn_order=True,
    gigabytes=1.9,
)
