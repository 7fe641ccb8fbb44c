"""s_ij, equation `context` of docs/methods.md: which rows of a batch share a neighbourhood context.

Each function returns bool [n, n], symmetric, false on the diagonal.

Source: "Contextuality Helps Representation Learning for Generalized Category Discovery" (arXiv 2407.19752):
R_k (reciprocal neighbours) and C_k (those of R_k with the same pseudo label), and its released code. None of
these has a gradient. Pseudo labels are int [n], one per row.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import normalize

from ctxgcd.losses.full_precision import full_precision
from ctxgcd.losses.neighbourhood import euclidean


def _same(labels: Tensor) -> Tensor:
    return labels[:, None] == labels


def _itself(n: int, device: torch.device) -> Tensor:
    return torch.eye(n, dtype=torch.bool, device=device)


def _mutual_nearest(distance: Tensor, k: int) -> Tensor:
    """Return which pairs of rows are each among the other's k nearest other rows; k is clipped to n - 1."""
    n = len(distance)
    others = distance.masked_fill(_itself(n, distance.device), torch.inf)
    nearest = others.topk(min(k, max(n - 1, 0)), largest=False).indices
    near = torch.zeros_like(distance, dtype=torch.bool).scatter_(1, nearest, True)
    return near & near.T


@torch.no_grad()
@full_precision
def mutual_same_label(z: Tensor, pseudo: Tensor, k: int) -> Tensor:
    """Return C_k as in the paper, where N_k is the k nearest other rows of the batch by cosine.

    z: float [n, d], any scale. k: at most n - 1 is used.
    """
    z = normalize(z, dim=1)
    return _mutual_nearest(1 - z @ z.T, k) & _same(pseudo)


@torch.no_grad()
@full_precision
def mended_pairs(projections: Tensor, pseudo: Tensor, k: int) -> Tensor:
    """Return C_k with N_k the k other rows nearest by Euclidean distance between raw projections [n, d]."""
    return _mutual_nearest(euclidean(projections), k) & _same(pseudo)


@torch.no_grad()
@full_precision
def released_pairs(projections: Tensor, pseudo: Tensor, k: int) -> Tensor:
    """Return s_ij as the released code builds it, from raw projections [n, d], in float32.

    Its N_k are the k farthest rows; the label compared with i's is that of row r when j is the r-th farthest
    from i (r from 0); and s_ij holds when exactly one of the two directions does. k: at most n is used.
    """
    farthest = euclidean(projections.float()).topk(min(k, len(projections))).indices
    same = _same(pseudo)
    # The r-th column of `same` at the position of the r-th farthest row: the misalignment of the released code.
    holds = torch.zeros_like(same).scatter_(1, farthest, same[:, : farthest.shape[1]])
    return holds ^ holds.T


@torch.no_grad()
def mutual_over_dataset(nearest: Tensor, image_ids: Tensor, pseudo: Tensor) -> Tensor:
    """Return C_k with N_k over the whole dataset instead of the batch.

    Rows are mutual when each one's image is in the list of the other's; rows of one image always are.

    nearest: int [n, k], the nearest other images of each row's image. image_ids: int [n], each row's image.
    """
    near = (nearest[:, :, None] == image_ids).any(dim=1) | _same(image_ids)
    return near & near.T & _same(pseudo) & ~_itself(len(image_ids), image_ids.device)
