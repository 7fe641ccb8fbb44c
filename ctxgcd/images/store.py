"""An image store as tensors: every image resized and packed, uint8, ragged, memory-mapped."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from ctxgcd.images.packed import open_packed
from ctxgcd.images.resize import resize_shorter


@dataclass(frozen=True)
class Store:
    """Packed images in the order of their ids.

    Attributes:
        pixels: uint8 [P, 3], the RGB pixels of all images one after another, rows first.
        offsets: int64 [N], the first pixel of every image.
        heights, widths: int64 [N], the size of the images from which views are cut.
        side: if all images are squares smaller than requested, they are stored at their original size, side x side,
            and enlarged to heights x widths by the reader; else None: image i is
            pixels[offsets[i] : offsets[i] + heights[i] * widths[i]].
    """

    pixels: Tensor
    offsets: Tensor
    heights: Tensor
    widths: Tensor
    side: int | None = None

    def __len__(self) -> int:
        return len(self.offsets)

    def to(self, device: torch.device) -> Store:
        moved = {name: getattr(self, name).to(device) for name in ("pixels", "offsets", "heights", "widths")}
        return replace(self, **moved)

    def image(self, i: int) -> Tensor:
        """Return image i as stored, uint8 [height, width, 3]."""
        height, width = (self.side, self.side) if self.side else (int(self.heights[i]), int(self.widths[i]))
        start = int(self.offsets[i])
        return self.pixels[start : start + height * width].view(height, width, 3)

    def seen(self, i: int) -> Tensor:
        """Return image i at the size from which views are cut, uint8 [heights[i], widths[i], 3]."""
        kept = self.image(i)
        if not self.side:
            return kept
        return torch.from_numpy(np.array(resize_shorter(Image.fromarray(kept.numpy()), int(self.heights[i]))))


def open_store(index: Path) -> Store:
    """Open a packed store; the pixels are memory-mapped, not read. Raises UserError for a damaged one."""
    packed = open_packed(index)
    arrays = (packed.pixels, packed.offsets, packed.heights, packed.widths)
    pixels, offsets, heights, widths = map(torch.from_numpy, arrays)
    return Store(pixels, offsets, heights, widths, packed.side)
