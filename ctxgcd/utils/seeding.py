"""Random numbers of a training seed: independent streams, and the uniform numbers behind the views."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor


def generator(seed: int, stream: str, epoch: int = 0) -> torch.Generator:
    """Return a CPU generator that depends only on (seed, stream, epoch).

    Separate streams keep methods with the same seed paired: the draws of queries never shift the draws of
    the sampler. A new generator in each epoch makes resuming exact without a stored random state.
    """
    return torch.Generator().manual_seed(_key(seed, stream, epoch) % 2**56)


class Draws(Protocol):
    """Uniform numbers in [0, 1) for the views of some images, float64 on the host. Each call draws the next view."""

    def crop(self, images: int) -> Tensor:
        """[images, 3]: top, left and flip of one new view of each image."""
        ...

    def kept(self, images: int) -> Tensor:
        """[2, images]: the two cached views used for each image."""
        ...


@dataclass(frozen=True)
class Stream:
    """Draws from a generator in order, independent of the images."""

    drawn: torch.Generator

    def crop(self, images: int) -> Tensor:
        return torch.rand(images, 3, generator=self.drawn, dtype=torch.float64)

    def kept(self, images: int) -> Tensor:
        return torch.rand(2, images, generator=self.drawn, dtype=torch.float64)


@dataclass
class Counted:
    """Draws by counter: each number is a hash of seed, epoch, step, image, occurrence, view and column.

    An image's views do not depend on other images. Two runs with the same seed get the same view of the same image in
    the same step, while a second occurrence of the image in a step gets another view.

    Attributes:
        key: hash of seed, epoch and step.
        ids, occurrences: int64 [n] on the host; the image ids, and the number of earlier occurrences of each image in
            the step.
        view: number of the next view.
    """

    key: int
    ids: Tensor
    occurrences: Tensor
    view: int = 0

    @classmethod
    def of_step(cls, groups: Sequence[Tensor], seed: int, stream: str, epoch: int, step: int) -> list[Counted]:
        """Return the draws of a step's groups, each given as image ids int64 [n] on the host."""
        ids = torch.cat([torch.empty(0, dtype=torch.int64), *groups])
        order = ids.argsort(stable=True)
        ordered = ids[order]
        occurrences = torch.empty_like(ids)
        occurrences[order] = torch.arange(len(ids)) - torch.searchsorted(ordered, ordered)
        sizes = [len(group) for group in groups]
        key = _key(seed, f"{stream}/{step}", epoch)
        return [cls(key, *parts) for parts in zip(ids.split(sizes), occurrences.split(sizes), strict=True)]

    def crop(self, images: int) -> Tensor:
        return self._drawn(images, columns=3)

    def kept(self, images: int) -> Tensor:
        return self._drawn(images, columns=2).T

    def _drawn(self, images: int, columns: int) -> Tensor:
        """Float64 [images, columns] of the next view."""
        assert images == len(self.ids)
        words = (self.ids[:, None], self.occurrences[:, None], torch.tensor([self.view]), torch.arange(columns))
        self.view += 1
        return torch.from_numpy(counted(self.key, *(word.numpy() for word in words)))


def counted(key: int, *words: NDArray[np.int64]) -> NDArray[np.float64]:
    """Return uniform numbers in [0, 1), each a hash of a 64-bit key and of non-negative int64 integers.

    Each word advances the state by odd multiples, and the finaliser of splitmix64 mixes it (Steele, Lea and Flood,
    "Fast splittable pseudorandom number generators", 2014). The words broadcast; the upper 53 bits are used.
    """
    state = np.array(key, dtype=np.uint64)
    for word in words:
        state = state + np.uint64(0x9E3779B97F4A7C15) * (word.astype(np.uint64) + np.uint64(1))
        state = (state ^ state >> np.uint64(30)) * np.uint64(0xBF58476D1CE4E5B9)
        state = (state ^ state >> np.uint64(27)) * np.uint64(0x94D049BB133111EB)
        state = state ^ state >> np.uint64(31)
    return (state >> np.uint64(11)).astype(np.float64) / 2**53


def _key(seed: int, stream: str, epoch: int) -> int:
    """Return 64 bits of a SHA-256 digest."""
    return int.from_bytes(hashlib.sha256(f"{seed}/{stream}/{epoch}".encode()).digest()[:8], "little")
