"""k-means."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from ctxgcd.clustering.kmeans import kmeans, note_empty_clusters
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


def test_the_note_on_equal_images_is_printed_once(capfd: pytest.CaptureFixture[str]) -> None:
    """scikit-learn warns at every start; one note replaces these warnings."""
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
