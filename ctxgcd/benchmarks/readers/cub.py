"""CUB-200-2011, listed in images.txt."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pandas as pd

from ctxgcd.benchmarks.readers.reader import Reader, as_manifest, first_repeated, read_pairs, require
from ctxgcd.errors import UserError

BASE = "CUB_200_2011"
CLASSES = 200


@dataclass(frozen=True, kw_only=True)
class Cub(Reader):
    """The canonical order is that of images.txt; a class name is the name of its image folder."""

    def manifest(self, folder: Path) -> pd.DataFrame:
        require(folder, self.files)
        files = _once(folder / BASE / "images.txt")
        classes = _numbers(folder / BASE / "image_class_labels.txt", files, range(1, CLASSES + 1))
        training = _numbers(folder / BASE / "train_test_split.txt", files, range(2))
        for key, file in files.items():  # `001.Black_footed_Albatross/...` is of class 1
            if not file.startswith(f"{classes[key]:03d}."):
                raise UserError(
                    f"{folder / BASE / 'image_class_labels.txt'} has class {classes[key]} for image {key}, but "
                    f"images.txt has {file}; replace both files"
                )
        # A stable sort: training images first, each part in the order of images.txt.
        keys = sorted(files, key=lambda key: training[key] != 1)
        return as_manifest(
            [f"{BASE}/images/{files[key]}" for key in keys],
            [classes[key] - 1 for key in keys],
            [Path(files[key]).parent.name for key in keys],
            ["train" if training[key] == 1 else "test" for key in keys],
        )

    def list_files(self, folder: Path) -> list[Path]:
        return [folder / name for name in self.files]


def _once(path: Path) -> dict[str, str]:
    """Read a list with one line for each image id."""
    pairs = read_pairs(path)
    if len(found := dict(pairs)) < len(pairs):
        raise UserError(
            f"{path} has two lines for image id {first_repeated([key for key, _ in pairs])}; replace the file"
        )
    return found


def _numbers(path: Path, files: dict[str, str], valid: range) -> dict[str, int]:
    """Read one integer for each image id of images.txt."""
    try:
        numbers = {key: int(value) for key, value in _once(path).items()}
    except ValueError as error:
        raise UserError(f"{path} has a value that is not an integer ({error}); replace the file") from error
    if wrong := [key for key, number in numbers.items() if number not in valid]:
        raise UserError(
            f"{path} has the number {numbers[wrong[0]]} for image id {wrong[0]}, but expected {valid.start} to "
            f"{valid.stop - 1}; replace the file"
        )
    if absent := [key for key in files if key not in numbers]:
        raise UserError(f"{path} has no line for image id {absent[0]} of images.txt; replace both files")
    return numbers


CUB = Cub(
    files=tuple(f"{BASE}/{name}.txt" for name in ("images", "image_class_labels", "train_test_split")),
    test_files=(),
    how_to_get=(
        "`snakemake fetch_cub` (no account) fills cub/, to which other folders can be links; manually: extract "
        "CUB_200_2011.tgz from https://data.caltech.edu/records/65de6-vp158 (md5 97eceeb196236b17998738112f37df78) in "
        "this folder"
    ),
    drawn_order=False,
    gigabytes=1.2,
)
