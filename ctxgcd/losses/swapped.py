"""Pseudo-labels by Sinkhorn's algorithm and their swapped prediction, equation `swapped` of docs/methods.md."""

from __future__ import annotations

import torch
from torch import Tensor

from ctxgcd.losses.full_precision import full_precision


@full_precision
def sinkhorn(cosines: Tensor, among: Tensor, epsilon: float, iterations: int) -> Tensor:
    """Return soft assignments of some rows to K columns of nearly equal total weight, float [..., B, K].

    Source: UNO (ICCV 2021). Each of these rows sums to 1; the others are 0. One row has the same weight for all
    columns.

    cosines: float [..., B, K]. among: bool [B], the rows that are assigned. epsilon: the temperature.
    """
    found = (cosines / epsilon).exp() * among[:, None]
    found = found / found.sum(dim=(-2, -1), keepdim=True).clamp(min=torch.finfo(found.dtype).tiny)
    rows, columns = among.sum().clamp(min=1), cosines.shape[-1]
    for _ in range(iterations):
        found = _divided(found, found.sum(dim=-2, keepdim=True)) / columns
        found = _divided(found, found.sum(dim=-1, keepdim=True)) / rows
    return found * rows


def _divided(values: Tensor, total: Tensor) -> Tensor:
    """Return values / total, and 0 where the total is 0."""
    return values / torch.where(total > 0, total, 1)


@torch.no_grad()
def targets(cosines: Tensor, labels: Tensor, epsilon: float, iterations: int, first: int = 0) -> Tensor:
    """Return the targets of each row: the class of a labelled image, else its assignment to the columns from `first`.

    Source: UNO (ICCV 2021), where `first` is the number of Old classes; 0 as the GCD authors use it for UNO+.

    cosines: float [..., B, K]. labels: int64 [B], -1 for an unlabelled image. Returns float [..., B, K] without
    gradient, of sum 1 in each row.
    """
    assigned = sinkhorn(cosines[..., first:], labels < 0, epsilon, iterations)
    true = labels[:, None] == torch.arange(cosines.shape[-1], device=labels.device)
    found = true.to(assigned.dtype).expand(cosines.shape).clone()
    found[..., first:] += assigned
    return found


@full_precision
def swapped_prediction(cosines: Tensor, target: Tensor, temperature: float) -> Tensor:
    """Return the cross-entropy of each view's prediction with the target of the other view.

    Source: UNO (ICCV 2021). The loss is the mean over both directions and all images.

    cosines: float [2, H, B, K] of two views and H heads, before the temperature. target: [2, H, B, K]. Returns the
    loss of each head in nats, float [H].
    """
    return -(target.flip(0) * (cosines / temperature).log_softmax(dim=-1)).sum(dim=-1).mean(dim=(0, 2))
