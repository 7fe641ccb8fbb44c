"""L_c, the cluster-level context: pulls the two views' prototypes of a class together, pushes other classes apart.

Source: "Contextuality Helps Representation Learning for Generalized Category Discovery" (arXiv 2407.19752),
equation `lc` of docs/methods.md, and its released code. A prototype is the direction of the sum of the rows
with one pseudo label.

Variant `mended` uses `released`, because it only fixes defects of L_n, of the pairs and of the shared weight. L_c has
its released form (raw projections of the sampled images, view 1's pseudo labels for both views, negatives within view
1), and the caller passes a separate weight lambda_c.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from ctxgcd.losses.full_precision import full_precision

# The released code's logit of a class without images in the batch, already divided by tau.
ABSENT = -10.0


def _prototypes(rows: Tensor, pseudo: Tensor, classes: int) -> tuple[Tensor, Tensor]:
    """Return unit prototypes [classes, d] (0 for an absent class) and which classes are present [classes].

    A product with the membership matrix instead of a scatter, which is deterministic on every device.
    """
    member = pseudo == torch.arange(classes, device=rows.device)[:, None]
    return F.normalize(member.to(rows.dtype) @ rows, dim=1), member.any(dim=1)


def _mean_over(present: Tensor, logits: Tensor) -> Tensor:
    """Return the mean over present classes of -log softmax(row)[own class]; 0 when none is present."""
    own = -logits.log_softmax(dim=1).diagonal()
    return own.masked_fill(~present, 0).sum() / present.sum().clamp(min=1)


@full_precision
def paper(z_1: Tensor, z_2: Tensor, pseudo_1: Tensor, pseudo_2: Tensor, classes: int, temperature: float) -> Tensor:
    """Return L_c as in the paper: view 1's prototypes against view 2's, over the classes present in both.

    Not given in the paper: tau, the normalisation of z, and which rows and pseudo labels enter; here each
    view's prototypes come from its own pseudo labels, and the loss is not symmetrised.

    z_1, z_2: float [b, d], L2-normalised. pseudo_1, pseudo_2: int [b] in 0..classes-1. Returns a scalar in
    nats; 0, with a graph, when no class is present in both views.
    """
    mu_1, present_1 = _prototypes(z_1, pseudo_1, classes)
    mu_2, present_2 = _prototypes(z_2, pseudo_2, classes)
    present = present_1 & present_2
    # The lowest finite number instead of -inf, so that without a common class the gradient has no NaN.
    logits = (mu_1 @ mu_2.T / temperature).masked_fill(~present, torch.finfo(mu_1.dtype).min)
    return _mean_over(present, logits)


@full_precision
def released(
    projections_1: Tensor, projections_2: Tensor, pseudo_1: Tensor, classes: int, temperature: float
) -> Tensor:
    """Return L_c as the released code computes it.

    View 1's pseudo labels hold for both views; the positive is across views, the negatives are view 1's own
    prototypes; an absent class stays in the denominator with the logit -10; mean over present classes.

    projections_1, projections_2: float [b, d], not normalised. pseudo_1: int [b] in 0..classes-1. Returns a
    scalar in nats.
    """
    mu_1, present = _prototypes(projections_1, pseudo_1, classes)
    mu_2, _ = _prototypes(projections_2, pseudo_1, classes)
    own = torch.eye(classes, dtype=torch.bool, device=mu_1.device)
    cosines = torch.where(own, (mu_1 * mu_2).sum(dim=1)[:, None], mu_1 @ mu_1.T)
    return _mean_over(present, (cosines / temperature).masked_fill(~present, ABSENT))
