"""L_n, the neighbourhood-level context: pulls rows of one context together, pushes all other pairs apart.

Source: "Contextuality Helps Representation Learning for Generalized Category Discovery" (arXiv 2407.19752),
equation `ln` of docs/methods.md, and its released code. `same_context` is s_ij, built in
`ctxgcd.losses.pairs`; its diagonal is ignored. Each function is one variant; each returns a scalar,
0 for fewer than two rows.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ctxgcd.losses.full_precision import full_precision


def euclidean(rows: Tensor) -> Tensor:
    """Return all Euclidean distances, float [n, n]: exactly 0, with gradient 0, between equal rows.

    Differences are computed first, because the faster expansion |a|^2 + |b|^2 - 2ab loses small distances to rounding.
    """
    return torch.cdist(rows, rows, compute_mode="donot_use_mm_for_euclid_dist")


def _mean_over_pairs(terms: Tensor) -> Tensor:
    """Return the mean of `terms` [n, n] over the n(n-1) ordered pairs of different rows."""
    n = len(terms)
    itself = torch.eye(n, dtype=torch.bool, device=terms.device)
    return terms.masked_fill(itself, 0).sum() / max(n * (n - 1), 1)


def _contrast(projections: Tensor, same_context: Tensor, delta: float) -> Tensor:
    distance = euclidean(projections)
    return _mean_over_pairs(torch.where(same_context, distance.square(), (delta - distance).relu().square()))


@full_precision
def paper(z: Tensor, same_context: Tensor, delta: float) -> Tensor:
    """Return L_n as in the paper: s*d + (1-s)*(delta - d) with the cosine distance d, mean over i != j.

    The form is linear and s has no gradient, so delta adds a constant only: no value of it changes a result.

    z: float [n, d], L2-normalised. same_context: bool [n, n]. The value can be negative.
    """
    distance = 1 - z @ z.T
    return _mean_over_pairs(torch.where(same_context, distance, delta - distance))


def released(projections: Tensor, same_context: Tensor, delta: float) -> Tensor:
    """Return L_n as the released code computes it: a float32 value for logging, detached from the graph.

    s*d^2 + (1-s)*max(0, delta - d)^2 with the Euclidean distance d of the raw projections. The released code
    computes d without gradient, so this term trains nothing.

    projections: float [n, d], not normalised. same_context: bool [n, n].
    """
    with torch.no_grad(), torch.autocast(projections.device.type, enabled=False):
        return _contrast(projections.float(), same_context, delta)


@full_precision
def mended(projections: Tensor, same_context: Tensor, delta: float) -> Tensor:
    """Return the released form of L_n with a gradient: our guess at the intended loss.

    Two equal rows (an image sampled twice) have distance 0, where the direction of the gradient is undefined: the
    gradient of such a pair is 0.

    projections: float [n, d], not normalised. same_context: bool [n, n].
    """
    return _contrast(projections, same_context, delta)
