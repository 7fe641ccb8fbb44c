"""InfoNCE: the unsupervised half of L_rep, equation `infonce` of docs/methods.md."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from ctxgcd.losses.full_precision import full_precision


@full_precision
def info_nce(projections: Tensor, temperature: float, teacher: Tensor | None = None) -> Tensor:
    """Return InfoNCE over both views in both directions: every row is an anchor, its other view the positive.

    Source: SimGCD (ICCV 2023), unsupervised part of L_rep, as in its released code: the 2B-2 rows of other
    images, of both views, are the negatives.

    projections: float [2B, d], any scale (L2-normalised here). teacher: the same rows of a teacher, which are then the
    positives and negatives. Returns a scalar in nats; 0 for one image.
    """
    n = len(projections)
    z = F.normalize(projections, dim=1)
    others = z if teacher is None else F.normalize(teacher, dim=1)
    itself = torch.eye(n, dtype=torch.bool, device=z.device)
    logits = (z @ others.T / temperature).masked_fill(itself, -torch.inf)
    other_view = torch.arange(n, device=z.device).roll(n // 2)
    return F.cross_entropy(logits, other_view, reduction="sum") / max(n, 1)
