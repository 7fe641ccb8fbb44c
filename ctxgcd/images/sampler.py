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
    return draw_steps(labelled, batch_size, n // batch_size, generator)


def draw_steps(labelled: Tensor, batch_size: int, steps: int, generator: torch.Generator) -> Tensor:
    """Draw the batches of `steps` steps in passes over the images, each as in `draw_batches`.

    A pass draws as many images as there are, or one batch if there are fewer, and drops the incomplete last batch.
    Images that are all labelled or all unlabelled have the same weight.

    Args:
        labelled: bool [n], whether an image is in D^l; at least one image.

    Returns:
        int64 [steps, batch_size] of positions in 0..n-1.
    """
    n, n_labelled = len(labelled), int(labelled.sum())
    unlabelled_weight = n_labelled / (n - n_labelled) if 0 < n_labelled < n else 1.0
    weights = torch.where(labelled, 1.0, unlabelled_weight).double()
    of_pass = max(n // batch_size, 1)
    passes = [
        torch.multinomial(weights, max(n, batch_size), replacement=True, generator=generator)[: of_pass * batch_size]
        for _ in range(-(-steps // of_pass))
    ]
    return torch.cat(passes)[: steps * batch_size].view(steps, batch_size)
