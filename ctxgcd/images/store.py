"""The image store: every image resized and packed, uint8, ragged, memory-mapped."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from pathlib import Path
from zipfile import BadZipFile

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from ctxgcd.errors import UserError
from ctxgcd.images.resize import resize_shorter


@dataclass(frozen=True)
class Store:
    """Packed images in the order of their ids.

    Attributes:
        pixels: uint8 [P, 3], the RGB pixels of all images one after another, rows first.
        offsets: int64 [N], the first pixel of every image.
        heights, widths: int64 [N], the sides that views are cut from.
        side: where all images are squares smaller than the views want them, they are kept as they are, side x side,
            and enlarged to heights x widths by whoever reads them; else None: image i is
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
        """Return image i as it is kept, uint8 [height, width, 3]."""
        height, width = (self.side, self.side) if self.side else (int(self.heights[i]), int(self.widths[i]))
        start = int(self.offsets[i])
        return self.pixels[start : start + height * width].view(height, width, 3)

    def seen(self, i: int) -> Tensor:
        """Return image i as views are cut from it, uint8 [heights[i], widths[i], 3]."""
        kept = self.image(i)
        if not self.side:
            return kept
        return torch.from_numpy(np.array(resize_shorter(Image.fromarray(kept.numpy()), int(self.heights[i]))))


def open_store(index: Path) -> Store:
    """Open a packed store; the pixels are memory-mapped, not read."""
    try:
        with np.load(index) as arrays:
            heights, widths, offsets = (torch.from_numpy(arrays[key]) for key in ("heights", "widths", "offsets"))
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
    # Copy on write: torch refuses read-only arrays, and a private mapping leaves the file alone.
    pixels = np.memmap(pixels_file(index), dtype=np.uint8, mode="c", shape=(total // 3, 3))
    return Store(torch.from_numpy(pixels), offsets, heights, widths, side)


def left_out(index: Path) -> dict[str, str]:
    """Return the images that were skipped when a store was packed, each with the reason."""
    with np.load(index) as arrays:
        return dict(json.loads(str(arrays["left_out"])))


def pixels_file(index: Path) -> Path:
    return index.with_suffix(".pixels")
