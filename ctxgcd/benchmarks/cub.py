"""CUB-200-2011: birds, listed in images.txt."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pandas as pd

from ctxgcd.benchmarks.source import Source, as_manifest, read_pairs, require
from ctxgcd.errors import UserError

BASE = "CUB_200_2011"


@dataclass(frozen=True, kw_only=True)
class Cub(Source):
    """Canonical order is that of images.txt; a class name is the name of its image folder."""

    def manifest(self, folder: Path) -> pd.DataFrame:
        require(folder, self.files)
        files = dict(read_pairs(folder / BASE / "images.txt"))
        classes = _numbers(folder / BASE / "image_class_labels.txt", files)
        training = _numbers(folder / BASE / "train_test_split.txt", files)
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


def _numbers(path: Path, files: dict[str, str]) -> dict[str, int]:
    """Read one whole number for each image id of images.txt."""
    try:
        numbers = {key: int(value) for key, value in read_pairs(path)}
    except ValueError as error:
        raise UserError(f"{path} has a value that is no whole number ({error}); replace the file") from error
    if absent := [key for key in files if key not in numbers]:
        raise UserError(f"{path} has no line for image id {absent[0]} of images.txt; replace both files")
    return numbers


CUB = Cub(
    files=tuple(f"{BASE}/{name}.txt" for name in ("images", "image_class_labels", "train_test_split")),
    test_files=(),
    how_to_get=(
        "`snakemake fetch_cub` (no account); by hand: extract CUB_200_2011.tgz from "
        "https://data.caltech.edu/records/65de6-vp158 (md5 97eceeb196236b17998738112f37df78) in this folder"
    ),
    drawn_order=False,
    gigabytes=1.2,
)
