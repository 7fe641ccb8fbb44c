"""Images of a packed store, read without torch, which the page does not need."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from zipfile import BadZipFile

import numpy as np
from numpy.typing import NDArray

from ctxgcd.errors import UserError


@dataclass(frozen=True)
class Packed:
    """The pixels of images by their id; the layout is that of ctxgcd.images.store."""

    pixels: NDArray[np.uint8]
    offsets: NDArray[np.int64]
    heights: NDArray[np.int64]
    widths: NDArray[np.int64]

    def __getitem__(self, image_id: int) -> NDArray[np.uint8]:
        """Return an image as it is kept, uint8 [height, width, 3]."""
        start, height, width = (int(of[image_id]) for of in (self.offsets, self.heights, self.widths))
        return self.pixels[start : start + height * width].reshape(height, width, 3)


def open_packed(index: Path) -> Packed | None:
    """Open a store by its index, its pixels memory-mapped; None where there is none. UserError for a damaged one."""
    pixels = index.with_suffix(".pixels")
    if not index.exists() or not pixels.exists():
        return None
    try:
        with np.load(index) as arrays:
            offsets, heights, widths, side = (arrays[key] for key in ("offsets", "heights", "widths", "side"))
        if int(side):  # small squares are kept as they are, and enlarged by whoever trains on them
            heights = widths = np.full(len(offsets), int(side))
        mapped = np.memmap(pixels, dtype=np.uint8, mode="r", shape=(int((heights * widths).sum()), 3))
    except (OSError, ValueError, KeyError, EOFError, BadZipFile) as error:
        raise UserError(
            f"image store {index} cannot be read ({error}); delete it and run the same command again to pack it again"
        ) from None
    return Packed(mapped, offsets, heights, widths)
