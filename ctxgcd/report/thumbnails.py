"""Thumbnails for the report, made from pixels only, without EXIF data and file names."""

from __future__ import annotations

import base64
import io
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from PIL import Image

SIDE = 96  # pixels of a thumbnail in a gallery
SMALL = 48  # pixels of a thumbnail shown on hover
PER_LINE = 50
QUALITY = 70

Pixels = NDArray[np.uint8]


@dataclass(frozen=True)
class Sheet:
    """Many thumbnails in one image (a sprite sheet), `columns` per line, each `side` x `side` pixels."""

    uri: str
    side: int
    columns: int
    lines: int


def square(pixels: Pixels, side: int) -> Image.Image:
    """Return the centre square of an image (uint8 [height, width, 3]), as in evaluation, at most `side` pixels wide."""
    height, width = pixels.shape[:2]
    least = min(height, width)
    top, left = (height - least) // 2, (width - least) // 2
    image = Image.fromarray(np.ascontiguousarray(pixels[top : top + least, left : left + least]))
    return image if least <= side else image.resize((side, side), Image.Resampling.LANCZOS)


def thumbnail(pixels: Pixels, side: int = SIDE) -> str:
    """Return the centre square of an image as a data URI."""
    return _uri(square(pixels, side))


def sheet(images: Sequence[Pixels], side: int = SMALL, per_line: int = PER_LINE) -> Sheet:
    """Return images as one sprite sheet, in their order, which is much smaller than separate images."""
    lines = -(-len(images) // per_line)
    whole = Image.new("RGB", (side * min(per_line, len(images)), side * lines))
    for place, pixels in enumerate(images):
        whole.paste(square(pixels, side).resize((side, side)), (place % per_line * side, place // per_line * side))
    return Sheet(_uri(whole), side, min(per_line, len(images)), lines)


def pixel_map(shares: NDArray[np.floating], color: tuple[int, int, int]) -> str:
    """Return shares (0..1, [rows, columns]) as an image with one pixel per value, from white to `color`."""
    shade = 255 - shares[..., None] * (255 - np.array(color))
    return _uri(Image.fromarray(shade.round().astype(np.uint8)), lossless=True)


def _uri(image: Image.Image, *, lossless: bool = False) -> str:
    file = io.BytesIO()
    image.save(file, "webp", quality=QUALITY, lossless=lossless)
    return f"data:image/webp;base64,{base64.b64encode(file.getvalue()).decode()}"
