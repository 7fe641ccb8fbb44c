"""Each loss against plain loops, its gradient against finite differences, and the degenerate batches."""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import product

import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import DataDependentOutputException, FakeTensorMode

from ctxgcd.losses import cluster, neighbourhood
from ctxgcd.losses.cross_entropy import cross_entropy
from ctxgcd.losses.distill import distill
from ctxgcd.losses.entropy import entropy_gap
from ctxgcd.losses.info_nce import info_nce
from ctxgcd.losses.pairs import mended_pairs, mutual_over_dataset, mutual_same_label, released_pairs
from ctxgcd.losses.sup_con import sup_con

torch.set_num_threads(1)

B, D, K = 5, 4, 6
LABELS = torch.tensor([0, 1, 0, 77, 1])  # the last two are unlabelled: their labels must not be read
LABELLED = torch.tensor([True, True, True, False, False])
PSEUDO_1 = torch.tensor([0, 0, 2, 3, 5])
PSEUDO_2 = torch.tensor([0, 2, 2, 4, 5])


def rows(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def context(n: int, seed: int = 0) -> Tensor:
    half = torch.rand(n, n, generator=torch.Generator().manual_seed(seed)) < 0.2
    return half | half.T


# Plain loops over lists of floats: the independent reference.


def dot(a: list[float], b: list[float]) -> float:
    return sum(x * y for x, y in zip(a, b, strict=True))


def unit(a: list[float]) -> list[float]:
    return [x / math.sqrt(dot(a, a)) for x in a]


def distance(a: list[float], b: list[float]) -> float:
    return math.sqrt(sum((x - y) ** 2 for x, y in zip(a, b, strict=True)))


def softmax(a: list[float]) -> list[float]:
    return [math.exp(x) / sum(math.exp(y) for y in a) for x in a]


def mean(values: list[float]) -> float:
    return sum(values) / len(values) if values else 0.0


def slow_info_nce(projections: Tensor, temperature: float) -> float:
    z = [unit(row) for row in projections.tolist()]
    n = len(z)
    terms = []
    for i in range(n):
        positive = i + n // 2 if i < n // 2 else i - n // 2
        total = sum(math.exp(dot(z[i], z[j]) / temperature) for j in range(n) if j != i)
        terms.append(math.log(total) - dot(z[i], z[positive]) / temperature)
    return mean(terms)


def slow_sup_con(projections: Tensor, labels: Tensor, labelled: Tensor, temperature: float) -> float:
    z = [unit(row) for row in projections.tolist()]
    b = len(labels)
    used = [i for i in range(2 * b) if labelled[i % b]]
    terms = []
    for i in used:
        total = sum(math.exp(dot(z[i], z[j]) / temperature) for j in used if j != i)
        positives = [j for j in used if j != i and labels[j % b] == labels[i % b]]
        terms.append(mean([math.log(total) - dot(z[i], z[j]) / temperature for j in positives]))
    return mean(terms)


def slow_distill(logits: Tensor, teacher: float, student: float) -> float:
    n = len(logits)
    terms = []
    for i in range(n):
        p = softmax([x / teacher for x in logits[(i + n // 2) % n].tolist()])
        q = softmax([x / student for x in logits[i].tolist()])
        terms.append(-sum(a * math.log(b) for a, b in zip(p, q, strict=True)))
    return mean(terms)


def slow_entropy_gap(logits: Tensor, temperature: float) -> float:
    each = [softmax([x / temperature for x in row]) for row in logits.tolist()]
    p = [mean(list(column)) for column in zip(*each, strict=True)]
    return math.log(len(p)) + sum(x * math.log(x) for x in p)


def slow_cross_entropy(logits: Tensor, labels: Tensor, labelled: Tensor, temperature: float) -> float:
    b = len(labels)
    return mean(
        [
            -math.log(softmax([x / temperature for x in logits[i].tolist()])[int(labels[i % b])])
            for i in range(2 * b)
            if labelled[i % b]
        ]
    )


def slow_neighbourhood(z: Tensor, s: Tensor, delta: float, squared: bool) -> float:
    points = z.tolist()
    terms = []
    for i, j in product(range(len(points)), repeat=2):
        if i != j and squared:
            d = distance(points[i], points[j])
            terms.append(d * d if s[i, j] else max(0.0, delta - d) ** 2)
        elif i != j:
            d = 1 - dot(points[i], points[j])
            terms.append(d if s[i, j] else delta - d)
    return mean(terms)


def slow_prototype(z: Tensor, pseudo: Tensor, c: int) -> list[float] | None:
    members = [row for row, p in zip(z.tolist(), pseudo.tolist(), strict=True) if p == c]
    return unit([mean(list(column)) for column in zip(*members, strict=True)]) if members else None


def slow_cluster_paper(z_1: Tensor, z_2: Tensor, p_1: Tensor, p_2: Tensor, classes: int, tau: float) -> float:
    pairs = [(slow_prototype(z_1, p_1, c), slow_prototype(z_2, p_2, c)) for c in range(classes)]
    present = [(a, b) for a, b in pairs if a and b]
    terms = []
    for c, (anchor, _) in enumerate(present):
        shares = softmax([dot(anchor, other) / tau for _, other in present])
        terms.append(-math.log(shares[c]))
    return mean(terms)


def slow_cluster_released(z_1: Tensor, z_2: Tensor, p_1: Tensor, classes: int, tau: float) -> float:
    mu_1 = [slow_prototype(z_1, p_1, c) for c in range(classes)]
    mu_2 = [slow_prototype(z_2, p_1, c) for c in range(classes)]
    terms = []
    for c, anchor in enumerate(mu_1):
        if anchor:
            logits = []
            for j, negative in enumerate(mu_1):
                other = mu_2[j] if j == c else negative
                logits.append(dot(anchor, other) / tau if other else -10.0)
            terms.append(-math.log(softmax(logits)[c]))
    return mean(terms)


Z = torch.nn.functional.normalize(rows(2 * B, D), dim=1)
X = rows(2 * B, D, seed=1) * 0.5
LOGITS = rows(2 * B, K, seed=2).clamp(-1, 1)
S = context(2 * B)

# name: (loss of one differentiable tensor, that tensor, the loops' value)
CASES: dict[str, tuple[Callable[[Tensor], Tensor], Tensor, Callable[[Tensor], float]]] = {
    "info_nce": (lambda x: info_nce(x, 0.3), X, lambda x: slow_info_nce(x, 0.3)),
    "sup_con": (
        lambda x: sup_con(x, LABELS, LABELLED, 0.2),
        X,
        lambda x: slow_sup_con(x, LABELS, LABELLED, 0.2),
    ),
    "entropy_gap": (lambda x: entropy_gap(x, 0.1), LOGITS, lambda x: slow_entropy_gap(x, 0.1)),
    "cross_entropy": (
        lambda x: cross_entropy(x, LABELS, LABELLED, 0.1),
        LOGITS,
        lambda x: slow_cross_entropy(x, LABELS, LABELLED, 0.1),
    ),
    "neighbourhood.paper": (
        lambda x: neighbourhood.paper(x, S, 0.7),
        Z,
        lambda x: slow_neighbourhood(x, S, 0.7, squared=False),
    ),
    "neighbourhood.mended": (
        lambda x: neighbourhood.mended(x, S, 1.3),
        X,
        lambda x: slow_neighbourhood(x, S, 1.3, squared=True),
    ),
    "cluster.paper": (
        lambda x: cluster.paper(x[:B], x[B:], PSEUDO_1, PSEUDO_2, K, 0.5),
        Z,
        lambda x: slow_cluster_paper(x[:B], x[B:], PSEUDO_1, PSEUDO_2, K, 0.5),
    ),
    "cluster.released": (
        lambda x: cluster.released(x[:B], x[B:], PSEUDO_1, K, 0.5),
        X,
        lambda x: slow_cluster_released(x[:B], x[B:], PSEUDO_1, K, 0.5),
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_value_and_gradient(name: str) -> None:
    loss, x, slow = CASES[name]
    assert loss(x).item() == pytest.approx(slow(x), rel=0, abs=1e-12)
    assert torch.autograd.gradcheck(loss, x.clone().requires_grad_())


def test_distill() -> None:
    assert distill(LOGITS, 0.05, 0.1).item() == pytest.approx(slow_distill(LOGITS, 0.05, 0.1), abs=1e-12)
    # The teacher is detached, so finite differences do not apply: the exact gradient is softmax - teacher.
    x = LOGITS.clone().requires_grad_()
    distill(x, 0.05, 0.1).backward()
    teacher = (LOGITS / 0.05).softmax(dim=1).roll(B, dims=0)
    expected = ((LOGITS / 0.1).softmax(dim=1) - teacher) / 0.1 / (2 * B)
    torch.testing.assert_close(x.grad, expected)


def test_released_neighbourhood_trains_nothing() -> None:
    x = X.clone().requires_grad_()
    value = neighbourhood.released(x, S, 1.0)
    assert value.dtype == torch.float32
    assert not value.requires_grad
    assert value.grad_fn is None
    assert value.item() == pytest.approx(slow_neighbourhood(X, S, 1.0, squared=True), rel=1e-5)
    (info_nce(x, 1.0) + neighbourhood.released(x, S, 1.0)).backward()
    alone = X.clone().requires_grad_()
    info_nce(alone, 1.0).backward()
    assert x.grad is not None
    assert alone.grad is not None
    assert torch.equal(x.grad, alone.grad)


def test_paper_margin_has_no_gradient() -> None:
    gradients: list[Tensor] = []
    for delta in (0.0, 1.0, 5.0):
        x = Z.clone().requires_grad_()
        gradients += torch.autograd.grad(neighbourhood.paper(x, S, delta), x)
    assert all(torch.equal(gradients[0], other) for other in gradients[1:])


def test_signs_and_limits() -> None:
    uniform = torch.zeros(4, 7, dtype=torch.float64)
    assert entropy_gap(uniform, 0.1).item() == pytest.approx(0, abs=1e-14)
    certain = torch.zeros(4, 7, dtype=torch.float64)
    certain[:, 2] = 1e4
    assert entropy_gap(certain, 0.1).item() == pytest.approx(math.log(7))
    assert distill(certain, 0.04, 0.1).item() == pytest.approx(0)
    together, apart = torch.ones(4, 4, dtype=torch.bool), torch.zeros(4, 4, dtype=torch.bool)
    near, far = X[:4] * 0.01, X[:4] * 100
    assert neighbourhood.mended(near, together, 1.0) < neighbourhood.mended(far, together, 1.0)
    assert neighbourhood.mended(near, apart, 1.0) > neighbourhood.mended(far, apart, 1.0) == 0
    aligned, crossed = torch.eye(4), torch.eye(4).roll(1, dims=0)
    classes = torch.arange(4)
    for loss in (
        lambda a, b: cluster.paper(a, b, classes, classes, 4, 0.5),
        lambda a, b: cluster.released(a, b, classes, 4, 0.5),
        lambda a, b: info_nce(torch.cat([a, b]), 0.5),
    ):
        assert 0 <= loss(aligned, aligned) < loss(aligned, crossed)


def test_gradient_pulls_a_context_together_and_pushes_others_apart() -> None:
    for loss in (neighbourhood.paper, neighbourhood.mended):
        x = torch.tensor([[1.0, 0.0], [0.8, 0.6]], requires_grad=True)
        for s, sign in ((True, 1), (False, -1)):
            (gradient,) = torch.autograd.grad(loss(x, torch.full((2, 2), s), 1.0), x)
            descent = x.detach() - 0.01 * gradient
            before, after = (torch.dist(*points) for points in (x.detach(), descent))
            assert sign * (before - after) > 0


def test_diagonal_of_the_context_is_ignored() -> None:
    other = S ^ torch.eye(2 * B, dtype=torch.bool)
    for loss, x in ((neighbourhood.paper, Z), (neighbourhood.released, X), (neighbourhood.mended, X)):
        assert torch.equal(loss(x, S, 1.0), loss(x, other, 1.0))


def test_absent_classes() -> None:
    one, two = torch.zeros(B, dtype=torch.long), torch.ones(B, dtype=torch.long)
    x = Z.clone().requires_grad_()
    nothing = cluster.paper(x[:B], x[B:], one, two, K, 0.5)
    nothing.backward()
    assert nothing.item() == 0
    assert x.grad is not None
    assert not x.grad.any()
    assert cluster.paper(x[:B], x[B:], one, one, K, 0.5).item() == 0
    # Ten absent classes stay in the released denominator.
    mu = slow_prototype(X[:B], one, 0), slow_prototype(X[B:], one, 0)
    assert mu[0] is not None
    assert mu[1] is not None
    positive = math.exp(dot(mu[0], mu[1]) / 0.5)
    expected = -math.log(positive / (positive + 10 * math.exp(-10)))
    assert cluster.released(X[:B], X[B:], one, 11, 0.5).item() == pytest.approx(expected)


def every_loss(
    x: Tensor, logits: Tensor, labels: Tensor, labelled: Tensor, s: Tensor, classes: int
) -> dict[str, Tensor]:
    """Return every differentiable term on one batch, as a training step would call them."""
    b = len(labels)
    z = torch.nn.functional.normalize(x, dim=1)
    p_1, p_2 = logits.argmax(dim=1).split(b)
    return {
        "info_nce": info_nce(x, 0.07),
        "sup_con": sup_con(x, labels, labelled, 0.07),
        "distill": distill(logits, 0.04, 0.1),
        "entropy_gap": entropy_gap(logits, 0.1),
        "cross_entropy": cross_entropy(logits, labels, labelled, 0.1),
        "neighbourhood.paper": neighbourhood.paper(z, s, 1.0),
        "neighbourhood.mended": neighbourhood.mended(x, s, 1.0),
        "cluster.paper": cluster.paper(z[:b], z[b:], p_1, p_2, classes, 0.5),
        "cluster.released": cluster.released(x[:b], x[b:], p_1, classes, 0.5),
    }


def duplicates(x: Tensor) -> Tensor:
    return x[torch.arange(len(x)) // 2 % 2]


PROJECTIONS = {
    "plain": lambda x: x,
    "every row twice or more": duplicates,
    "all rows equal": lambda x: x[:1].repeat(len(x), 1),
    "tiny": lambda x: x * 1e-4,
    "large": lambda x: x * 100,
}
PREDICTIONS = {
    "plain": lambda y: y,
    "all equal": lambda y: torch.zeros_like(y),
    "one class": lambda y: y * 0 + torch.eye(y.shape[1], dtype=y.dtype)[0],
    "opposite views": lambda y: torch.eye(y.shape[1], dtype=y.dtype).repeat_interleave(len(y) // 2, 0)[: len(y)],
}
LABELLED_SETS = {"none": [False] * B, "one": [True] + [False] * (B - 1), "all": [True] * B}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float64])
@pytest.mark.parametrize("labelled", LABELLED_SETS)
@pytest.mark.parametrize("projection", PROJECTIONS)
def test_degenerate_batches_stay_finite(projection: str, labelled: str, dtype: torch.dtype) -> None:
    autocast = dtype if dtype in (torch.bfloat16, torch.float16) else None
    for prediction, same in product(PREDICTIONS, (True, False)):
        x = PROJECTIONS[projection](rows(2 * B, D)).to(dtype).requires_grad_()
        logits = PREDICTIONS[prediction](rows(2 * B, K, seed=3).clamp(-1, 1)).to(dtype).requires_grad_()
        s = torch.full((2 * B, 2 * B), same)
        mask = torch.tensor(LABELLED_SETS[labelled])
        labels = torch.where(mask, torch.arange(B) % K, -1)
        with torch.autocast("cpu", dtype=autocast or torch.bfloat16, enabled=autocast is not None):
            losses = every_loss(x, logits, labels, mask, s, K)
        for name, loss in losses.items():
            assert loss.dtype == (torch.float64 if dtype == torch.float64 else torch.float32), name
            assert loss.requires_grad, name
            assert loss.isfinite(), (name, prediction)
            # Anomaly detection: no NaN in any step of the graph, not only in the results.
            with torch.autograd.set_detect_anomaly(True):
                gradients = torch.autograd.grad(loss, [x, logits], retain_graph=True, allow_unused=True)
            assert all(g is None or g.isfinite().all() for g in gradients), (name, prediction)
        if labelled == "none":
            assert losses["sup_con"] == 0
            assert losses["cross_entropy"] == 0


@pytest.mark.parametrize(("b", "k"), [(1, 1), (1, 5), (4, 1)])
def test_smallest_batches(b: int, k: int) -> None:
    x, logits = rows(2 * b, D).requires_grad_(), rows(2 * b, k).clamp(-1, 1).requires_grad_()
    s = torch.zeros(2 * b, 2 * b, dtype=torch.bool)
    labels, mask = torch.zeros(b, dtype=torch.long), torch.ones(b, dtype=torch.bool)
    losses = every_loss(x, logits, labels, mask, s, k)
    total = torch.stack(list(losses.values())).sum()
    assert total.isfinite()
    assert all(g.isfinite().all() for g in torch.autograd.grad(total, [x, logits]))
    if b == 1:
        assert losses["info_nce"] == 0
    single = torch.zeros(1, 1, dtype=torch.bool)
    for loss in (neighbourhood.paper, neighbourhood.released, neighbourhood.mended):
        assert loss(x[:1], single, 1.0) == 0


def test_autocast_does_not_round() -> None:
    x, logits = X.float(), LOGITS.float()
    s = S
    plain = every_loss(x.requires_grad_(), logits, LABELS, LABELLED, s, K)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        cast = every_loss(x, logits, LABELS, LABELLED, s, K)
        released = neighbourhood.released(x, s, 1.0)
    assert all(torch.equal(plain[name], cast[name]) for name in plain)
    assert torch.equal(released, neighbourhood.released(x, s, 1.0))


def test_no_value_is_moved_to_the_host() -> None:
    # Fake tensors have only shapes: any step that needs a value (item, a boolean index) raises.
    with FakeTensorMode():
        x, logits = torch.randn(2 * B, D, requires_grad=True), torch.randn(2 * B, K, requires_grad=True)
        labels, mask = torch.zeros(B, dtype=torch.long), torch.ones(B, dtype=torch.bool)
        pseudo = logits.argmax(dim=1)
        for pairs in (mutual_same_label, mended_pairs, released_pairs):
            s = pairs(x, pseudo, 3)
            torch.stack(list(every_loss(x, logits, labels, mask, s, K).values())).sum().backward()
            neighbourhood.released(x, s, 1.0)
        mutual_over_dataset(torch.zeros(2 * B, 3, dtype=torch.long), pseudo, pseudo)
        with pytest.raises(DataDependentOutputException):
            x.sum().item()
