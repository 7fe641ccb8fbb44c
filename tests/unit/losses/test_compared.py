"""The losses of the compared methods against plain loops, their gradients, and the degenerate batches."""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import product

import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode

from ctxgcd.losses.labelled_cross_entropy import labelled_cross_entropy
from ctxgcd.losses.partners import negative_entropy, pair_similarity, partners
from ctxgcd.losses.ranking import consistency, pair_bce, same_top, with_truth
from ctxgcd.losses.swapped import sinkhorn, swapped_prediction, targets

torch.set_num_threads(1)

B, D, K, OLD = 6, 7, 5, 2


def rows(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


LABELS = torch.tensor([0, 1, 0, -1, -1, -1])
TARGET = rows(2, 2, B // 2, K, seed=6).softmax(dim=-1)
PARTNER = torch.tensor([2, 1, 0, 5, 5, 0])
X = rows(2 * B, K)
SAME = torch.rand(B, B, generator=torch.Generator().manual_seed(1)) < 0.3


# -- plain loops over lists of floats: the independent reference -----------------------------------------


def softmax(row: list[float]) -> list[float]:
    return [math.exp(x) / sum(math.exp(y) for y in row) for x in row]


def mean(values: list[float]) -> float:
    return sum(values) / len(values) if values else 0.0


def dot(a: list[float], b: list[float]) -> float:
    return sum(x * y for x, y in zip(a, b, strict=True))


def probabilities(logits: Tensor) -> list[list[float]]:
    return [softmax(row) for row in logits.tolist()]


def slow_cross_entropy(logits: Tensor, labels: Tensor, margin: float) -> float:
    terms = []
    for row, label in zip(logits.tolist(), labels.tolist(), strict=True):
        if label >= 0:
            row[label] += margin
            terms.append(-math.log(softmax(row)[label]))
    return mean(terms)


def slow_same_top(features: Tensor, k: int) -> list[list[bool]]:
    tops = [set(sorted(range(len(row)), key=lambda j: (-row[j], j))[:k]) for row in features.tolist()]
    return [[one == other for other in tops] for one in tops]


def slow_pair_bce(view_1: Tensor, view_2: Tensor, same: Tensor) -> float:
    p, q = probabilities(view_1), probabilities(view_2)
    both = {(i, j): dot(p[i], q[j]) for i, j in product(range(len(p)), repeat=2)}
    return mean([-math.log((value if same[ij] else 1 - value) + 1e-7) for ij, value in both.items()])


def slow_consistency(view_1: Tensor, view_2: Tensor) -> float:
    p, q = probabilities(view_1), probabilities(view_2)
    return 2 * mean([(a - b) ** 2 for i in range(len(p)) for a, b in zip(p[i], q[i], strict=True)])


def slow_pair_similarity(view_1: Tensor, view_2: Tensor, partner: Tensor) -> float:
    p, q = probabilities(view_1), probabilities(view_2)
    return -mean([max(-100.0, math.log(dot(p[i], q[j]))) for i, j in enumerate(partner.tolist())])


def slow_negative_entropy(logits: Tensor) -> float:
    average = [max(1e-8, mean(list(column))) for column in zip(*probabilities(logits), strict=True)]
    return sum(x * math.log(x) for x in average)


def slow_partners(features: Tensor, labels: Tensor, drawn: Tensor) -> list[int]:
    found, z = [], features.tolist()
    for i, label in enumerate(labels.tolist()):
        others = [j for j in range(len(z)) if j != i]
        if label >= 0:
            alike = [j for j in others if labels[j] == label]
            found.append(max(alike, key=lambda j: (drawn[i, j], -j)) if alike else i)
        else:
            length = [math.sqrt(dot(row, row)) for row in z]
            found.append(max(others, key=lambda j: (dot(z[i], z[j]) / length[i] / length[j], -j)))
    return found


def slow_sinkhorn(cosines: Tensor, among: list[int], epsilon: float, iterations: int) -> list[list[float]]:
    """Return the assignments of these rows alone."""
    q = [[math.exp(x / epsilon) for x in row] for i, row in enumerate(cosines.tolist()) if i in among]
    total = sum(map(sum, q))
    q = [[x / total for x in row] for row in q]
    for _ in range(iterations):
        columns = [sum(column) for column in zip(*q, strict=True)]
        q = [[x / c / len(columns) for x, c in zip(row, columns, strict=True)] for row in q]
        q = [[x / sum(row) / len(q) for x in row] for row in q]
    return [[x * len(q) for x in row] for row in q]


def slow_swapped(cosines: Tensor, target: Tensor, temperature: float) -> float:
    """Return the mean over heads."""
    terms = []
    for v, h, i in product(range(2), range(cosines.shape[1]), range(cosines.shape[2])):
        p = softmax([x / temperature for x in cosines[v, h, i].tolist()])
        terms.append(-sum(t * math.log(x) for t, x in zip(target[1 - v, h, i].tolist(), p, strict=True)))
    return mean(terms)


# name: (loss of one differentiable tensor, that tensor, the loops' value)
CASES: dict[str, tuple[Callable[[Tensor], Tensor], Tensor, Callable[[Tensor], float]]] = {
    "labelled_cross_entropy": (
        lambda x: labelled_cross_entropy(x, LABELS, 1.5),
        X[:B],
        lambda x: slow_cross_entropy(x, LABELS, 1.5),
    ),
    "pair_bce": (
        lambda x: pair_bce(x[:B], x[B:], SAME),
        X,
        lambda x: slow_pair_bce(x[:B], x[B:], SAME),
    ),
    "consistency": (lambda x: consistency(x[:B], x[B:]), X, lambda x: slow_consistency(x[:B], x[B:])),
    "pair_similarity": (
        lambda x: pair_similarity(x[:B], x[B:], PARTNER),
        X,
        lambda x: slow_pair_similarity(x[:B], x[B:], PARTNER),
    ),
    "negative_entropy": (negative_entropy, X[:B], slow_negative_entropy),
    "swapped_prediction": (
        lambda x: swapped_prediction(x.view(2, 2, B // 2, K), TARGET, 0.1).mean(),
        X.clamp(-1, 1),
        lambda x: slow_swapped(x.view(2, 2, B // 2, K), TARGET, 0.1),
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_value_and_gradient(name: str) -> None:
    loss, x, slow = CASES[name]
    assert loss(x).item() == pytest.approx(slow(x), rel=0, abs=1e-12)
    assert torch.autograd.gradcheck(loss, x.clone().requires_grad_())


# -- RS+ -------------------------------------------------------------------------------------------------


def test_pairs_have_the_same_largest_dimensions() -> None:
    features = rows(40, D, seed=3)
    for k in (1, 2, D):
        assert same_top(features, k).tolist() == slow_same_top(features, k)
        assert same_top(features, k, absolute=True).tolist() == slow_same_top(features.abs(), k)
    assert not torch.equal(same_top(features, 2), same_top(features, 2, absolute=True))
    assert same_top(features, D).all()


def test_equal_values_are_ordered_by_dimension() -> None:
    """After a ReLU, most values are 0."""
    zeros = torch.zeros(3, 400)
    zeros[1, 7], zeros[2, 399] = 2.0, 2.0
    assert same_top(zeros, 3).tolist() == [[True, False, False], [False, True, False], [False, False, True]]
    zeros[1, 7], zeros[1, 1] = 0.0, 2.0  # the top of row 1 is 1, 0, 2, as that of row 0
    assert same_top(zeros, 3)[0].tolist() == [True, True, False]


def test_truth_replaces_pairs_of_labelled_images_alone() -> None:
    found = with_truth(SAME, LABELS)
    for i, j in product(range(B), repeat=2):
        both = LABELS[i] >= 0 and LABELS[j] >= 0
        assert found[i, j] == (LABELS[i] == LABELS[j] if both else SAME[i, j])


def test_a_probability_above_one_by_rounding_is_finite() -> None:
    """The softmax of these rows sums to slightly more than 1 in float32, so does the product of two rows."""
    certain = torch.full((2, 3), -40.0)
    certain[:, 0] = 40.0
    found = pair_bce(certain, certain, torch.zeros(2, 2, dtype=torch.bool))
    assert found.item() == pytest.approx(-math.log(1e-7), rel=1e-5)
    many = torch.randn(64, 3, generator=torch.Generator().manual_seed(0)) * 30
    assert pair_bce(many, many, torch.zeros(64, 64, dtype=torch.bool)).isfinite()


# -- ORCA ------------------------------------------------------------------------------------------------


def test_partners_are_drawn_by_label_or_nearest() -> None:
    features, drawn = rows(40, D, seed=4), torch.rand(40, 40, generator=torch.Generator().manual_seed(5))
    for labels in (torch.arange(40) % 5 - 1, torch.full((40,), -1), torch.arange(40), torch.zeros(40).long()):
        assert partners(features, labels, drawn).tolist() == slow_partners(features, labels, drawn)
    counts = [0, 0, 0, 0]
    for seed in range(300):
        drawn = torch.rand(4, 4, generator=torch.Generator().manual_seed(seed))
        counts[int(partners(features[:4], torch.tensor([1, 1, 1, 1]), drawn)[0])] += 1
    assert counts[0] == 0
    assert min(counts[1:]) > 70  # uniform: 100 each


def test_a_partner_of_equal_images_is_another_image() -> None:
    """Ties are won by the lowest index, and an image is its own partner only if it is alone."""
    features, nothing = torch.ones(3, D), torch.zeros(3, 3)
    assert partners(features, torch.full((3,), -1), nothing).tolist() == [1, 0, 0]
    assert partners(features, torch.tensor([0, 1, 1]), nothing).tolist() == [0, 2, 1]
    for label in (-1, 0):
        assert partners(features[:1], torch.tensor([label]), nothing[:1, :1]).tolist() == [0]


def test_a_product_of_probabilities_that_underflows_is_clamped() -> None:
    one, two = torch.zeros(1, 3), torch.zeros(1, 3)
    one[0, 0], two[0, 1] = 800.0, 800.0
    assert pair_similarity(one, two, torch.tensor([0])) == 100
    one[0, 0], two[0, 1] = 90.0, 90.0  # the product is 1e-39, which float32 rounds
    assert pair_similarity(one, two, torch.tensor([0])).item() == pytest.approx(90 - math.log(2), rel=1e-5)


# -- UNO+ ------------------------------------------------------------------------------------------------


def test_assignments_are_those_of_the_unlabelled_rows_alone() -> None:
    cosines = rows(2, 3, B, K, seed=7).clamp(-1, 1)
    for labels in (LABELS, torch.full((B,), -1), torch.tensor([0] * (B - 1) + [-1])):
        among = (labels < 0).nonzero()[:, 0].tolist()
        found = sinkhorn(cosines, labels < 0, 0.05, 3)
        for view, head in product(range(2), range(3)):
            expected = torch.tensor(slow_sinkhorn(cosines[view, head], among, 0.05, 3), dtype=torch.float64)
            torch.testing.assert_close(found[view, head, among], expected, rtol=1e-12, atol=1e-15)
        assert (found[..., labels >= 0, :] == 0).all()
        torch.testing.assert_close(found.sum(dim=-1), (labels < 0).double().expand(2, 3, B))
    torch.testing.assert_close(found[..., -1, :], torch.full((2, 3, K), 1 / K, dtype=torch.float64))  # the only row


def test_targets_are_labels_or_assignments() -> None:
    cosines = rows(2, B, K, seed=8).clamp(-1, 1).requires_grad_()
    whole, new = targets(cosines, LABELS, 0.05, 3), targets(cosines, LABELS, 0.05, 3, first=OLD)
    assert not whole.requires_grad
    for found in (whole, new):
        torch.testing.assert_close(found.sum(dim=-1), torch.ones(2, B, dtype=torch.float64))
        for i, label in enumerate(LABELS[:3].tolist()):
            assert found[:, i].tolist() == [[float(k == label) for k in range(K)]] * 2
    assert (new[:, 3:, :OLD] == 0).all()
    assert (whole[:, 3:, :OLD] > 0).all()
    labelled = targets(cosines, torch.tensor([0, 1] * (B // 2)), 0.05, 3)
    assert labelled.sum() == 2 * B
    assert set(labelled.unique().tolist()) == {0.0, 1.0}


def test_equal_rows_have_uniform_targets_and_more_classes_than_rows_are_finite() -> None:
    everything = torch.full((B,), -1)
    assert torch.allclose(targets(torch.ones(B, K), everything, 0.05, 3), torch.tensor(1 / K))
    many = targets(rows(B, 40 * B).float().clamp(-1, 1), everything, 0.05, 3)
    torch.testing.assert_close(many.sum(dim=1), torch.ones(B))


# -- degenerate batches ----------------------------------------------------------------------------------


def every_loss(x: Tensor, labels: Tensor) -> dict[str, Tensor]:
    """Return every differentiable term on logits of two views [2B, K], as a training step would call them."""
    one, two = x.chunk(2)
    same = with_truth(same_top(x.detach()[: len(labels)], 2), labels)
    partner = partners(x.detach()[: len(labels)], labels, torch.zeros(len(labels), len(labels), device=x.device))
    cosines = x.clamp(-1, 1).unflatten(0, (2, 1, -1))
    return {
        "swapped_prediction": swapped_prediction(cosines, targets(cosines, labels, 0.05, 3), 0.1).mean(),
        "pair_similarity": pair_similarity(one, two, partner),
        "negative_entropy": negative_entropy(one),
        "labelled_cross_entropy": labelled_cross_entropy(one, labels, 3.0),
        "pair_bce": pair_bce(one, two, same),
        "consistency": consistency(one, two),
    }


BATCHES = {
    "plain": lambda x: x,
    "every row twice": lambda x: x[torch.arange(len(x)) // 2 * 2],
    "all rows equal": lambda x: x[:1].repeat(len(x), 1),
    "one class": lambda x: x * 0 + 200 * torch.eye(x.shape[1], dtype=x.dtype)[0],
    "opposite views": lambda x: 200 * torch.eye(x.shape[1], dtype=x.dtype).repeat_interleave(len(x) // 2, 0)[: len(x)],
    "zeros": lambda x: x * 0,
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("labels", [[-1] * B, [0] + [-1] * (B - 1), [0, 1] * (B // 2)], ids=["none", "one", "all"])
@pytest.mark.parametrize("batch", BATCHES)
def test_degenerate_batches_stay_finite(batch: str, labels: list[int], dtype: torch.dtype) -> None:
    x = BATCHES[batch](X).to(dtype).requires_grad_()
    with torch.autocast("cpu", dtype=torch.bfloat16, enabled=dtype == torch.bfloat16):
        losses = every_loss(x, torch.tensor(labels))
    for name, loss in losses.items():
        assert loss.dtype == (torch.float64 if dtype == torch.float64 else torch.float32), name
        assert loss.isfinite(), name
        with torch.autograd.set_detect_anomaly(True):
            (gradient,) = torch.autograd.grad(loss, x, retain_graph=True)
        assert gradient.isfinite().all(), name
    if max(labels) < 0:
        assert losses["labelled_cross_entropy"] == 0


def test_autocast_does_not_round() -> None:
    plain = every_loss(X.float(), LABELS)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        cast = every_loss(X.float(), LABELS)
    assert all(torch.equal(plain[name], cast[name]) for name in plain)


def test_no_value_is_moved_to_the_host() -> None:
    with FakeTensorMode():
        x, labels = torch.randn(2 * B, K, requires_grad=True), torch.zeros(B, dtype=torch.long)
        torch.stack(list(every_loss(x, labels).values())).sum().backward()
