"""The weighted sampler of GCD and SimGCD."""

from __future__ import annotations

import torch
from torch import Tensor

from ctxgcd.errors import UserError


def draw_batches(labelled: Tensor, batch_size: int, generator: torch.Generator) -> Tensor:
    """Draw one epoch of batches, with replacement (docs/methods.md, "Batches and schedules").

    An image of D^l has weight 1 and an image of D^u |D^l|/|D^u|, so about half of a batch is labelled; |D|
    images are drawn and the incomplete last batch is dropped. Without labelled images, all have the same weight.

    Args:
        labelled: bool [N], whether an image is in D^l.
        batch_size: images per batch.

    Returns:
        int64 [N // batch_size, batch_size] of positions in D.
    """
    n, n_labelled = len(labelled), int(labelled.sum())
    if n_labelled == n:
        raise UserError(f"the split has {n_labelled} labelled images of {n}; unlabelled images are needed")
    if batch_size > n:
        raise UserError(f"batch_size {batch_size} exceeds the {n} training images; give a smaller batch_size")
    weights = torch.where(labelled, 1.0, n_labelled / (n - n_labelled) if n_labelled else 1.0).double()
    drawn = torch.multinomial(weights, n, replacement=True, generator=generator)
    steps = n // batch_size
    return drawn[: steps * batch_size].view(steps, batch_size)
