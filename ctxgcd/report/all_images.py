"""All images of a page: thumbnails that the browser decodes as one scrolls, and blocks that show some of them.

An image is enlarged by a click. Images and classes can be corrected in the page, and the corrections downloaded as CSV.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from ctxgcd.report.thumbnails import SIDE, Pixels, sheet

PER_LINE = 8
PER_SHEET = PER_LINE**2


@dataclass(frozen=True)
class AllImages:
    """The images of a page, numbered in the order of their thumbnails.

    Attributes:
        sheets: data URIs of sprite sheets of PER_SHEET images each; the last one may have fewer.
        data: what the script reads: `base`, the URL of the images' folder, relative to the page; `classes`, a list of
            {key, name, merged}, what corrections call it, its name, and whether it was merged into another one;
            `images`, with lists of the `path` and `of` of each image (the class, a place in `classes`), and of `second`
            (the second most likely class) and `confidence` (percent; None: the class was given by hand) of those
            without a label, which are the first ones; and what `all_images` adds.
    """

    sheets: Sequence[str]
    data: Mapping[str, Any]


@dataclass(frozen=True)
class Row:
    """Images under a heading, by their numbers."""

    head: str
    images: Sequence[int]


@dataclass(frozen=True)
class Card:
    """Rows of images with a title and facts.

    Attributes:
        of: the class, as its place in AllImages.data["classes"], if all images are of one.
        named: whether the class can be named here.
        labelled, every: the numbers of its labelled images and of all others, shown on a click.
        merge: two classes, as in `of`: a button merges the first one into the second one.
    """

    title: str
    facts: Sequence[str]
    rows: Sequence[Row]
    of: int | None = None
    named: bool = False
    labelled: range = range(0)
    every: range = range(0)
    merge: tuple[int, int] | None = None


@dataclass(frozen=True)
class Cards:
    """Cards; `names` are those of AllImages.data["classes"]."""

    kind: ClassVar[str] = "cards"
    cards: Sequence[Card]
    names: Sequence[str]


@dataclass(frozen=True)
class ImageList:
    """Images one below the other, each with its number, its name and facts."""

    kind: ClassVar[str] = "image_list"
    entries: Sequence[tuple[int, str, Sequence[str]]]


def all_images(data: Mapping[str, Any], pixels: Callable[[int], Pixels]) -> AllImages:
    """Return the images of a page with their thumbnails.

    data: as in AllImages; pixels: number of an image -> uint8 [height, width, 3].
    """
    count = len(data["images"]["path"])
    starts = range(0, count, PER_SHEET)
    groups = ([pixels(number) for number in range(start, min(start + PER_SHEET, count))] for start in starts)
    sheets = [sheet(group, SIDE, PER_LINE).uri for group in groups]
    own = hashlib.sha256(json.dumps(data).encode()).hexdigest()[:16]  # under which a browser keeps corrections
    return AllImages(sheets, {**data, "id": own, "per_line": PER_LINE, "per_sheet": PER_SHEET})
