"""One folder of images for each class: Herbarium 19 and ImageNet."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pandas as pd

from ctxgcd.benchmarks.readers.decoding import missing
from ctxgcd.benchmarks.readers.reader import Reader, as_manifest, present
from ctxgcd.errors import UserError

SUFFIXES = (".jpg", ".jpeg", ".png", ".ppm", ".bmp", ".pgm", ".tif", ".tiff", ".webp")  # as in torchvision


@dataclass(frozen=True, kw_only=True)
class ClassFolders(Reader):
    """Class ids follow the sorted names of all training folders, so all `classes` folders must exist.

    `files` and `test_files` are the accepted names of the folders of the two parts, the official name first.
    """

    classes: int

    def manifest(self, folder: Path) -> pd.DataFrame:
        found = self.parts(folder, self.files)
        if not found:
            raise missing(folder / self.files[0])
        names = class_names(found[0])
        if len(names) != self.classes:
            raise UserError(
                f"{found[0]} contains {len(names)} class folders, but expected {self.classes}, because class ids "
                "follow the sorted names of all folders; restore the official folders"
            )
        index = {name: class_id for class_id, name in enumerate(names)}
        paths: list[str] = []
        of_class: list[str] = []
        parts: list[str] = []
        for part, part_folders in (("train", found[:1]), ("test", self.parts(folder, self.test_files)[:1])):
            for part_folder in part_folders:
                names = class_names(part_folder)
                if not names or any(name not in index for name in names):
                    stray = next((name for name in names if name not in index), "no class folders")
                    raise UserError(
                        f"{part_folder} contains {stray}, "
                        f"but expected folders with the same names as in {found[0]}; sort its images into them"
                    )
                for name in names:
                    with os.scandir(part_folder / name) as entries:
                        files = sorted(entry.name for entry in entries if is_image(entry.name) and entry.is_file())
                    below = f"{part_folder.name}/{name}"
                    paths += [f"{below}/{file}" for file in files]
                    of_class += [name] * len(files)
                    parts += [part] * len(files)
        return as_manifest(paths, [index[name] for name in of_class], of_class, parts)

    def list_files(self, folder: Path) -> list[Path]:
        return []

    def stamped(self, folder: Path) -> list[Path]:
        # The time of a folder changes when a file is added or removed.
        of_parts = self.parts(folder, self.files)[:1] + self.parts(folder, self.test_files)[:1]
        return of_parts + [part / name for part in of_parts for name in class_names(part)]

    def remarks(self, folder: Path, manifest: pd.DataFrame) -> list[str]:
        found = [part.name for part in self.parts(folder, self.files)]
        if len(found) > 1:
            return [f"both {found[0]}/ and {found[1]}/ exist; {found[0]}/ is used"]
        return [f"found {found[0]}/; the official name is {self.files[0]}/"] if found[0] != self.files[0] else []

    def parts(self, folder: Path, names: Sequence[str]) -> list[Path]:
        """Return the existing folders among the accepted names."""
        return [part for part in present(folder, names) if part.is_dir()]


def class_names(folder: Path) -> list[str]:
    """Return the names of class folders, sorted as strings (100 before 2), without hidden ones such as `._x`."""
    with os.scandir(folder) as entries:
        return sorted(entry.name for entry in entries if not entry.name.startswith(".") and entry.is_dir())


def is_image(name: str) -> bool:
    """Return whether a file is an image, by its name; hidden files such as `._x.jpg` are not."""
    return not name.rpartition("/")[2].startswith(".") and name.lower().endswith(SUFFIXES)


HERBARIUM_19 = ClassFolders(
    files=("small-train", "train"),
    test_files=("small-validation", "validation"),
    how_to_get=(
        "manual, Kaggle account: competition herbarium-2019-fgvc6; "
        "put small-train/ and small-validation/ in this folder"
    ),
    drawn_order=False,
    classes=683,
)

IMAGENET = ClassFolders(
    files=("train",),
    test_files=("val",),
    how_to_get=(
        "manual, image-net.org account: ILSVRC2012; put train/WNID/ (all 1,000, also for ImageNet-100) "
        "and val/WNID/ (the validation images sorted into class folders) in this folder"
    ),
    drawn_order=True,
    gigabytes=145,
    classes=1000,
)
