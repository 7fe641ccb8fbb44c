"""One folder of images a class: Herbarium 19 and ImageNet."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pandas as pd

from ctxgcd.benchmarks.readers.decoding import missing
from ctxgcd.benchmarks.readers.reader import Reader, as_manifest, present
from ctxgcd.errors import UserError

SUFFIXES = (".jpg", ".jpeg", ".png", ".ppm", ".bmp", ".pgm", ".tif", ".tiff", ".webp")  # as torchvision's


@dataclass(frozen=True, kw_only=True)
class ClassFolders(Reader):
    """Class ids are places among the sorted names of ALL training folders, so all `classes` must be there.

    `files` and `test_files` are the accepted names of the part's folder, the official one first.
    """

    classes: int

    def manifest(self, folder: Path) -> pd.DataFrame:
        found = self.parts(folder, self.files)
        if not found:
            raise missing(folder / self.files[0])
        names = class_names(found[0])
        if len(names) != self.classes:
            raise UserError(
                f"{found[0]} holds {len(names)} class folders, expected {self.classes}: class ids are places "
                "among all their sorted names, so a missing or extra folder would change every class; "
                "restore the official folders"
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
                        f"{part_folder} holds {stray}, "
                        f"expected folders of the same names as in {found[0]}; sort its images into those"
                    )
                for name in names:
                    with os.scandir(part_folder / name) as entries:
                        files = sorted(entry.name for entry in entries if is_image(entry.name) and entry.is_file())
                    paths += [f"{part_folder.name}/{name}/{file}" for file in files]
                    of_class += [name] * len(files)
                    parts += [part] * len(files)
        return as_manifest(paths, [index[name] for name in of_class], of_class, parts)

    def list_files(self, folder: Path) -> list[Path]:
        return []

    def stamped(self, folder: Path) -> list[Path]:
        # A folder's time changes with every file that comes or goes.
        of_parts = self.parts(folder, self.files)[:1] + self.parts(folder, self.test_files)[:1]
        return of_parts + [part / name for part in of_parts for name in class_names(part)]

    def remarks(self, folder: Path, manifest: pd.DataFrame) -> list[str]:
        found = [part.name for part in self.parts(folder, self.files)]
        if len(found) > 1:
            return [f"both {found[0]}/ and {found[1]}/ are there; {found[0]}/ is used"]
        return [f"found as {found[0]}/, which is {self.files[0]}/ officially"] if found[0] != self.files[0] else []

    def parts(self, folder: Path, names: Sequence[str]) -> list[Path]:
        """Return those of the accepted names that are folders."""
        return [part for part in present(folder, names) if part.is_dir()]


def class_names(folder: Path) -> list[str]:
    """Return the names of class folders, sorted as strings (100 before 2), junk such as `._x` left out."""
    with os.scandir(folder) as entries:
        return sorted(entry.name for entry in entries if not entry.name.startswith(".") and entry.is_dir())


def is_image(name: str) -> bool:
    """Tell by its name whether a file is an image; junk such as `._x.jpg` is none."""
    return not os.path.basename(name).startswith(".") and name.lower().endswith(SUFFIXES)


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
