"""Separate random streams of one training seed, one generator an epoch."""

from __future__ import annotations

import hashlib

import torch


def generator(seed: int, stream: str, epoch: int = 0) -> torch.Generator:
    """Return a CPU generator that depends on nothing but (seed, stream, epoch).

    Separate streams keep methods of one seed paired: the draws of queries never shift the draws of
    the sampler. A fresh generator an epoch makes resuming exact without any stored random state.
    """
    digest = hashlib.sha256(f"{seed}/{stream}/{epoch}".encode()).digest()
    return torch.Generator().manual_seed(int.from_bytes(digest[:7], "little"))
