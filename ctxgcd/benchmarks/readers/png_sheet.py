"""Contact sheets: one PNG with all images of a part, and labels.csv (the embedded Fashion-MNIST)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pandas as pd
from PIL import Image

from ctxgcd.benchmarks.readers.decoding import open_rgb
from ctxgcd.benchmarks.readers.reader import Reader, as_manifest, require
from ctxgcd.errors import UserError

PER_LINE = 50  # images in a row of the sheet; cells are square


@dataclass(frozen=True, kw_only=True)
class Sheet(Reader):
    """`train.png#17` is the cell at position 17 of the sheet, counted row by row."""

    def manifest(self, folder: Path) -> pd.DataFrame:
        require(folder, self.files)
        try:
            labels = pd.read_csv(folder / "labels.csv", keep_default_na=False)
        except ValueError as error:  # empty, binary or truncated
            raise UserError(f"{folder / 'labels.csv'} cannot be read ({error}); restore the file") from None
        if absent := {"part", "position", "class_id", "class_name"} - set(labels.columns):
            raise UserError(f"{folder / 'labels.csv'} has no column {min(absent)!r}; restore the file")
        for part in ("train", "test"):
            _check_sheet(folder, part, labels.loc[labels["part"] == part, "position"].tolist())
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
            side = sheets[name].width // PER_LINE
            top, left = (side * place for place in divmod(int(position), PER_LINE))
            yield sheets[name].crop((left, top, left + side, top + side))


def _check_sheet(folder: Path, part: str, positions: list[int]) -> None:
    """Raise UserError unless a part's positions are 0..n-1, each once, and its sheet has the matching size."""
    if sorted(positions) != list(range(len(positions))):
        raise UserError(
            f"{folder / 'labels.csv'}: the positions of {part} must be 0 to {len(positions) - 1}, each once, but one "
            "is repeated or missing; restore the file"
        )
    width, height = open_rgb(folder / f"{part}.png").size
    rows = -(-len(positions) // PER_LINE)
    if width % PER_LINE or not width or height * PER_LINE != width * rows:
        raise UserError(
            f"{folder / f'{part}.png'} has {width} x {height} pixels, which does not match the {PER_LINE} x {rows} "
            "square cells of labels.csv; restore the file"
        )


SHEET = Sheet(
    files=("labels.csv", "train.png", "test.png"),
    test_files=(),
    how_to_get="automatic: included in the package; restore it from the repository",
    drawn_order=False,
    packed=True,
    side=28,  # pixels of the embedded images
)
