"""An interactive map of images, coloured by a selected property."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from ctxgcd.plots.palette import class_colors
from ctxgcd.report.thumbnails import Sheet

WIDTH, HEIGHT, EDGE = 1000, 700, 20
LEGEND = 24  # maximum number of labels in an open legend; a legend of more labels is folded


@dataclass(frozen=True)
class Mark:
    """A point of the plot: a circle or a triangle."""

    x: float
    y: float
    triangle: bool


@dataclass(frozen=True)
class Embedding:
    """The marks, and `data` for the script: their `texts`, `colourings` and the size of the sprite sheet."""

    kind: ClassVar[str] = "embedding"
    caption: str
    marks: Sequence[Mark]
    colourings: Mapping[str, Mapping[str, Any]]
    sheet: Sheet | None
    data: Mapping[str, Any]
    width: int = WIDTH
    height: int = HEIGHT


def embedding(
    points: NDArray[np.floating],
    texts: Sequence[str],
    colourings: Mapping[str, Sequence[str]],
    caption: str,
    triangle: Sequence[bool] | None = None,
    sheet: Sheet | None = None,
    order: Sequence[str] = (),
) -> Embedding:
    """Return a scatter plot of points [n, 2].

    Args:
        texts: text shown on hover, for each image.
        colourings: name of a property -> its label for each image; the first property is selected initially.
        triangle: whether an image is drawn as a triangle instead of a circle.
        sheet: thumbnails in the order of the points.
        order: labels in the order of their colours, the same for every property; if some are missing, sorted by name.
    """
    low, high = points.min(axis=0), points.max(axis=0)
    scale = float(np.min((np.array([WIDTH, HEIGHT]) - 2 * EDGE) / np.maximum(high - low, 1e-9)))
    placed = (points - (low + high) / 2) * [scale, -scale] + [WIDTH / 2, HEIGHT / 2]
    shapes = triangle if triangle is not None else [False] * len(points)
    marks = [Mark(round(float(x)), round(float(y)), bool(t)) for (x, y), t in zip(placed, shapes, strict=True)]
    drawn = {name: _colouring(labels, order) for name, labels in colourings.items()}
    size = {"side": sheet.side, "columns": sheet.columns} if sheet else None
    return Embedding(caption, marks, drawn, sheet, {"texts": list(texts), "colourings": drawn, "sheet": size})


def _colouring(labels: Sequence[str], order: Sequence[str]) -> dict[str, Any]:
    """Return the distinct labels, their colours, the index of each image's label, and whether the legend is open."""
    found = set(labels)
    order = order if found <= set(order) else sorted(found)
    colours = class_colors(order)
    names = [name for name in order if name in found]
    place = {name: number for number, name in enumerate(names)}
    return {
        "labels": names,
        "colours": [colours[name] for name in names],
        "of": [place[label] for label in labels],
        "open": len(names) <= LEGEND,
    }
