"""Contact sheets: all images of a part in one viewable PNG, with labels.csv (the embedded Fashion-MNIST)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pandas as pd
from PIL import Image

from ctxgcd.benchmarks.source import Source, as_manifest, open_rgb, require
from ctxgcd.errors import UserError

COLUMNS = 50  # images in a row of the sheet; cells are square


@dataclass(frozen=True, kw_only=True)
class Sheet(Source):
    """`train.png#17` is the cell at position 17 of the sheet, counted row by row."""

    def manifest(self, folder: Path) -> pd.DataFrame:
        require(folder, self.files)
        labels = pd.read_csv(folder / "labels.csv", keep_default_na=False)
        if absent := {"part", "position", "class_id", "class_name"} - set(labels.columns):
            raise UserError(f"{folder / 'labels.csv'} lacks the column {min(absent)!r}; restore the file")
        labels = pd.concat([labels[labels["part"] == part].sort_values("position") for part in ("train", "test")])
        paths = [f"{part}.png#{position}" for part, position in zip(labels["part"], labels["position"], strict=True)]
        return as_manifest(
            paths, list(labels["class_id"]), list(labels["class_name"].astype(str)), list(labels["part"])
        )

    def list_files(self, folder: Path) -> list[Path]:
        return [folder / name for name in self.files]

    def images(self, folder: Path, paths: Sequence[str]) -> Iterator[Image.Image]:
        sheets: dict[str, Image.Image] = {}
        for path in paths:
            name, _, position = path.partition("#")
            if name not in sheets:
                sheets[name] = open_rgb(folder / name)
            side = sheets[name].width // COLUMNS
            top, left = (side * place for place in divmod(int(position), COLUMNS))
            yield sheets[name].crop((left, top, left + side, top + side))


SHEET = Sheet(
    files=("labels.csv", "train.png", "test.png"),
    test_files=(),
    how_to_get="automatic: it travels inside the package; restore it from the repository",
    drawn_order=False,
)
