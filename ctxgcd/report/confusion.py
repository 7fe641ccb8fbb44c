"""The confusion matrix, the most frequent confusions, and the accuracy of each class."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from ctxgcd.report.grid import Cell, Grid
from ctxgcd.report.page import Figure
from ctxgcd.report.thumbnails import pixel_map

READABLE = 24  # maximum number of classes with names shown in a matrix
BLUE = (0, 84, 147)
MOST_FREQUENT = 20

Counts = NDArray[np.int64]


@dataclass(frozen=True)
class Matrix:
    """Counts of images [rows, columns] with row and column names; each is shaded by its share of the row."""

    kind: ClassVar[str] = "matrix"
    caption: str
    rows: Sequence[str]
    columns: Sequence[str]
    lines: Sequence[Sequence[tuple[int, float]]]


def confusion(true: Counts, matched: Counts, classes: int) -> Counts:
    """Count images by true and matched class, each an id [n]; return int64 [classes, at least classes].

    Columns beyond the classes are clusters without a matched class.
    """
    columns = max(classes, int(matched.max(initial=-1)) + 1)
    counts: Counts = np.bincount(true * columns + matched, minlength=classes * columns).reshape(classes, columns)
    return counts


def matrix(counts: Counts, names: Sequence[str], caption: str) -> Matrix | Figure:
    """Return the matrix with its names or, for many classes, as an image with one pixel per cell.

    names: names of the columns; the first ones are also those of the rows.
    """
    shares = counts / np.maximum(counts.sum(axis=1, keepdims=True), 1)
    if len(names) > READABLE:
        return Figure(
            pixel_map(shares, BLUE), f"{caption} Each pixel is a cell; darker cells are larger.", pixelated=True
        )
    lines = [
        [(int(count), round(float(share), 3)) for count, share in zip(*row, strict=True)]
        for row in zip(counts, shares, strict=True)
    ]
    return Matrix(caption, names[: len(counts)], names, lines)


def most_frequent(counts: Counts, names: Sequence[str]) -> Grid:
    """Return the largest off-diagonal counts."""
    wrong = counts.copy()
    np.fill_diagonal(wrong, 0)
    order = np.argsort(-wrong, axis=None, kind="stable")[:MOST_FREQUENT]
    lines = []
    for row, column in zip(*np.unravel_index(order, wrong.shape), strict=True):
        if count := wrong[row, column]:
            share = count / counts[row].sum()
            text = Cell(f"{100 * share:.1f}", share=float(share))
            lines.append([Cell(names[row]), Cell(names[column]), Cell(f"{count:,}"), text])
    head = ["True class", "Predicted class", "Images", "% of the true class"]
    return Grid("Most frequent confusions", head, lines, numbers_from=2)


def per_class(counts: Counts, names: Sequence[str], old: Sequence[bool]) -> Grid:
    """Return the accuracy of each class and its most frequent confusion."""
    wrong = counts.copy()
    np.fill_diagonal(wrong, 0)
    lines = []
    for number, (row, off) in enumerate(zip(counts, wrong, strict=True)):
        if not row.sum():
            continue
        right = row[number] / row.sum()
        other = int(off.argmax())
        often = f"{names[other]} ({off[other]:,})" if off[other] else ""
        accuracy = Cell(f"{100 * right:.1f}", share=float(right))
        kind = "Old" if old[number] else "New"
        lines.append([Cell(names[number]), Cell(kind), Cell(often), Cell(f"{row.sum():,}"), accuracy])
    head = ["Class", "Old or New", "Most frequent confusion", "Images", "Accuracy"]
    return Grid("Accuracy per class, in percent", head, lines, numbers_from=3)
