"""Nearest neighbours."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.nn.functional import normalize

from ctxgcd.clustering.neighbours import nearest, order_keys
from ctxgcd.errors import UserError

torch.set_num_threads(1)


@pytest.mark.parametrize("own", [slice(0, 7), slice(5, 30), slice(29, 30)])
def test_nearest_of_some_rows_are_those_of_all(own: slice) -> None:
    features = normalize(torch.randn(30, 6, generator=torch.Generator().manual_seed(0)), dim=1)
    assert torch.equal(nearest(features, 4, own, chunk=11), nearest(features, 4, chunk=11)[own])


def slow_nearest(features: Tensor, k: int) -> list[list[int]]:
    """Sort by decreasing similarity, then by index, with Python's stable sort."""
    similarity = (features @ features.T).tolist()
    n = len(similarity)
    return [sorted((j for j in range(n) if j != i), key=lambda j: -similarity[i][j])[:k] for i in range(n)]


@pytest.mark.parametrize("chunk", [8, 64, 4096])
@pytest.mark.parametrize("k", [1, 9, 99])
def test_nearest_against_loops(k: int, chunk: int) -> None:
    features = normalize(torch.randn(100, 16, generator=torch.Generator().manual_seed(0)), dim=1)
    found = nearest(features, k, chunk=chunk)
    assert found.dtype == torch.int64
    assert found.shape == (100, k)
    # Compared by value: products of tiles of different shapes may differ in the last bit.
    similarity = features @ features.T
    expected = torch.tensor(slow_nearest(features, k))
    torch.testing.assert_close(similarity.gather(1, found), similarity.gather(1, expected), rtol=0, atol=1e-6)
    assert not (found == torch.arange(100)[:, None]).any()
    assert all(len(set(row)) == k for row in found.tolist())


@pytest.mark.parametrize("chunk", [3, 5, 4096])
@pytest.mark.parametrize("k", [1, 2, 5, 12, 31])
def test_ties_go_to_the_lowest_index(k: int, chunk: int) -> None:
    # One-hot rows and their opposites: similarities are exactly 1, 0, -0 and -1, nearly all tied.
    draw = torch.Generator().manual_seed(1)
    features = torch.eye(4)[torch.randint(0, 4, (32,), generator=draw)]
    features[::3] *= -1
    assert nearest(features, k, chunk=chunk).tolist() == slow_nearest(features, k)
    equal = torch.eye(4)[:1].repeat(32, 1)
    assert nearest(equal, k, chunk=chunk).tolist() == slow_nearest(equal, k)


def test_nearest_takes_half_precision() -> None:
    features = normalize(torch.randn(50, 16, generator=torch.Generator().manual_seed(0)), dim=1).half()
    assert torch.equal(nearest(features, 5), nearest(features.float(), 5))


@pytest.mark.parametrize("k", [0, 10])
def test_nearest_refuses(k: int) -> None:
    with pytest.raises(UserError, match="nearest"):
        nearest(torch.eye(10), k)


def test_keys_order_by_number_then_by_lowest_column() -> None:
    falling = torch.tensor([torch.inf, 1.0, 1e-30, 0.0, -0.0, -1e-30, -1.0, -torch.inf])
    keys = order_keys(falling, torch.arange(8))
    assert keys.tolist() == sorted(keys.tolist(), reverse=True)
    tied = order_keys(torch.tensor([-0.0, 0.0]), torch.tensor([0, 1]))
    assert tied[0] == tied[1] + 1


def slow_euclidean(features: Tensor, k: int) -> list[list[int]]:
    """Sort by increasing Euclidean distance in float64, then by index."""
    rows = features.double()
    distance = [[float((a - b).square().sum()) for b in rows] for a in rows]
    return [sorted((j for j in range(len(rows)) if j != i), key=lambda j: distance[i][j])[:k] for i in range(len(rows))]


@pytest.mark.parametrize("chunk", [8, 64])
@pytest.mark.parametrize("offset", [0.0, 100.0])
def test_nearest_by_euclidean_distance_against_loops(chunk: int, offset: float) -> None:
    """Rows of different lengths, for which the cosine gives other lists, also far from the origin."""
    draw = torch.Generator().manual_seed(2)
    features = torch.randn(60, 16, generator=draw) * (0.5 + torch.rand(60, 1, generator=draw)) + offset
    found = nearest(features, 9, chunk=chunk, euclidean=True)
    assert found.tolist() == slow_euclidean(features, 9)
    assert found.tolist() != nearest(normalize(features, dim=1), 9).tolist()
    own = slice(11, 40)
    assert torch.equal(nearest(features, 9, own, chunk=chunk, euclidean=True), found[own])


def test_equal_rows_are_nearest_by_index() -> None:
    features = torch.eye(4).repeat(5, 1) * 3
    assert nearest(features, 6, chunk=7, euclidean=True).tolist() == slow_euclidean(features, 6)
