"""The graph and the term of PromptCAL against slow dense references, and odd cases."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor
from torch.nn.functional import normalize

from ctxgcd.losses import affinity as module
from ctxgcd.losses.affinity import (
    affine_pairs,
    affinity,
    consensus_product,
    cut_of,
    diffused,
    drawn_negatives,
    neighbour_lists,
    with_labels,
)
from tests.helpers.models import seeded

torch.set_num_threads(1)


def points(n: int, dim: int = 6, groups: int = 5, noise: float = 0.4, seed: int = 0) -> Tensor:
    stream = seeded(seed)
    centres = torch.randn(groups, dim, generator=stream, dtype=torch.float64)
    drawn = torch.randn(n, dim, generator=stream, dtype=torch.float64)
    return normalize(centres[torch.randint(groups, (n,), generator=stream)] + noise * drawn, dim=1)


def slow_graph(z: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """Return A and Q as dense matrices, entry by entry from the definition."""
    n = len(z)
    near = [sorted((j for j in range(n) if j != i), key=lambda j, i=i: -float(z[i] @ z[j])) for i in range(n)]
    lists = [{i, *of[:k]} for i, of in enumerate(near)]
    a = torch.tensor(
        [[float(sum(i in of and j in of for of in lists)) if i != j else 0.0 for j in range(n)] for i in range(n)]
    ).double()
    p = a / (a.sum(dim=1, keepdim=True) + 1e-10)
    return a, p @ p @ p.T + torch.eye(n, dtype=torch.float64)


@pytest.mark.parametrize(("n", "k"), [(30, 4), (23, 7), (9, 2), (4, 6), (2, 5), (1, 3)])
@pytest.mark.parametrize("columns", [5, 512])
def test_the_graph_is_the_dense_one(n: int, k: int, columns: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "COLUMNS", columns)
    z = points(n)
    a, q = slow_graph(z, k)
    lists = neighbour_lists(z, k)
    assert lists.shape == (n, min(k + 1, n))  # with fewer nodes, all others
    assert torch.equal(consensus_product(lists, torch.eye(n, dtype=torch.float64)), a)
    found = diffused(lists, torch.float64)
    torch.testing.assert_close(found, q, rtol=1e-12, atol=0)
    assert torch.equal(found == 0, q == 0)
    for quantile in (0.0, 0.5, 0.8, 0.99):
        above = q[q > q[q > 0].mean()]
        expected = above.quantile(quantile) if len(above) else torch.tensor(math.inf, dtype=torch.float64)
        torch.testing.assert_close(cut_of(found, quantile), expected, rtol=1e-12, atol=0)
        if n != 2:  # whose entries differ by rounding
            torch.testing.assert_close(cut_of(found.float(), quantile), expected.float(), rtol=1e-5, atol=0)
        rows = n // 3
        affine = affine_pairs(z[:rows], z[rows:], k, quantile)
        assert torch.equal(affine, (q > expected + 1e-12)[:rows, rows:])


def test_the_cut_is_an_interpolated_quantile() -> None:
    values = torch.rand(20, 20, generator=seeded(1), dtype=torch.float64)
    values[values < 0.3] = 0  # the mean is that of the others
    values[:3] = 0.9  # equal entries on both sides of a place
    for quantile in torch.linspace(0, 0.999, 40).tolist():
        above = values[values > values[values > 0].mean()]
        torch.testing.assert_close(cut_of(values, quantile), above.quantile(quantile), rtol=1e-12, atol=0)
        one = torch.tensor([[0.2, 0.0], [0.1, 0.5]])
        assert cut_of(one, quantile) == 0.5  # one entry is above the mean


def test_duplicates_are_neighbours_and_a_node_is_not_its_own() -> None:
    z = points(12)
    z[3] = z[7] = z[8]
    lists = neighbour_lists(z, 2)
    assert lists[:, 0].tolist() == list(range(12))
    assert all(len(set(row)) == 3 for row in lists.tolist())
    for node in (3, 7, 8):
        assert set(lists[node].tolist()) == {3, 7, 8}


def test_equal_entries_and_an_empty_memory_have_no_affine_pair() -> None:
    """Two nodes are in each other's lists, and with more equal nodes than neighbours all lists still agree."""
    same = points(1).expand(6, -1)
    assert not affine_pairs(same[:2], same[2:], 5, 0.5).any()
    assert affine_pairs(points(6), points(6)[:0], 3, 0.5).shape == (6, 0)
    assert cut_of(torch.ones(4, 4), 0.5) == math.inf


def test_negatives_are_drawn_from_pairs_that_are_not_affine() -> None:
    affine = torch.rand(40, 30, generator=seeded(2)) < 0.2
    affine[0], affine[1] = False, True
    affine[2, :12] = True
    drawn = torch.rand(40, 30, generator=seeded(3))
    found = drawn_negatives(affine, 12, drawn)
    assert not (found & affine).any()
    wanted = (12 - affine.sum(dim=1)).clamp(min=0).minimum((~affine).sum(dim=1))
    assert found.sum(dim=1).tolist() == wanted.tolist()
    assert not found[1:3].any()  # as many affine pairs as negatives are wanted, or more
    for row in range(40):
        others = ~affine[row] & ~found[row]
        if found[row].any() and others.any():
            assert drawn[row][found[row]].max() < drawn[row][others].min()
    every = drawn_negatives(affine, 1000, drawn)
    assert torch.equal(every, ~affine)  # fewer candidates than wanted
    assert torch.equal(drawn_negatives(affine, 12, torch.zeros(40, 30)).sum(dim=1), found.sum(dim=1))  # equal numbers


def test_labels_decide_on_labelled_pairs() -> None:
    labels, of_memory = torch.tensor([0, 1, -1]), torch.tensor([0, 1, -1, 0, 1, -1])
    affine = torch.tensor([[0, 1, 1, 0, 0, 0]] * 3, dtype=torch.bool)
    drawn = torch.tensor([[1, 0, 0, 0, 1, 1], [1, 0, 0, 0, 1, 1], [1, 0, 0, 0, 1, 1]], dtype=torch.bool)
    positives, negatives = with_labels(affine, drawn, labels, of_memory)
    # First row: the affine image of class 1 is negative, both of class 0 are positive and not negative. Second row: the
    # image of class 0 that was not drawn is neither. Third row: an unlabelled image keeps its pairs.
    assert positives.int().tolist() == [[1, 0, 1, 1, 0, 0], [0, 1, 1, 0, 1, 0], [0, 1, 1, 0, 0, 0]]
    assert negatives.int().tolist() == [[0, 1, 0, 0, 1, 1], [1, 0, 0, 0, 0, 1], [1, 0, 0, 0, 1, 1]]


def slow_affinity(z: Tensor, teacher: Tensor, memory: Tensor, pos: Tensor, neg: Tensor, tau: float) -> float:
    total = 0.0
    for i, row in enumerate(z):
        unit = row / row.norm()
        positives = [teacher[i], *memory[pos[i]]]
        every = [math.exp(float(unit @ one) / tau) for one in (*positives, *memory[neg[i]])]
        total -= sum(math.log(every[j] / sum(every)) for j in range(len(positives))) / len(positives)
    return total / len(z)


def test_the_term_is_the_slow_one_and_finite_in_odd_rows() -> None:
    z, teacher, memory = points(8).requires_grad_(), points(8, seed=1), points(20, seed=2)
    pos = torch.rand(8, 20, generator=seeded(4)) < 0.3
    neg = ~pos & (torch.rand(8, 20, generator=seeded(5)) < 0.6)
    pos[0], neg[0] = True, False  # only positives
    pos[1], neg[1] = False, False  # the teacher's row alone
    pos[2], neg[2] = False, True
    found = affinity(2.5 * z, teacher, memory, pos, neg, 0.07)
    assert found.item() == pytest.approx(slow_affinity(z.detach(), teacher, memory, pos, neg, 0.07), rel=1e-12)
    found.backward()
    assert z.grad is not None
    assert z.grad.isfinite().all()
    assert z.grad[1].abs().sum() == 0
    nothing = torch.zeros(8, 0, dtype=torch.bool)
    assert affinity(z, teacher, memory[:0], nothing, nothing, 0.07) == 0


def test_half_precision_is_widened() -> None:
    z = points(30).float()
    with torch.autocast("cpu", torch.bfloat16):
        affine = affine_pairs(z[:10], z[10:], 4, 0.5)
        lists = neighbour_lists(z, 4)
    assert torch.equal(affine, affine_pairs(z[:10], z[10:], 4, 0.5))
    assert torch.equal(lists, neighbour_lists(z, 4))
