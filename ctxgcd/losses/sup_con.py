"""Supervised contrastive loss: the labelled half of L_rep, equation `supcon` of docs/methods.md."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from ctxgcd.losses.full_precision import full_precision


@full_precision
def sup_con(
    projections: Tensor, labels: Tensor, labelled: Tensor, temperature: float, teacher: Tensor | None = None
) -> Tensor:
    """Return SupCon over the labelled images: both views are anchors, same-label rows are positives.

    Source: SimGCD (ICCV 2023), supervised part of L_rep, as in its released code: the anchor itself is left
    out, its own other view is a positive; the log-probability is averaged over an anchor's positives, then
    over anchors. Rows of unlabelled images are neither anchors nor candidates.

    projections: float [2B, d], any scale (L2-normalised here). labels: int [B], unlabelled entries are
    ignored. labelled: bool [B]. teacher: the same rows of a teacher, which are then the candidates. Returns a scalar in
    nats; 0, with a graph, when no image is labelled.
    """
    z = F.normalize(projections, dim=1)
    others = z if teacher is None else F.normalize(teacher, dim=1)
    anchors = labelled.repeat(2)
    classes = labels.repeat(2)
    itself = torch.eye(len(z), dtype=torch.bool, device=z.device)
    candidates = anchors & ~itself
    positives = candidates & anchors[:, None] & (classes[:, None] == classes)
    # The lowest finite number instead of -inf, so that a row without candidates gives no NaN in the gradient.
    logits = (z @ others.T / temperature).masked_fill(~candidates, torch.finfo(z.dtype).min)
    log_share = logits.log_softmax(dim=1).masked_fill(~positives, 0)
    per_anchor = log_share.sum(dim=1) / positives.sum(dim=1).clamp(min=1)
    return -per_anchor.sum() / anchors.sum().clamp(min=1)
