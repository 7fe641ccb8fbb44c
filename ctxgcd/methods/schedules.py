"""Schedules of values that change in each epoch; epochs are counted from 0."""

from __future__ import annotations

import math

from ctxgcd.errors import UserError, nearest

SHAPES = ("linear", "cosine")


def _half_cosine(progress: float) -> float:
    """Return a value that increases from 0 to 1 along half a cosine as `progress` goes from 0 to 1."""
    return (1 - math.cos(math.pi * progress)) / 2


def cosine_lr(epoch: int, epochs: int, base_lr: float, floor: float) -> float:
    """Return the learning rate of an epoch: from base_lr towards base_lr * floor along half a cosine.

    Source: SimGCD's released code. Epoch `epochs`, one past the last, would reach the floor.
    """
    least = base_lr * floor
    return least + (base_lr - least) * (1 - _half_cosine(epoch / epochs))


def teacher_temperature(epoch: int, warmup_epochs: int, start: float, end: float, shape: str = "linear") -> float:
    """Return the teacher's temperature: from start to end over the first warmup_epochs epochs, then end.

    Epoch 0 has `start` and epoch warmup_epochs - 1 has `end`; with one warm-up epoch it has `start`. SimGCD's
    released code uses `linear`, its paper `cosine`. Raises UserError for another shape.
    """
    if shape not in SHAPES:
        raise UserError(f"unknown teacher schedule '{shape}'{nearest(shape, SHAPES)}; valid: {', '.join(SHAPES)}")
    if epoch >= warmup_epochs:
        return end
    progress = epoch / max(warmup_epochs - 1, 1)
    share = progress if shape == "linear" else _half_cosine(progress)
    return (1 - share) * start + share * end
