"""Separate random streams of one training seed, one generator an epoch, and what views draw from them."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor


def generator(seed: int, stream: str, epoch: int = 0) -> torch.Generator:
    """Return a CPU generator that depends on nothing but (seed, stream, epoch).

    Separate streams keep methods of one seed paired: the draws of queries never shift the draws of
    the sampler. A fresh generator an epoch makes resuming exact without any stored random state.
    """
    digest = hashlib.sha256(f"{seed}/{stream}/{epoch}".encode()).digest()
    return torch.Generator().manual_seed(int.from_bytes(digest[:7], "little"))


class Draws(Protocol):
    """Uniform numbers in [0, 1) for the views of images, float64 on the host, of the next view at each call."""

    def crop(self, ids: Tensor) -> Tensor:
        """[n, 3]: top, left and flip of one fresh view of each image."""
        ...

    def kept(self, ids: Tensor) -> Tensor:
        """[2, n]: which two of its kept views each image gets."""
        ...


@dataclass(frozen=True)
class Stream:
    """Draws one after another from a generator, whatever the images are."""

    drawn: torch.Generator

    def crop(self, ids: Tensor) -> Tensor:
        return torch.rand(len(ids), 3, generator=self.drawn, dtype=torch.float64)

    def kept(self, ids: Tensor) -> Tensor:
        return torch.rand(2, len(ids), generator=self.drawn, dtype=torch.float64)
