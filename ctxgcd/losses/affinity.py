"""The affinity term of PromptCAL and its graph, equations `consensus` to `affinity` of docs/methods.md."""

from __future__ import annotations

from itertools import accumulate

import torch
from torch import Tensor
from torch.nn.functional import normalize

from ctxgcd.losses.full_precision import full_precision

COLUMNS = 512  # of the graph that are computed at once
LEAST = 1e-10  # added to the sum of a row, as in the released code


@torch.no_grad()
@full_precision
def neighbour_lists(z: Tensor, k: int) -> Tensor:
    """Return each row and its k nearest others by cosine, int64 [n, k + 1]; with fewer rows, all of them.

    z: float [n, d], L2-normalised.
    """
    others = (z @ z.T).fill_diagonal_(-torch.inf).topk(min(k, len(z) - 1)).indices
    return torch.cat([torch.arange(len(z), device=z.device)[:, None], others], dim=1)


def consensus_product(lists: Tensor, x: Tensor) -> Tensor:
    """Return A x, where A_ij is the number of lists with both i and j for i != j, and A_ii = 0.

    It takes a few additions of each list's rows, without A, and its sums have only terms of the sign of x: a number
    that is exactly 0 stays so. The order of the additions is the same on every call and device.

    lists: int64 [n, m], without repetitions in a row; x: float [n, r].
    """
    members = [x[members] for members in lists.unbind(dim=1)]
    out = torch.zeros_like(x)
    before, after = accumulate([out, *members]), [*accumulate([out, *reversed(members)])][-2::-1]
    out = out.clone()
    for member, earlier, later in zip(lists.unbind(dim=1), before, after, strict=False):
        out.index_add_(0, member, earlier + later)
    return out


@torch.no_grad()
def diffused(lists: Tensor, dtype: torch.dtype = torch.float32) -> Tensor:
    """Return Q = P P P' + I [n, n], where P is A with rows divided by their sums.

    A has at most n m (m - 1) entries that are not 0, so that the products take O(n^2 m) operations instead of O(n^3).

    lists: int64 [n, m], as for `consensus_product`.
    """
    nodes, others = torch.arange(len(lists), device=lists.device), lists.shape[1] - 1
    of_lists = torch.zeros(len(lists), dtype=dtype, device=lists.device)
    sums = of_lists.index_add(0, lists.flatten(), torch.ones_like(lists, dtype=dtype).flatten()) * others + LEAST
    found = []
    for columns in nodes.split(COLUMNS):
        identity = (nodes[:, None] == columns).to(dtype)
        x = consensus_product(lists, identity) / sums[columns]
        for _ in range(2):
            x = consensus_product(lists, x) / sums[:, None]
        found.append(x + identity)
    return torch.cat(found, dim=1)


@torch.no_grad()
def cut_of(q: Tensor, quantile: float) -> Tensor:
    """Return the quantile, with linear interpolation, of the entries above the mean of those that are not 0.

    Infinity if no entry is above it.

    q: float32 or float64 [n, n] of at least 0.
    """
    below = (q <= q.sum() / (q > 0).sum()).sum()
    above = q.numel() - below
    place = quantile * (above - 1).double()
    lower = _nth_smallest(q, below + place.long())
    following = (q <= lower).sum() > below + place.long() + 1
    upper = torch.where(following, lower, q.masked_fill(q <= lower, torch.inf).min())
    share = place.frac().to(q.dtype)
    cut = torch.where(share > 0, lower + share * (upper - lower), lower)
    return torch.where(above > 0, cut, torch.inf)


def _nth_smallest(values: Tensor, n: Tensor) -> Tensor:
    """Return the n-th smallest value, counted from 0, by bisection of the bits of floats of at least 0.

    Unlike a sort or a mask, it needs no further memory of the size of the values, and the host never waits.
    """
    kind = torch.int32 if values.dtype == torch.float32 else torch.int64
    bits, most = values.view(kind), torch.iinfo(kind).max
    low, high = torch.zeros((), dtype=kind, device=values.device), torch.full((), most, device=values.device).to(kind)
    for _ in range(torch.iinfo(kind).bits - 1):
        middle = low + (high - low) // 2
        enough = (bits <= middle).sum() > n
        low, high = torch.where(enough, low, middle + 1), torch.where(enough, middle, high)
    return low.view(values.dtype)


@torch.no_grad()
@full_precision
def affine_pairs(rows: Tensor, memory: Tensor, k: int, quantile: float) -> Tensor:
    """Return whether each row and each row of the memory are affine, bool [n, m].

    Source: PromptCAL (CVPR 2023), as its released code computes it: the graph of all n + m nodes is diffused, and a
    pair is affine if its entry of Q is above the `quantile` of the entries above the mean; the diagonal counts in both.

    rows, memory: float [n, d] and [m, d], L2-normalised. k: neighbours of a node.
    """
    nodes = torch.cat([rows, memory])
    q = diffused(neighbour_lists(nodes, k), nodes.dtype)
    return q[: len(rows), len(rows) :] > cut_of(q, quantile)


def drawn_negatives(affine: Tensor, most: int, drawn: Tensor) -> Tensor:
    """Return a random subset of each row's pairs that are not affine, bool [n, m]: `most` less its affine pairs.

    All of them if there are fewer, and none if there are at least `most` affine pairs.

    affine: bool [n, m]. drawn: random numbers [n, m]; the pairs with the smallest ones are used.
    """
    rank = drawn.masked_fill(affine, torch.inf).argsort(dim=1, stable=True).argsort(dim=1)
    return ~affine & (rank < most - affine.sum(dim=1, keepdim=True))


def with_labels(affine: Tensor, negatives: Tensor, labels: Tensor, of_memory: Tensor) -> tuple[Tensor, Tensor]:
    """Return positives and negatives, bool [n, m], where labels decide on pairs of two labelled images.

    Pairs of one class are positive, and affine pairs of two classes are negative. Other labelled pairs of two classes
    are negative if they were drawn.

    affine, negatives: bool [n, m]. labels, of_memory: int64 [n] and [m], -1 for unlabelled images.
    """
    both = (labels[:, None] >= 0) & (of_memory >= 0)
    same = both & (labels[:, None] == of_memory)
    different = both & ~same
    return affine & ~different | same, negatives & ~same | affine & different


@full_precision
def affinity(
    z: Tensor, teacher: Tensor, memory: Tensor, positives: Tensor, negatives: Tensor, temperature: float
) -> Tensor:
    """Return the mean negative log share of each row's positives: its teacher's row and those in the memory.

    Source: PromptCAL (CVPR 2023): the mean over the positives, then over the rows. The share is of all positives and
    negatives. With an empty memory it is 0.

    Args:
        z: float [n, d] of the student, of any scale.
        teacher: float [n, d], each row's positive, L2-normalised.
        memory: float [m, d], L2-normalised.
        positives, negatives: bool [n, m].

    Returns:
        A scalar in nats.
    """
    z = normalize(z, dim=1)
    own = torch.ones(len(z), 1, dtype=torch.bool, device=z.device)
    positives, kept = torch.cat([own, positives], dim=1), torch.cat([own, positives | negatives], dim=1)
    logits = torch.cat([(z * teacher).sum(dim=1, keepdim=True), z @ memory.T], dim=1) / temperature
    # The lowest finite number instead of -inf, so that a pair that is left out gives no NaN in the gradient.
    log_share = logits.masked_fill(~kept, torch.finfo(logits.dtype).min).log_softmax(dim=1).masked_fill(~positives, 0)
    return -(log_share.sum(dim=1) / positives.sum(dim=1)).mean()
