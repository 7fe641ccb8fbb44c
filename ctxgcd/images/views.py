"""Views as index arithmetic on the device: crop, flip and normalise a whole batch, one draw an image."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from ctxgcd.images.resize import enlarge, enlarging_weights
from ctxgcd.images.store import Store


@dataclass(frozen=True)
class Cropper:
    """Cuts normalised crops from a store.

    Attributes:
        store: the packed images, on the device of the views.
        crop: pixels of the square crop; at most the shorter side of the store.
        table: float32 [256, 3], the normalised value of every byte. Computed once on the CPU, because a
            division by 255 may round differently on a GPU.
    """

    store: Store
    crop: int
    table: Tensor

    def cut(self, ids: Tensor, tops: Tensor, lefts: Tensor, flips: Tensor) -> Tensor:
        """Return float32 [b, 3, crop, crop]; ids, tops, lefts int64 [b], flips bool [b]."""
        store, reach = self.store, torch.arange(self.crop, device=ids.device)
        columns = torch.where(flips[:, None], self.crop - 1 - reach, reach) + lefts[:, None]
        rows = reach + tops[:, None]
        if store.side:
            kept = store.pixels.view(-1, store.side, store.side, 3)[ids]
            pixels = enlarge(kept, self.weights[rows], self.weights[columns])
        else:
            starts = store.offsets[ids, None, None] + rows[:, :, None] * store.widths[ids, None, None]
            pixels = store.pixels[starts + columns[:, None, :]].long()
        return torch.stack([self.table[pixels[..., c], c] for c in range(3)], dim=1)

    @cached_property
    def weights(self) -> Tensor:
        """Float64 [size, side], by which images that are kept small are enlarged."""
        assert self.store.side
        weights = enlarging_weights(self.store.side, int(self.store.heights[0]))
        return torch.from_numpy(weights).to(self.store.pixels.device)

    def train_view(self, ids: Tensor, generator: torch.Generator) -> Tensor:
        """A random crop over the whole image and a flip with p = 0.5, drawn for every image on its own."""
        draws = torch.rand(len(ids), 3, generator=generator, dtype=torch.float64).to(ids.device)
        tops = (draws[:, 0] * (self.store.heights[ids] - self.crop + 1)).long()
        lefts = (draws[:, 1] * (self.store.widths[ids] - self.crop + 1)).long()
        return self.cut(ids, tops, lefts, draws[:, 2] < 0.5)

    def test_view(self, ids: Tensor) -> Tensor:
        """The centre crop, placed as torchvision's CenterCrop places it (half to even)."""
        tops, lefts = (
            torch.round((sides[ids] - self.crop).double() / 2).long()
            for sides in (self.store.heights, self.store.widths)
        )
        return self.cut(ids, tops, lefts, torch.zeros_like(ids, dtype=torch.bool))


def normalisation_table(mean: Sequence[float], std: Sequence[float]) -> Tensor:
    """Float32 [256, 3]: (byte / 255 - mean) / std, as torchvision's ToTensor and Normalize compute it."""
    values = torch.arange(256, dtype=torch.float32).div(255)
    return torch.stack([values.sub(m).div(s) for m, s in zip(mean, std, strict=True)], dim=1)
