"""Cross-entropy on the labelled images: the supervised half of L_cls, equation `cls` of docs/methods.md."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor

from ctxgcd.losses.full_precision import full_precision

IGNORED = -100


@full_precision
def cross_entropy(logits: Tensor, labels: Tensor, labelled: Tensor, temperature: float) -> Tensor:
    """Return the cross-entropy of softmax(logits / temperature) with the labels, mean over labelled rows.

    Source: SimGCD (ICCV 2023), supervised part of L_cls: labelled images, both views.

    logits: float [2B, K], cosines before any temperature. labels: int [B], unlabelled entries are
    ignored. labelled: bool [B]. Returns a scalar in nats; 0, with a graph, when no image is labelled.
    """
    targets = labels.long().masked_fill(~labelled, IGNORED).repeat(2)
    total = F.cross_entropy(logits / temperature, targets, ignore_index=IGNORED, reduction="sum")
    return total / (2 * labelled.sum()).clamp(min=1)
