"""What each method computes from a batch: terms, weights, gradients, and which rows enter which term."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import normalize

from ctxgcd.catalogue.entries import METHODS
from ctxgcd.clustering.neighbours import nearest
from ctxgcd.losses import cluster, neighbourhood, pairs
from ctxgcd.losses.cross_entropy import cross_entropy
from ctxgcd.losses.distill import distill
from ctxgcd.losses.entropy import entropy_gap
from ctxgcd.losses.info_nce import info_nce
from ctxgcd.losses.sup_con import sup_con
from ctxgcd.methods import full
from ctxgcd.methods.full import Full
from ctxgcd.methods.gcd import GCD
from ctxgcd.methods.method import Method
from ctxgcd.methods.optimiser import parameter_groups
from ctxgcd.methods.simgcd import SimGCD, joined
from ctxgcd.methods.step import Batch, Look, Rows, weighted
from ctxgcd.models.network import Network, Outputs
from ctxgcd.names import TERM_SIZES
from ctxgcd.training.term_sizes import shares
from ctxgcd.utils.seeding import generator

torch.set_num_threads(1)

KEPT, DIM, CLASSES = 6, 8, 5
TEACHER = 0.06
BOTH = ["L_n", "L_c"]
VARIANTS = tuple(METHODS["full"].variants)


def parameters(**changes: Any) -> dict[str, Any]:
    return {
        "K": CLASSES,
        "supervised_weight": 0.35,
        "info_nce_weight": 1.0,
        "sup_con_weight": 1.0,
        "entropy_weight": 2.0,
        "student_temperature": 0.1,
        "teacher_warmup_epochs": 0,
        "teacher_temperature_start": TEACHER,
        "teacher_temperature_end": TEACHER,
        "teacher_schedule": "linear",
        "info_nce_temperature": 0.9,
        "sup_con_temperature": 0.07,
        "variant": "paper",
        "context_terms": BOTH,
        "k": 5,
        "lambda_n": 0.1,
        "lambda_c": 0.3,
        "T_warm": 1,
        "context_delay": 0,
        "batch_size": 64,
        "neighbour_images": 128,
        "reciprocal": "batch",
        "delta": 0.8,
        "tau": 0.5,
    } | changes


def network(seed: int = 0) -> Network:
    """A linear tail of known start below the usual heads; weights large enough for classes to differ."""
    net = Network(nn.Linear(KEPT, DIM), DIM, CLASSES, 16, 7, seed)
    stream = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in net.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=stream) * 0.4)
    return net


def batch(sampled: int = 128, around: int | None = None, seed: int = 0, images: int = 500) -> Batch:
    """Random kept outputs: 2 * sampled rows, about half of the images labelled, and 2 * around rows."""
    stream = torch.Generator().manual_seed(seed)
    rows = torch.randn(2 * sampled, KEPT, generator=stream)
    labels = torch.randint(0, 3, (sampled,), generator=stream)
    labels[torch.rand(sampled, generator=stream) < 0.5] = -1
    if around is None:
        return of_rows(rows, labels)
    ids = torch.randint(0, images, (sampled + around,), generator=stream)
    return of_rows(rows, labels, torch.randn(2 * around, KEPT, generator=stream), ids)


def of_rows(
    sampled: Tensor,
    labels: Tensor,
    around: Tensor | None = None,
    ids: Tensor | None = None,
    lists: Tensor | None = None,
) -> Batch:
    """A batch of these trunk outputs; ids: of the sampled images, then of the neighbours; lists: by image."""
    ids = torch.arange(len(labels)) if ids is None else ids
    of_sampled, of_neighbours = ids[: len(labels)], ids[len(labels) :]
    given = [{} if lists is None else {"nearest": lists[part]} for part in (of_sampled, of_neighbours)]
    groups = {"sampled": Rows(sampled, of_sampled, labels, given[0])}
    if around is not None:
        groups["neighbours"] = Rows(around, of_neighbours, torch.full_like(of_neighbours, -1), given[1])
    return Batch(groups)


def losses(method: Method, net: nn.Module, of: Batch) -> dict[str, Tensor]:
    """The loss of a step, and its terms."""
    terms = method.losses(net, of).terms
    return {"loss": weighted(terms, method.weights(of)), **terms}


def gradients(method: Method, net: Network, of: Batch) -> dict[str, Tensor]:
    net.zero_grad()
    losses(method, net, of)["loss"].backward()
    return {name: parameter.grad.clone() for name, parameter in net.named_parameters() if parameter.grad is not None}


def written_baseline(out: Outputs, labels: Tensor, p: dict[str, Any]) -> dict[str, Tensor]:
    """L_rep + L_cls as docs/methods.md writes them, from the loss terms that have golden values."""
    share, z = p["supervised_weight"], normalize(out.projections, dim=1)
    terms = {
        "info_nce": info_nce(z, p["info_nce_temperature"]),
        "sup_con": sup_con(z, labels, labels >= 0, p["sup_con_temperature"]),
        "distill": distill(out.logits, TEACHER, p["student_temperature"]),
        "entropy": entropy_gap(out.logits, p["student_temperature"]),
        "cls": cross_entropy(out.logits, labels, labels >= 0, p["student_temperature"]),
    }
    l_rep = (1 - share) * terms["info_nce"] + share * terms["sup_con"]
    l_cls = (1 - share) * (terms["distill"] + p["entropy_weight"] * terms["entropy"]) + share * terms["cls"]
    return {"loss": l_rep + l_cls, **terms}


def asks_for_neighbours(method: SimGCD, epoch: int) -> bool:
    """Whether the steps of an epoch have neighbour images, all of them or none."""
    points = torch.randn(140, DIM, generator=torch.Generator().manual_seed(epoch))
    look = Look(
        epoch,
        labels=torch.where(torch.arange(140) % 4 == 0, 0, -1),
        features=lambda ids: points[ids],
        train_features=lambda ids, stream: points[ids],
        nearest=nearest,
        stream=lambda name: generator(0, name, epoch),
    )
    asked = {tuple(step) for step in method.before_epoch(network(), look).steps}
    assert asked in ({("sampled",)}, {("sampled", "neighbours")})
    return asked == {("sampled", "neighbours")}


def close(found: dict[str, Tensor], expected: dict[str, Tensor], tolerance: float = 1e-5) -> None:
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        torch.testing.assert_close(
            found[name], value, rtol=tolerance, atol=tolerance, msg=lambda m, n=name: f"{n}: {m}"
        )


# -- the baseline ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", [0, 1])
def test_baseline_is_the_written_formula(seed: int) -> None:
    net, of, p = network(seed), batch(seed=seed), parameters(supervised_weight=0.2 + 0.3 * seed)
    found = losses(SimGCD(p), net, of)
    close(found, written_baseline(net(of.sampled.views), of.sampled.labels, p))
    assert all(value.ndim == 0 and value.isfinite() for value in found.values())


@pytest.mark.parametrize(
    "changed",
    [
        {"supervised_weight": 0.5},
        {"info_nce_weight": 2.0},
        {"sup_con_weight": 0.0},
        {"entropy_weight": 3.0},
        {"student_temperature": 0.2},
        {"teacher_temperature_end": 0.09},
        {"info_nce_temperature": 0.5},
        {"sup_con_temperature": 0.2},
    ],
    ids=lambda changed: next(iter(changed)),
)
def test_each_parameter_of_the_baseline_counts(changed: dict[str, float]) -> None:
    net, of = network(), batch()
    before = losses(SimGCD(parameters()), net, of)["loss"]
    assert abs(losses(SimGCD(parameters(**changed)), net, of)["loss"] - before) > 1e-3


def test_a_batch_without_labels_has_the_unsupervised_half_alone() -> None:
    net, of, p = network(), batch(), parameters()
    found = losses(SimGCD(p), net, of_rows(of.sampled.views, torch.full_like(of.sampled.labels, -1)))
    assert found["sup_con"] == found["cls"] == 0
    unsupervised = found["info_nce"] + found["distill"] + p["entropy_weight"] * found["entropy"]
    torch.testing.assert_close(found["loss"], 0.65 * unsupervised)


def test_simgcd_never_asks_for_neighbours() -> None:
    method = SimGCD(parameters())
    assert not any(asks_for_neighbours(method, epoch) for epoch in range(300))
    assert method.terms() == dict.fromkeys(("info_nce", "sup_con", "distill", "entropy", "cls"), 0)


# -- the full method ---------------------------------------------------------------------------------------


def expected_terms(net: Network, of: Batch, p: dict[str, Any]) -> dict[str, Tensor]:
    """The variant's terms with every set of rows formed by hand, each part of the batch in its own forward pass."""
    m, q = len(of.sampled.views) // 2, len(of.groups["neighbours"].views) // 2
    own, around = net(of.sampled.views), net(of.groups["neighbours"].views)
    terms = written_baseline(own, of.sampled.labels, p)
    if p["variant"] == "paper":
        views = [torch.cat([own.projections[v * m : v * m + m], around.projections[v * q : v * q + q]]) for v in (0, 1)]
        pseudo = [
            torch.cat([own.logits[v * m : v * m + m], around.logits[v * q : v * q + q]]).argmax(dim=1) for v in (0, 1)
        ]
        z_1, z_2 = (normalize(view, dim=1) for view in views)
        z, every = torch.cat([z_1, z_2]), torch.cat(pseudo)
        assert len(z) == 2 * (m + q)
        l_n = neighbourhood.paper(z, pairs.mutual_same_label(z, every, p["k"]), p["delta"])
        l_c = cluster.paper(z_1, z_2, pseudo[0], pseudo[1], CLASSES, p["tau"])
    else:
        pseudo_around = around.logits.argmax(dim=1)
        if p["variant"] == "released":
            same = pairs.released_pairs(around.projections, pseudo_around, p["k"])
            l_n = neighbourhood.released(around.projections, same, p["delta"])
        else:
            same = pairs.mended_pairs(around.projections, pseudo_around, p["k"])
            l_n = neighbourhood.mended(around.projections, same, p["delta"])
        view_1, view_2 = own.projections[:m], own.projections[m:]
        l_c = cluster.released(view_1, view_2, own.logits[:m].argmax(dim=1), CLASSES, p["tau"])
    context = {"L_n": l_n, "L_c": l_c}
    weighted = p["lambda_n"] * l_n + p["lambda_c"] * l_c
    return {**terms, **context, "loss": terms["loss"] + weighted}


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("k", [5, 7, 10, 30])
def test_batch_is_split_by_its_sizes(variant: str, k: int) -> None:
    """k need not divide 128: q * k neighbour images are 125, 126, 120 and 120."""
    p = parameters(variant=variant, k=k)
    net, of = network(), batch(128, 128 // k * k, seed=k)
    found = losses(Full(p), net, of)
    close(found, expected_terms(net, of, p))
    assert all(value.isfinite() for value in found.values())
    assert found["L_c"] > 0


@pytest.mark.parametrize("variant", VARIANTS)
def test_gradients_are_those_of_the_written_loss(variant: str) -> None:
    p, net, of = parameters(variant=variant), network(), batch(40, 35)
    found = gradients(Full(p), net, of)
    net.zero_grad()
    expected_terms(net, of, p)["loss"].backward()
    close(found, {name: parameter.grad for name, parameter in net.named_parameters()}, 2e-5)


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize(("terms", "absent"), [(["L_n"], "L_c"), (["L_c"], "L_n")])
def test_an_ablated_term_is_not_computed(
    monkeypatch: pytest.MonkeyPatch, variant: str, terms: list[str], absent: str
) -> None:
    def forbidden(*_: Any) -> Tensor:
        raise AssertionError(f"{absent} was computed")

    module = {"L_n": full.neighbourhood, "L_c": full.cluster}[absent]
    for name in VARIANTS:
        if hasattr(module, name):
            monkeypatch.setattr(module, name, forbidden)
    if absent == "L_n":
        for name in ("mutual_same_label", "released_pairs", "mended_pairs"):
            monkeypatch.setattr(full.pairs, name, forbidden)
    method, net, of = Full(parameters(variant=variant, context_terms=terms)), network(), batch(16, 15)
    found = losses(method, net, of)
    assert absent not in found
    assert terms[0] in found
    assert absent not in method.terms()
    weight = method.p[f"lambda_{terms[0][-1]}"]
    base = written_baseline(net(of.sampled.views), of.sampled.labels, method.p)["loss"]
    torch.testing.assert_close(found["loss"], base + weight * found[terms[0]])


def test_the_released_neighbourhood_term_trains_nothing() -> None:
    net, of = network(), batch(32, 30)
    with_it, without = (Full(parameters(variant="released", context_terms=terms)) for terms in (BOTH, ["L_c"]))
    value = losses(with_it, net, of)["L_n"]
    assert value > 0
    assert not value.requires_grad
    found, expected = gradients(with_it, net, of), gradients(without, net, of)
    assert found.keys() == expected.keys()
    assert all(torch.equal(found[name], expected[name]) for name in found)
    heavier = Full(parameters(variant="released", lambda_n=100.0))
    assert all(torch.equal(value, expected[name]) for name, value in gradients(heavier, net, of).items())
    assert losses(heavier, net, of)["loss"] > losses(with_it, net, of)["loss"]


@pytest.mark.parametrize("variant", ["paper", "mended"])
def test_the_neighbourhood_term_trains_the_network(variant: str) -> None:
    net, of = network(), batch(32, 30)
    found, without = (gradients(Full(parameters(variant=variant, lambda_n=weight)), net, of) for weight in (1.0, 0.0))
    for name in ("tail.weight", "projector.0.weight", "projector.4.weight"):
        assert (found[name] - without[name]).abs().max() > 1e-4
    # Labels of neighbours are not differentiable: the classifier's direction sees nothing of L_n.
    torch.testing.assert_close(found["classifier.direction"], without["classifier.direction"], rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("variant", VARIANTS)
def test_weight_zero_gives_the_gradients_of_simgcd(variant: str) -> None:
    net, of = network(), batch(32, 30)
    control = Full(parameters(variant=variant, lambda_n=0.0, lambda_c=0.0))
    found = losses(control, net, of)
    assert found["L_n"] != 0
    assert found["L_c"] != 0
    close(gradients(control, net, of), gradients(SimGCD(parameters()), net, Batch({"sampled": of.sampled})), 2e-6)


def test_margin_of_the_paper_has_no_gradient() -> None:
    """s*d + (1-s)*(delta-d) is linear: delta adds a constant."""
    net, of = network(), batch(32, 30)
    small, large = (gradients(Full(parameters(delta=delta)), net, of) for delta in (0.0, 5.0))
    close(small, large, 1e-6)


def test_before_the_start_the_baseline_alone() -> None:
    method = Full(parameters(T_warm=3, context_delay=1))
    assert [asks_for_neighbours(method, epoch) for epoch in range(6)] == [False] * 4 + [True] * 2
    assert method.terms() == {**dict.fromkeys(("info_nce", "sup_con", "distill", "entropy", "cls"), 0)} | {
        "L_n": 4,
        "L_c": 4,
    }
    net, of = network(), batch()
    found = losses(method, net, of)
    expected = losses(SimGCD(parameters()), net, of)
    assert found.keys() == expected.keys()
    assert all(torch.equal(found[name], expected[name]) for name in found)


@pytest.mark.parametrize("variant", ["paper", "mended"])
def test_neighbours_over_the_dataset(variant: str) -> None:
    """Each row looks up its own image's list: of the paper all images of the batch, of mended the neighbours."""
    stream = torch.Generator().manual_seed(3)
    p = parameters(variant=variant, reciprocal="dataset", lambda_c=0.0)
    net, of = network(), batch(24, 20, images=40)
    lists = torch.stack([torch.randperm(39, generator=stream)[:12] for _ in range(40)])
    lists = lists + (lists >= torch.arange(40)[:, None])  # no image is in its own list
    sampled, around = of.sampled.views, of.groups["neighbours"].views
    image_ids = torch.cat([of.sampled.ids, of.groups["neighbours"].ids])
    found = losses(Full(p), net, of_rows(sampled, of.sampled.labels, around, image_ids, lists))["L_n"]
    if variant == "paper":
        rows, ids = net(joined(sampled, around)), image_ids.repeat(2)
    else:
        rows, ids = net(around), image_ids[24:].repeat(2)
    pseudo, near = rows.logits.argmax(dim=1).tolist(), [set(listed) for listed in lists.tolist()]
    same = torch.zeros(len(ids), len(ids), dtype=torch.bool)
    for i, a in enumerate(ids.tolist()):
        for j, b in enumerate(ids.tolist()):
            mutual = a == b or (a in near[b] and b in near[a])
            same[i, j] = i != j and mutual and pseudo[i] == pseudo[j]
    assert same.any()
    if variant == "paper":
        expected = neighbourhood.paper(normalize(rows.projections, dim=1), same, p["delta"])
    else:
        expected = neighbourhood.mended(rows.projections, same, p["delta"])
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("variant", VARIANTS)
def test_an_image_twice_in_a_batch(variant: str) -> None:
    """Equal rows have distance 0, whose square root has an infinite slope: losses and gradients stay finite."""
    of, net = batch(16, 15), network()
    sampled, around = of.sampled.views.clone(), of.groups["neighbours"].views.clone()
    sampled[1], sampled[17] = sampled[0], sampled[16]
    around[1:3] = around[0].clone()
    around[15:18] = around[0].clone()  # and both views of it the same
    around[3] = sampled[0]
    labels = of.sampled.labels
    twice = of_rows(sampled, labels, around)
    method = Full(parameters(variant=variant, lambda_n=1.0))
    assert all(value.isfinite() for value in losses(method, net, twice).values())
    assert all(value.isfinite().all() for value in gradients(method, net, twice).values())
    one = of_rows(sampled[:1].expand(32, -1), labels, around[:1].expand(30, -1))
    assert all(value.isfinite().all() for value in gradients(method, net, one).values())


def test_joined_keeps_views_apart() -> None:
    a, b = torch.tensor([10, 11, 12, 20, 21, 22]), torch.tensor([13, 14, 23, 24])
    assert joined(a, b).tolist() == [10, 11, 12, 13, 14, 20, 21, 22, 23, 24]


def test_an_unknown_variant_is_no_method() -> None:
    with pytest.raises(KeyError):
        Full(parameters(variant="papr"))


# -- GCD -------------------------------------------------------------------------------------------------

GCD_PARAMETERS = {"projector_width": 16, "projection_dim": 6, "head_dim": 40, "seed": 0}
GCD_PARAMETERS |= {"semi_kmeans_restarts": 3, "semi_kmeans_iterations": 50}


def test_gcd_trains_the_representation_on_a_dino_head() -> None:
    method = GCD(parameters(**GCD_PARAMETERS))
    net, of = method.network(nn.Linear(KEPT, DIM), DIM, 3), batch(16)
    terms = losses(method, net, of)
    hidden = net.projector.projector(net.tail(of.sampled.views))
    cosines = normalize(hidden, dim=1) @ normalize(net.projector.direction, dim=1).T
    assert cosines.shape == (32, 40)
    z = normalize(cosines, dim=1)
    expected = {"info_nce": info_nce(z, 0.9), "sup_con": sup_con(z, of.sampled.labels, of.sampled.labels >= 0, 0.07)}
    close(terms, {"loss": 0.65 * expected["info_nce"] + 0.35 * expected["sup_con"], **expected})
    assert method.terms() == {"info_nce": 0, "sup_con": 0}
    terms["loss"].backward()
    assert all(parameter.grad is not None for parameter in net.parameters())


def test_the_last_layer_of_a_dino_head_starts_as_a_linear_layer() -> None:
    net = GCD(parameters(**GCD_PARAMETERS | {"projection_dim": 64, "head_dim": 500})).network(nn.Identity(), DIM, 3)
    start = net.projector.direction.detach()
    assert start.abs().max() <= 1 / 8
    assert start.norm(dim=1).mean() == pytest.approx(3**-0.5, rel=0.02)


def test_gcd_decays_every_parameter() -> None:
    method = GCD(parameters(**GCD_PARAMETERS))
    named = list(method.network(nn.Linear(KEPT, DIM), DIM, 3).named_parameters())
    decayed, plain = parameter_groups(named, 0.1, method.decays_all)
    assert (len(decayed["params"]), plain["params"]) == (len(named), [])
    decayed, plain = parameter_groups(named, 0.1, SimGCD.decays_all)
    assert len(plain["params"]) == 4  # the biases


def test_gcd_discovers_with_labelled_images_pinned() -> None:
    method = GCD(parameters(**GCD_PARAMETERS, K=4))
    truth = torch.arange(80) % 4
    points = torch.eye(4)[truth] + 0.05 * torch.randn(80, 4, generator=torch.Generator().manual_seed(0))
    labels = truth[:60].where((truth[:60] < 2) & (torch.arange(60) % 8 < 4), torch.tensor(-1))
    unlabelled, test = torch.nonzero(labels < 0)[:, 0], torch.arange(60, 80)
    scale = torch.linspace(1, 9, 80)[:, None]  # directions count, lengths do not
    found = method.discover(None, lambda ids: (points * scale)[ids], labels, unlabelled, test)  # type: ignore[arg-type]
    for ids, classes in ((unlabelled, found.unlabelled), (test, found.test)):
        known = truth[ids] < 2
        assert torch.equal(classes[known], truth[ids][known])
        assert {(int(a), int(b)) for a, b in zip(truth[ids][~known], classes[~known], strict=True)} in (
            {(2, 2), (3, 3)},
            {(2, 3), (3, 2)},
        )
    assert found.found["centres"].shape == (4, 4)
    without_test = method.discover(None, lambda ids: points[ids], labels, unlabelled, test[:0])  # type: ignore[arg-type]
    assert len(without_test.test) == 0


# -- shares of the terms ---------------------------------------------------------------------------------


@pytest.mark.parametrize("variant", VARIANTS)
def test_shares_are_those_of_each_term_alone(variant: str) -> None:
    method, net, of = Full(parameters(variant=variant)), network(), batch(32, 30)
    found = shares(net, losses(method, net, of), method.weights(of))
    assert list(found) == list(method.weights(of))
    for size in TERM_SIZES:
        assert sum(term[f"{size}_share"] for term in found.values()) == pytest.approx(1)
    for name, weight in method.weights(of).items():
        net.zero_grad()
        term = weight * losses(method, net, of)[name]
        assert found[name]["loss"] == pytest.approx(float(term.detach()), rel=1e-6)
        if variant == "released" and name == "L_n":
            assert not term.requires_grad
            assert found[name]["gradient"] == found[name]["tail_gradient"] == 0
            continue
        term.backward()
        of_all = torch.cat([p.grad.flatten() for p in net.parameters() if p.grad is not None])
        of_tail = [p.grad.flatten() for key, p in net.named_parameters() if key.startswith("tail.")]
        assert found[name]["gradient"] == pytest.approx(float(of_all.norm()), rel=1e-5)
        assert found[name]["tail_gradient"] == pytest.approx(float(torch.cat(of_tail).norm()), rel=1e-5)  # type: ignore[arg-type]


def test_shares_leave_gradients_and_graph_alone() -> None:
    method, net, of = Full(parameters(lambda_n=0.0, lambda_c=0.0)), network(), batch(32, 30)
    expected = gradients(method, net, of)
    net.zero_grad()
    terms = losses(method, net, of)
    found = shares(net, terms, method.weights(of))
    assert all(parameter.grad is None for parameter in net.parameters())
    assert found["L_c"]["gradient_share"] == found["L_n"]["loss_share"] == 0
    terms["loss"].backward()
    for name, parameter in net.named_parameters():
        if name in expected:
            assert torch.equal(parameter.grad, expected[name])  # type: ignore[arg-type]
    before = losses(Full(parameters()), net, batch(32))  # no context term acts yet
    assert "L_c" not in shares(net, before, Full(parameters()).weights(of))
