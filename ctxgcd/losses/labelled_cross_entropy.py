"""Cross-entropy on the labelled images in one view, equations `rsce` and `orcace` of docs/methods.md."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from ctxgcd.losses.full_precision import full_precision

IGNORED = -100


@full_precision
def labelled_cross_entropy(logits: Tensor, labels: Tensor, margin: Tensor | float = 0.0) -> Tensor:
    """Return the cross-entropy of softmax(logits) with the labels, mean over labelled rows.

    Source: AutoNovel (ICLR 2020), and with a margin ORCA (ICLR 2022).

    logits: float [B, K]. labels: int64 [B], -1 for an unlabelled image. margin: scalar that is added to the logit of
    the true class. Returns a scalar in nats; 0, with a graph, when no image is labelled.
    """
    labelled = labels >= 0
    true = labels[:, None] == torch.arange(logits.shape[1], device=logits.device)
    pushed = logits + margin * true.to(logits.dtype)
    total = F.cross_entropy(pushed, labels.masked_fill(~labelled, IGNORED), ignore_index=IGNORED, reduction="sum")
    return total / labelled.sum().clamp(min=1)
