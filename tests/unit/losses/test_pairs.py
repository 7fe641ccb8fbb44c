"""Context pairs against plain loops."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from ctxgcd.losses.pairs import mended_pairs, mutual_over_dataset, mutual_same_label, released_pairs

torch.set_num_threads(1)


def draw(n: int, seed: int, classes: int = 3) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(n, 5, generator=generator), torch.randint(0, classes, (n,), generator=generator)


def euclid(a: list[float], b: list[float]) -> float:
    return math.dist(a, b)


def cosine(a: list[float], b: list[float]) -> float:
    return 1 - sum(x * y for x, y in zip(a, b, strict=True)) / math.hypot(*a) / math.hypot(*b)


def slow_mutual(x: Tensor, pseudo: Tensor, k: int, distance: object) -> list[list[bool]]:
    points = x.tolist()
    n = len(points)
    near = []
    for i in range(n):
        others = sorted((j for j in range(n) if j != i), key=lambda j: distance(points[i], points[j]))  # type: ignore[operator]
        near.append(set(others[:k]))
    return [[j in near[i] and i in near[j] and bool(pseudo[i] == pseudo[j]) for j in range(n)] for i in range(n)]


def slow_released(x: Tensor, pseudo: Tensor, k: int) -> list[list[bool]]:
    points, labels = x.tolist(), pseudo.tolist()
    n = len(points)
    holds = [[False] * n for _ in range(n)]
    for i in range(n):
        farthest = sorted(range(n), key=lambda j: -euclid(points[i], points[j]))[:k]
        for rank, j in enumerate(farthest):
            holds[i][j] = labels[i] == labels[rank]
    return [[holds[i][j] != holds[j][i] for j in range(n)] for i in range(n)]


@pytest.mark.parametrize(("n", "k"), [(2, 1), (9, 3), (12, 10), (12, 11), (6, 50)])
@pytest.mark.parametrize("seed", range(3))
def test_pairs_against_loops(n: int, k: int, seed: int) -> None:
    x, pseudo = draw(n, seed)
    assert mutual_same_label(x, pseudo, k).tolist() == slow_mutual(x, pseudo, k, cosine)
    assert mended_pairs(x, pseudo, k).tolist() == slow_mutual(x, pseudo, k, euclid)
    assert released_pairs(x, pseudo, k).tolist() == slow_released(x, pseudo, k)


def test_pairs_are_symmetric_with_an_empty_diagonal() -> None:
    x, pseudo = draw(20, 0)
    x[10:] = x[:10]  # every image twice: zero distances
    for pairs in (mutual_same_label, mended_pairs, released_pairs):
        s = pairs(x, pseudo, 4)
        assert s.dtype == torch.bool
        assert torch.equal(s, s.T)
        assert not s.diagonal().any()
        assert not pairs(x[:1], pseudo[:1], 4).any()
    for pairs in (mutual_same_label, mended_pairs):
        same = pseudo[:, None] == pseudo
        assert not (pairs(x, pseudo, 4) & ~same).any()
        assert torch.equal(pairs(x, pseudo, 19), same & ~torch.eye(20, dtype=torch.bool))


def test_cosine_and_euclidean_lists_differ_by_scale() -> None:
    x = torch.tensor([[1.0, 0.0], [9.0, 0.1], [1.0, 0.3]])
    pseudo = torch.zeros(3, dtype=torch.long)
    assert mutual_same_label(x, pseudo, 1)[0].tolist() == [False, True, False]
    assert mended_pairs(x, pseudo, 1)[0].tolist() == [False, False, True]


def test_pairs_need_no_gradient_and_ignore_autocast() -> None:
    x, pseudo = draw(30, 1)
    x.requires_grad_()
    for pairs in (mutual_same_label, mended_pairs, released_pairs):
        plain = pairs(x, pseudo, 5)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            assert torch.equal(plain, pairs(x, pseudo, 5))
        assert pairs(x.bfloat16(), pseudo, 5).dtype == torch.bool


def test_mutual_over_dataset() -> None:
    lists = torch.tensor([[1, 2], [0, 2], [3, 4], [2, 4], [2, 3], [0, 1]])
    image_ids = torch.tensor([0, 1, 2, 0, 5, 3])
    pseudo = torch.tensor([7, 7, 7, 7, 7, 1])
    s = mutual_over_dataset(lists[image_ids], image_ids, pseudo)
    expected = [
        [
            i != j and bool(pseudo[i] == pseudo[j]) and (a == b or (b in lists[a].tolist() and a in lists[b].tolist()))
            for j, b in enumerate(image_ids.tolist())
        ]
        for i, a in enumerate(image_ids.tolist())
    ]
    assert s.tolist() == expected
    assert s[0, 3]
    assert s[0, 1]
    assert not s[0, 2]
    assert not s[2, 5]
    assert not s[4].any()
