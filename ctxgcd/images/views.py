"""Views of image batches: crop, flip and normalisation on the device, with separate random numbers for each image."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from ctxgcd.images.resize import Taps, enlarge, enlarging_taps
from ctxgcd.images.store import Store
from ctxgcd.utils.seeding import Draws

CPU = torch.device("cpu")


@dataclass(frozen=True)
class Cropper:
    """Cuts normalised crops from a store.

    Attributes:
        store: the packed images, on the device of the views or, if they are too large, memory-mapped.
        crop: side of the square crop in pixels, at most the shorter side of the store.
        mean, std: normalisation of the three channels, for values from 0 to 1.
        device: the device of the views.
    """

    store: Store
    crop: int
    mean: Sequence[float]
    std: Sequence[float]
    device: torch.device = CPU

    def cut(self, ids: Tensor, tops: Tensor, lefts: Tensor, flips: Tensor) -> Tensor:
        """Return float32 [b, 3, crop, crop]; ids, tops, lefts int64 [b], flips bool [b]."""
        if self.device.type == "cpu":
            return self._sliced_and_normalised(ids, tops, lefts, flips)
        if self.store.pixels.device.type == "cpu":
            return self._normalised(self.sliced(ids, tops, lefts, flips).to(self.device))
        reach = torch.arange(self.crop, device=self.device)
        columns = torch.where(flips[:, None], self.crop - 1 - reach, reach) + lefts[:, None]
        rows = reach + tops[:, None]
        return self._normalised(self.gathered(ids, rows, columns))

    def train_view(self, ids: Tensor, drawn: Draws) -> Tensor:
        """Return a random crop of the whole image and a flip with p = 0.5, drawn independently for every image."""
        return self.drawn_view(ids, drawn.crop(len(ids)))

    def drawn_view(self, ids: Tensor, draws: Tensor) -> Tensor:
        """Return the train views for the numbers of `Draws.crop`, float64 [b, 3]."""
        ids = ids.to(self.store.pixels.device)
        draws = draws.to(ids.device, non_blocking=True)
        tops = (draws[:, 0] * (self.store.heights[ids] - self.crop + 1)).long()
        lefts = (draws[:, 1] * (self.store.widths[ids] - self.crop + 1)).long()
        return self.cut(ids, tops, lefts, draws[:, 2] < 0.5)

    def test_view(self, ids: Tensor) -> Tensor:
        """Return the centre crop, at the same position as torchvision's CenterCrop (half to even)."""
        ids = ids.to(self.store.pixels.device)
        tops, lefts = (
            torch.round((sides[ids] - self.crop).double() / 2).long()
            for sides in (self.store.heights, self.store.widths)
        )
        return self.cut(ids, tops, lefts, torch.zeros_like(ids, dtype=torch.bool))

    def _parts(self, ids: Tensor, tops: Tensor, lefts: Tensor, flips: Tensor) -> Iterator[Tensor]:
        """Yield the crops one by one, uint8 [crop, crop, 3], which on a CPU is much faster than one gather."""
        for i, top, left, flip in zip(*(t.tolist() for t in (ids, tops, lefts, flips)), strict=True):
            part = self.store.seen(i)[top : top + self.crop, left : left + self.crop]
            yield part.flip(1) if flip else part

    def sliced(self, *places: Tensor) -> Tensor:
        """Return all crops, uint8 [b, crop, crop, 3]."""
        out = torch.empty(len(places[0]), self.crop, self.crop, 3, dtype=torch.uint8)
        for view, part in zip(out, self._parts(*places), strict=True):
            view.copy_(part)
        return out

    def _sliced_and_normalised(self, *places: Tensor) -> Tensor:
        """Return the same values as `_normalised`, with channels last in memory.

        Each crop stays in the CPU cache, and channels are not moved.
        """
        out = torch.empty(len(places[0]), 3, self.crop, self.crop, memory_format=torch.channels_last)
        full, mean, std = (values.expand(3, 1, self.crop).permute(1, 2, 0).reshape(-1) for values in self._constants)
        for view, part in zip(out.permute(0, 2, 3, 1).flatten(2), self._parts(*places), strict=True):
            view.copy_(part.flatten(1)).div_(full).sub_(mean).div_(std)
        return out

    def gathered(self, ids: Tensor, rows: Tensor, columns: Tensor) -> Tensor:
        """Return all crops by index arithmetic, for a GPU: uint8 [b, crop, crop, 3] of rows and columns [b, crop]."""
        store = self.store
        if store.side:
            kept = store.pixels.view(-1, store.side, store.side, 3)[ids]
            return enlarge(kept, self._taps[rows], self._taps[columns])
        starts = store.offsets[ids, None, None] + rows[:, :, None] * store.widths[ids, None, None]
        return store.pixels[starts + columns[:, None, :]]

    def _normalised(self, pixels: Tensor) -> Tensor:
        """Return float32 [b, 3, h, w] of uint8 [b, h, w, 3], bit for bit as ToTensor and Normalize of torchvision."""
        full, mean, std = self._constants
        return pixels.permute(0, 3, 1, 2).contiguous().float().div_(full).sub_(mean).div_(std)

    @cached_property
    def _constants(self) -> tuple[Tensor, Tensor, Tensor]:
        """Return 255, mean and std as tensors on the device; a GPU would replace division by a number by a product."""
        mean, std = (torch.tensor(values, device=self.device).view(3, 1, 1) for values in (self.mean, self.std))
        return torch.full((3, 1, 1), 255.0, device=self.device), mean, std

    @cached_property
    def _taps(self) -> Taps:
        """Return the taps that enlarge images stored at their original size."""
        assert self.store.side
        return enlarging_taps(self.store.side, int(self.store.heights[0])).to(self.device)
