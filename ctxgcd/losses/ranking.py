"""The terms of RS+ on pairs with the same largest features, equations `rsbce` and `rscons` of docs/methods.md."""

from __future__ import annotations

import torch
from torch import Tensor

from ctxgcd.losses.full_precision import full_precision

EPSILON = 1e-7


@full_precision
def same_top(features: Tensor, k: int, *, absolute: bool = False) -> Tensor:
    """Return whether the k largest dimensions of two rows are the same set, bool [B, B]; the diagonal is true.

    Source: AutoNovel (ICLR 2020). Equal values are ordered by their dimension, the lowest first.

    features: float [B, d], k of at most d. absolute: whether absolute values are compared.
    """
    values = features.abs() if absolute else features
    top = values.sort(dim=1, descending=True, stable=True).indices[:, :k].sort(dim=1).values
    return (top[:, None] == top[None]).all(dim=2)


def with_truth(same: Tensor, labels: Tensor) -> Tensor:
    """Return the pairs, where those of two labelled images are replaced by whether their labels are equal.

    same: bool [B, B]. labels: int64 [B], -1 for an unlabelled image.
    """
    labelled = labels >= 0
    return torch.where(labelled[:, None] & labelled, labels[:, None] == labels, same)


@full_precision
def pair_bce(view_1: Tensor, view_2: Tensor, same: Tensor) -> Tensor:
    """Return the binary cross-entropy of p_i * q_j with the pairs, mean over all B^2 ordered pairs.

    Source: AutoNovel (ICLR 2020). p_i and q_j are the softmax of the logits of view 1 and view 2, and 1e-7 is added
    inside the logarithms.

    view_1, view_2: logits float [B, K]. same: bool [B, B]. Returns a scalar in nats.
    """
    # Rounding can give slightly more than 1, and then the logarithm of a negative number.
    both = (view_1.softmax(dim=1) @ view_2.softmax(dim=1).T).clamp(0, 1)
    return -(torch.where(same, both, 1 - both) + EPSILON).log().mean()


@full_precision
def consistency(view_1: Tensor, view_2: Tensor) -> Tensor:
    """Return twice the mean squared difference of the softmax of two views.

    Source: the adaptation of AutoNovel to one head by the authors of GCD (CVPR 2022), where the terms of both heads
    became the same term.

    view_1, view_2: logits float [B, K].
    """
    return 2 * (view_1.softmax(dim=1) - view_2.softmax(dim=1)).square().mean()
