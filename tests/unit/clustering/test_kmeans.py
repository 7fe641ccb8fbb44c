"""k-means and the tiled nearest neighbours."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn.functional import normalize

from ctxgcd.clustering.kmeans import kmeans, note_empty_clusters
from ctxgcd.clustering.neighbours import nearest, order_keys
from ctxgcd.errors import UserError
from ctxgcd.names import counted

torch.set_num_threads(1)


def blobs(clusters: int, each: int) -> tuple[np.ndarray, np.ndarray]:
    draw = np.random.RandomState(0)
    true = np.repeat(np.arange(clusters), each)
    return (draw.randn(clusters, 8) * 10)[true] + draw.randn(len(true), 8) * 0.1, true


def test_kmeans_finds_blobs_and_repeats() -> None:
    features, true = blobs(5, 20)
    labels, centres = kmeans(features, 5, restarts=10, seed=0, threads=1)
    assert labels.dtype == np.int64
    assert labels.shape == true.shape
    assert all(len(set(labels[true == c])) == 1 for c in range(5))
    assert len(set(labels)) == 5
    assert centres[labels] == pytest.approx(features, abs=1)
    assert np.array_equal(labels, kmeans(features, 5, restarts=10, seed=0, threads=1)[0])
    assert not kmeans(features, 1, restarts=1, seed=0, threads=1)[0].any()
    assert sorted(kmeans(features[:4], 4, restarts=1, seed=1, threads=1)[0]) == [0, 1, 2, 3]


def test_kmeans_refuses_what_is_not_finite() -> None:
    features = blobs(5, 20)[0]
    features[3, 1] = np.inf
    with pytest.raises(UserError, match="not finite"):
        kmeans(features, 5, restarts=1, seed=0, threads=1)


@pytest.mark.parametrize("clusters", [0, 101])
def test_kmeans_refuses(clusters: int) -> None:
    with pytest.raises(UserError, match="clusters"):
        kmeans(blobs(5, 20)[0], clusters, restarts=1, seed=0, threads=1)


@pytest.mark.parametrize("own", [slice(0, 7), slice(5, 30), slice(29, 30)])
def test_nearest_of_some_rows_are_those_of_all(own: slice) -> None:
    features = normalize(torch.randn(30, 6, generator=torch.Generator().manual_seed(0)), dim=1)
    assert torch.equal(nearest(features, 4, own, chunk=11), nearest(features, 4, chunk=11)[own])


def slow_nearest(features: Tensor, k: int) -> list[list[int]]:
    """Rank by falling similarity, then by index, with Python's stable sort."""
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


def test_images_that_are_alike_are_told_once(capfd: pytest.CaptureFixture[str]) -> None:
    """scikit-learn warns of every start; here one sentence says it."""
    note_empty_clusters.cache_clear()
    for clusters in (2, 3):
        labels, _ = kmeans(np.ones((30, 4)), clusters, restarts=3, seed=0, threads=1)
        assert not labels.any()
    out, err = capfd.readouterr()
    assert out == "note: k-means has more clusters than there are distinct images, so some clusters are empty\n"
    assert not err


def test_numbers_and_their_nouns() -> None:
    assert [counted(n, "class") for n in (0, 1, 2)] == ["0 classes", "1 class", "2 classes"]
    assert counted(1, "image", "unlabelled") == "1 unlabelled image"
    assert counted(2000, "image", "unlabelled") == "2,000 unlabelled images"
