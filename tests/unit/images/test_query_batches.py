"""The neighbour batch: queries are uniform and the random stream advances."""

from __future__ import annotations

import pytest
import torch

from ctxgcd.errors import UserError
from ctxgcd.images.query_batches import query_batch

torch.set_num_threads(1)


@pytest.mark.parametrize("k", [2, 5, 7, 10, 30])
def test_query_batch(k: int) -> None:
    images, queries = 40, 128 // k if k > 5 else 20
    lists = torch.randint(0, images, (images, k - 1))
    batch = query_batch(lists, queries, torch.Generator().manual_seed(3))
    assert batch.shape == (queries * k,)
    assert batch.dtype == torch.int64
    grouped = batch.view(queries, k)
    assert len(set(grouped[:, 0].tolist())) == queries
    assert torch.equal(grouped[:, 1:], lists[grouped[:, 0]])
    assert torch.equal(batch, query_batch(lists, queries, torch.Generator().manual_seed(3)))
    assert not torch.equal(batch, query_batch(lists, queries, torch.Generator().manual_seed(4)))


def test_queries_are_uniform_and_the_stream_advances() -> None:
    generator = torch.Generator().manual_seed(0)
    lists = torch.zeros(10, 1, dtype=torch.int32)
    drawn = torch.cat([query_batch(lists, 3, generator)[::2] for _ in range(2000)])
    counts = drawn.bincount(minlength=10).float()
    assert counts.sum() == 6000
    assert (counts - 600).abs().max() < 100


def test_query_batch_refuses() -> None:
    generator = torch.Generator()
    assert len(query_batch(torch.zeros(4, 1, dtype=torch.long), 4, generator)) == 8
    for lists, queries in ((torch.zeros(4, 1), 5), (torch.zeros(4, 0), 2), (torch.zeros(4, 1), 0)):
        with pytest.raises(UserError):
            query_batch(lists.long(), queries, generator)
