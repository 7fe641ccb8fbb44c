"""Neighbour batches: random queries, each with its nearest images."""

from __future__ import annotations

import torch
from torch import Tensor

from ctxgcd.errors import UserError


def query_batch(lists: Tensor, queries: int, generator: torch.Generator) -> Tensor:
    """Return the images of `queries` distinct random queries, each followed by its k-1 nearest other images.

    Source: arXiv 2407.19752, the batch of the full method. Queries are uniform over the N images; an image
    can occur more than once, as a neighbour of several queries. Equal generator states give
    equal batches.

    lists: int [N, k-1], nearest first, the image itself excluded. Returns int64 [queries * k] on its device.
    Raises UserError if k < 2, or if `queries` is not in 1..N.
    """
    images, others = lists.shape
    if others < 1:
        raise UserError(f"the neighbour count k is {others + 1}, but expected at least 2; set a larger k")
    if not 1 <= queries <= images:
        raise UserError(
            f"a batch has {queries} queries, but expected 1 to {images} (the number of images); "
            "change the batch size or the neighbour count k"
        )
    drawn = torch.randperm(images, generator=generator, device=generator.device)[:queries]
    drawn = drawn.to(lists.device, non_blocking=True)
    return torch.cat([drawn[:, None], lists[drawn].long()], dim=1).flatten()
