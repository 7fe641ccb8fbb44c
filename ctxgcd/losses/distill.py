"""Self-distillation between the two views: the unsupervised half of L_cls, equation `distill` of docs/methods.md."""

from __future__ import annotations

from torch import Tensor

from ctxgcd.losses.full_precision import full_precision


@full_precision
def distill(logits: Tensor, teacher_temperature: float, student_temperature: float) -> Tensor:
    """Return the cross-entropy from the other view's sharpened, detached prediction to each row's own.

    Source: SimGCD (ICCV 2023), L_cls, as in its released code: both directions averaged, all images.

    logits: float [2B, K], cosines before any temperature. Returns a scalar in nats.
    """
    n = len(logits)
    teacher = (logits.detach() / teacher_temperature).softmax(dim=1).roll(n // 2, dims=0)
    student = (logits / student_temperature).log_softmax(dim=1)
    return -(teacher * student).sum() / max(n, 1)
