"""Mean-entropy regularisation: the regulariser of L_cls, equation `cls` of docs/methods.md."""

from __future__ import annotations

import math

from torch import Tensor

from ctxgcd.losses.full_precision import full_precision


@full_precision
def entropy_gap(logits: Tensor, temperature: float) -> Tensor:
    """Return log K - H(p_mean), p_mean the mean of softmax(logits / temperature) over all rows.

    Source: SimGCD (ICCV 2023), mean-entropy regulariser of L_cls; log K is added as in the released code, so
    that the term is 0 at the uniform distribution and log K when every row picks the same class.

    logits: float [2B, K], cosines before any temperature. Returns a scalar in nats, >= 0 up to rounding.
    """
    n, classes = logits.shape
    # In logarithms throughout: p log p has an infinite slope where a probability underflows to 0.
    log_mean = (logits / temperature).log_softmax(dim=1).logsumexp(dim=0) - math.log(n)
    return math.log(classes) + (log_mean.exp() * log_mean).sum()
