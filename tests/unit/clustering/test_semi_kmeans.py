"""Semi-supervised k-means against loops, and in degenerate cases where the published code gives NaN."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn.functional import normalize

from ctxgcd.clustering import semi_kmeans
from ctxgcd.clustering.semi_kmeans import nearest_centre, semi_supervised_kmeans
from ctxgcd.errors import UserError

torch.set_num_threads(1)


def blobs(classes: int, each: int, spread: float = 0.15, seed: int = 0) -> tuple[Tensor, Tensor]:
    stream = torch.Generator().manual_seed(seed)
    truth = torch.arange(classes * each) % classes
    centres = normalize(torch.randn(classes, 8, generator=stream), dim=1)
    return normalize(centres[truth] + spread * torch.randn(len(truth), 8, generator=stream), dim=1), truth


def half_labelled(truth: Tensor, old: int) -> Tensor:
    return truth.where((truth < old) & (torch.arange(len(truth)) % 4 < 2), torch.tensor(-1))


def run_plainly(features: Tensor, labels: Tensor, centres: Tensor, iterations: int) -> tuple[float, list[int]]:
    """Lloyd's iterations with loops in float64; an empty cluster takes the unlabelled row farthest from its centre."""
    x, c, best = features.double().numpy(), centres.double().numpy().copy(), (np.inf, [])
    free = [i for i in range(len(x)) if labels[i] < 0]
    for _ in range(iterations):
        apart = [[float(((x[i] - centre) ** 2).sum()) for centre in c] for i in range(len(x))]
        assigned = [int(labels[i]) if labels[i] >= 0 else int(np.argmin(apart[i])) for i in range(len(x))]
        inertia = sum(apart[i][assigned[i]] for i in range(len(x)))
        if inertia < best[0]:
            best = (inertia, assigned)
        new = np.zeros_like(c)
        far = sorted(free, key=lambda i: -apart[i][assigned[i]])
        for cluster in range(len(c)):
            members = [i for i in range(len(x)) if assigned[i] == cluster]
            new[cluster] = x[members].mean(axis=0) if members else x[far.pop(0)]
        shift = sum(float(np.linalg.norm(new[k] - c[k])) for k in range(len(c))) ** 2
        c = new
        if shift < 1e-4:
            break
    return best


@pytest.mark.parametrize("seed", range(6))
def test_one_run_against_loops(seed: int) -> None:
    features, truth = blobs(5, 16, spread=0.5, seed=seed)
    labels = half_labelled(truth, 2)
    draw = torch.Generator().manual_seed(seed)
    centres = torch.randn(7, 8, generator=draw)
    centres[:2] = torch.stack([features[labels == c].mean(dim=0) for c in range(2)])
    centres[4] = 50.0  # far from every row: empty at first
    inertia, assigned, _ = semi_kmeans.lloyd(features, labels, centres, 30)
    expected = run_plainly(features, labels, centres, 30)
    assert inertia == pytest.approx(expected[0], rel=1e-5)
    assert assigned.tolist() == expected[1]


def test_blobs_are_found_and_labelled_rows_stay() -> None:
    features, truth = blobs(6, 20)
    labels = half_labelled(truth, 3)
    labels[0] = 1  # a labelled row far from its class stays in it
    found, centres = semi_supervised_kmeans(features, labels, 6, restarts=10, iterations=50, seed=0)
    known = labels >= 0
    assert torch.equal(found[known], labels[known])
    old = (truth < 3) & ~known
    assert torch.equal(found[old], truth[old])
    for new in range(3, 6):
        assert len(found[truth == new].unique()) == 1
        assert int(found[truth == new][0]) >= 3
    for cluster in range(6):  # means over labelled and unlabelled members, not normalised again
        assert torch.allclose(centres[cluster], features[found == cluster].mean(dim=0), atol=1e-6)


def test_same_seed_same_clusters_in_every_tile(monkeypatch: pytest.MonkeyPatch) -> None:
    features, truth = blobs(6, 30, spread=0.6)
    labels = half_labelled(truth, 3)

    def clusters(seed: int) -> list[int]:
        return semi_supervised_kmeans(features, labels, 8, restarts=3, iterations=50, seed=seed)[0].tolist()

    first = clusters(0)
    assert clusters(0) == first
    assert clusters(1) != first
    monkeypatch.setattr(semi_kmeans, "CELLS", 8 * 7)  # seven rows at a time
    assert clusters(0) == first


def test_more_restarts_never_raise_the_inertia() -> None:
    features, truth = blobs(8, 20, spread=0.7)
    labels = half_labelled(truth, 4)

    def inertia(restarts: int) -> float:
        found, centres = semi_supervised_kmeans(features, labels, 8, restarts=restarts, iterations=100, seed=0)
        return float(((features - centres[found]) ** 2).sum())

    values = [inertia(restarts) for restarts in (1, 3, 10)]
    assert values == sorted(values, reverse=True)


def test_corners() -> None:
    features, truth = blobs(3, 8)
    # All unlabelled rows equal: k-means++ has no distance to draw by, clusters stay empty; no NaN.
    features[truth == 2] = features[truth == 2][0]
    labels = truth.where(truth < 2, torch.tensor(-1))
    found, centres = semi_supervised_kmeans(features, labels, 5, restarts=2, iterations=20, seed=0)
    assert centres.isfinite().all()
    assert torch.equal(found[labels >= 0], labels[labels >= 0])
    # As many new clusters as unlabelled rows; no labelled row at all; all K old.
    assert len(semi_supervised_kmeans(features, labels, 10, restarts=1, iterations=9, seed=0)[0]) == 24
    alone = semi_supervised_kmeans(features, torch.full((24,), -1), 3, restarts=5, iterations=50, seed=0)[0]
    assert sorted(alone.unique().tolist()) == [0, 1, 2]
    assert set(semi_supervised_kmeans(features, labels, 2, restarts=1, iterations=9, seed=0)[0].tolist()) == {0, 1}
    # Old classes need not be the first ids: cluster 3 is class 3.
    moved = labels.where(labels != 1, torch.tensor(3))
    found = semi_supervised_kmeans(features, moved, 4, restarts=2, iterations=20, seed=0)[0]
    assert torch.equal(found[moved >= 0], moved[moved >= 0])
    assert set(found[moved < 0].tolist()) <= {0, 1, 2, 3}


def test_features_that_are_not_finite_are_refused() -> None:
    features, truth = blobs(3, 8)
    features[5, 2] = torch.nan
    with pytest.raises(UserError, match="not finite"):
        semi_supervised_kmeans(features, half_labelled(truth, 2), 3, restarts=1, iterations=1, seed=0)


def test_centres_are_the_means_of_their_members_after_any_iteration() -> None:
    features, truth = blobs(6, 20, spread=0.6)
    labels = half_labelled(truth, 3)
    for of, iterations in ((features, 1), (features, 3), (features.double(), 2)):
        found, centres = semi_supervised_kmeans(of, labels, 6, restarts=1, iterations=iterations, seed=0)
        assert centres.dtype == of.dtype
        for cluster in found.unique():
            assert torch.allclose(centres[cluster], of[found == cluster].mean(dim=0), atol=1e-6)


@pytest.mark.parametrize(("clusters", "words"), [(1, "have 2 classes"), (11, "give a smaller K")])
def test_impossible_k_is_refused(clusters: int, words: str) -> None:
    features, truth = blobs(3, 8)
    labels = truth.where(truth < 2, torch.tensor(-1))
    with pytest.raises(UserError, match=words):
        semi_supervised_kmeans(features, labels, clusters, restarts=1, iterations=1, seed=0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_nearest_centre_against_loops(dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(semi_kmeans, "CELLS", 30)
    stream = torch.Generator().manual_seed(0)
    rows, centres = (torch.randn(n, 5, generator=stream).to(dtype) for n in (50, 6))
    nearest, apart = nearest_centre(rows, centres)
    distances = ((rows.double()[:, None] - centres.double()[None]) ** 2).sum(dim=2)
    assert torch.equal(nearest, distances.argmin(dim=1))
    assert torch.allclose(apart.double(), distances.min(dim=1).values, atol=1e-5)
