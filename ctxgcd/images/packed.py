"""The format of an image store, read without torch: an .npz index, and the pixels of all images next to it."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from zipfile import BadZipFile

import numpy as np
from numpy.typing import NDArray

from ctxgcd.errors import UserError


@dataclass(frozen=True)
class Packed:
    """Packed images in the order of their ids.

    Attributes:
        pixels: uint8 [P, 3], the RGB pixels of all images one after another, rows first; memory-mapped.
        offsets: int64 [N], the first pixel of every image.
        heights, widths: int64 [N], the size of the images from which views are cut.
        side: if all images are squares smaller than requested, they are stored at their original size, side x side;
            else None: image i is pixels[offsets[i] : offsets[i] + heights[i] * widths[i]].
    """

    pixels: NDArray[np.uint8]
    offsets: NDArray[np.int64]
    heights: NDArray[np.int64]
    widths: NDArray[np.int64]
    side: int | None

    def __getitem__(self, image_id: int) -> NDArray[np.uint8]:
        """Return an image as stored, uint8 [height, width, 3]."""
        height, width = (self.side, self.side) if self.side else (self.heights[image_id], self.widths[image_id])
        start = self.offsets[image_id]
        return self.pixels[start : start + height * width].reshape(height, width, 3)


def open_packed(index: Path) -> Packed:
    """Open a store by its index; the pixels are memory-mapped, not read. Raises UserError for a damaged one."""
    try:
        with np.load(index) as arrays:
            heights, widths, offsets = (arrays[key] for key in ("heights", "widths", "offsets"))
            side = int(arrays["side"]) or None
    except (OSError, ValueError, KeyError, EOFError, BadZipFile) as error:
        raise UserError(
            f"image store {index} cannot be read ({error}); delete it and run the same command again to pack it again"
        ) from None
    total = 3 * (len(offsets) * side**2 if side else int((heights * widths).sum()))
    if not pixels_file(index).exists() or pixels_file(index).stat().st_size != total:
        raise UserError(
            f"image store {pixels_file(index)} does not have the {total} bytes given in its index; "
            "delete it and run the same command again"
        )
    # Copy on write: torch refuses read-only arrays, and a private mapping does not change the file.
    pixels = np.memmap(pixels_file(index), dtype=np.uint8, mode="c", shape=(total // 3, 3))
    return Packed(pixels, offsets, heights, widths, side)


def left_out(index: Path) -> dict[str, str]:
    """Return the images that were skipped when a store was packed, each with the reason."""
    with np.load(index) as arrays:
        return dict(json.loads(str(arrays["left_out"])))


def pixels_file(index: Path) -> Path:
    """Return the path of a store's pixels."""
    return index.with_suffix(".pixels")
