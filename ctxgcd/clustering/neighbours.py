"""Exact nearest neighbours, computed in tiles, so that the memory does not grow quadratically."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from ctxgcd.errors import UserError
from ctxgcd.losses.full_precision import full_precision

LOW_HALF = 0xFFFFFFFF


def order_keys(similarity: Tensor, columns: Tensor) -> Tensor:
    """Return int64 keys that increase with the float32 similarity, then with decreasing column.

    similarity: float32 [..., n]; columns: int64 that broadcasts with it.
    The high half contains the bits of the float, which sort like the number after the negative half is reversed.
    """
    bits = (similarity + 0.0).view(torch.int32)  # + 0.0: -0.0 equals 0.0 but has other bits
    return ((bits ^ ((bits >> 31) & 0x7FFFFFFF)).long() << 32) + (LOW_HALF - columns)


def _best(similarity: Tensor, columns: Tensor, k: int) -> Tensor:
    """Return the keys of each row's k best columns (all of them when there are fewer), in any order."""
    values, places = similarity.topk(min(k + 1, len(columns)))
    keys = order_keys(values, columns[places])
    if len(columns) > k:
        # topk selects arbitrarily among equal values: if the k-th equals the next one, compare whole keys.
        tied = (values[:, k - 1] == values[:, k]).nonzero()[:, 0]
        keys[tied] = order_keys(similarity[tied], columns).topk(k + 1).values
    return keys.topk(min(k, len(columns))).values


@torch.no_grad()
@full_precision
def nearest(
    features: Tensor,
    k: int,
    own: slice = slice(None),
    chunk: int = 4096,
    report: Callable[[int], None] = lambda rows: None,
    *,
    euclidean: bool = False,
) -> Tensor:
    """Return the k nearest other rows of every row (or of those of the slice `own`), nearest first, by cosine.

    With `euclidean`, by the Euclidean distance: for row a, the nearest b have the largest a.b - |b|^2 / 2. The mean of
    all rows is subtracted first, which keeps distances and makes rounding errors smaller.

    Ties are resolved by the lowest index, for all tile sizes for which the products round identically. The product of
    two tiles of own rows is computed once and used in both directions.
    Memory: a few tiles of chunk x chunk numbers (below 0.5 GB at 4096) plus the result.

    features: float [N, d], L2-normalised unless `euclidean`, compared in float32.
    Returns int64 [N, k] on the same device.
    report: called with the number of own rows that are finished since the last call.
    Raises UserError if k is not in 1..N-1.
    """
    n = len(features)
    if not 1 <= k < n:
        raise UserError(f"k is {k}, but expected 1 to {n - 1} nearest neighbours among {n} images; change k")
    features, index = features.float(), torch.arange(n, device=features.device)
    if euclidean:
        features = features - features.mean(dim=0)
        half = features.square().sum(dim=1) / 2
    tiles = index[own].split(chunk)
    around = (index[: tiles[0][0]], index[tiles[-1][-1] + 1 :])
    others = [part for side in around if len(side) for part in side.split(chunk)]
    best = [torch.empty(len(rows), 0, dtype=torch.int64, device=features.device) for rows in tiles]

    def take(tile: int, similarity: Tensor, columns: Tensor) -> None:
        if euclidean:
            similarity = similarity - half[columns]
        keys = torch.cat([best[tile], _best(similarity, columns, k)], dim=1)
        best[tile] = keys.topk(min(k, keys.shape[1])).values

    for a, rows in enumerate(tiles):
        for b, columns in enumerate(tiles[a:], a):
            similarity = features[rows] @ features[columns].T
            if a == b:
                similarity.fill_diagonal_(-torch.inf)
            else:
                take(b, similarity.T.contiguous(), rows)
            take(a, similarity, columns)
        for columns in others:
            take(a, features[rows] @ features[columns].T, columns)
        report(len(rows))
    return LOW_HALF - (torch.cat(best) & LOW_HALF)
