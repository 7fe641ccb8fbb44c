"""The terms of ORCA on pairs of images, equations `orcapair` and `orcaent` of docs/methods.md."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import normalize

from ctxgcd.losses.full_precision import full_precision

LEAST_LOG, LEAST = -100.0, 1e-8


def _themselves(n: int, device: torch.device) -> Tensor:
    return torch.eye(n, dtype=torch.bool, device=device)


@full_precision
def partners(features: Tensor, labels: Tensor, drawn: Tensor) -> Tensor:
    """Return each image's partner, int64 [B].

    Source: ORCA (ICLR 2022). A labelled image has another one of its label, by random numbers, or itself if there is
    none; an unlabelled image has the most similar other image, labelled or not. The lowest index wins ties.

    features: float [B, d] of view 1, of any scale. labels: int64 [B], -1 for an unlabelled image. drawn: [B, B]
    numbers of at least 0; the partner is the candidate with the largest number in the image's row.
    """
    z, itself = normalize(features, dim=1), _themselves(len(features), features.device)
    nearest = (z @ z.T).masked_fill(itself, -torch.inf).argmax(dim=1)
    others = (labels[:, None] == labels) & ~itself
    alike = torch.where(others, drawn.to(z.dtype), itself.to(z.dtype) - 2).argmax(dim=1)  # itself before other labels
    return torch.where(labels >= 0, alike, nearest)


@full_precision
def pair_similarity(view_1: Tensor, view_2: Tensor, partner: Tensor) -> Tensor:
    """Return -log(p_i * q_n(i)), mean over all images; p and q are the softmax of view 1's and view 2's logits.

    Source: ORCA (ICLR 2022). The logarithm is at least -100.

    view_1, view_2: logits float [B, K]. partner: int64 [B], n(i). Returns a scalar in nats.
    """
    # In logarithms, because a product of probabilities that underflows has no gradient.
    both = (view_1.log_softmax(dim=1) + view_2.log_softmax(dim=1)[partner]).logsumexp(dim=1)
    return -both.clamp(min=LEAST_LOG).mean()


@full_precision
def negative_entropy(logits: Tensor) -> Tensor:
    """Return -H of the mean over the rows of the softmax, whose entries are at least 1e-8.

    Source: ORCA (ICLR 2022).

    logits: float [B, K]. Returns a scalar in nats.
    """
    mean = logits.softmax(dim=1).mean(dim=0).clamp(min=LEAST)
    return (mean * mean.log()).sum()
