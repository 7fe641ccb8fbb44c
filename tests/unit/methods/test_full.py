"""The full method on a batch: terms, weights, gradients, and the rows of each term."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.functional import normalize

from ctxgcd.clustering.neighbours import nearest
from ctxgcd.losses import cluster, neighbourhood, pairs
from ctxgcd.methods import full
from ctxgcd.methods.full import Full
from ctxgcd.methods.simgcd import SimGCD, joined
from ctxgcd.methods.step import Batch
from ctxgcd.models.network import Network
from ctxgcd.utils.seeding import generator
from tests.helpers.methods import (
    BOTH,
    CLASSES,
    DIM,
    VARIANTS,
    batch,
    close,
    gradients,
    has_neighbours,
    look_of,
    losses,
    network,
    of_rows,
    parameters,
    written_baseline,
)

torch.set_num_threads(1)


def expected_terms(net: Network, of: Batch, p: dict[str, Any]) -> dict[str, Tensor]:
    """Return the variant's terms with rows selected manually, and a separate forward pass of each part of the batch."""
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
    # Pseudo labels are not differentiable, so L_n has no gradient for the classifier's direction.
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


def test_before_the_start_only_the_baseline_is_computed() -> None:
    method = Full(parameters(T_warm=3, context_delay=1))
    assert [has_neighbours(method, epoch) for epoch in range(6)] == [False] * 4 + [True] * 2
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
    """Each row uses the list of its image: all images of the batch in `paper`, the neighbours in `mended`."""
    stream = torch.Generator().manual_seed(3)
    p = parameters(variant=variant, reciprocal="dataset", lambda_c=0.0)
    net, of = network(), batch(24, 20, images=40)
    lists = torch.stack([torch.randperm(39, generator=stream)[:12] for _ in range(40)])
    lists = lists + (lists >= torch.arange(40)[:, None])  # the list of an image does not contain the image
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
    around[15:18] = around[0].clone()  # with equal views
    around[3] = sampled[0]
    labels = of.sampled.labels
    twice = of_rows(sampled, labels, around)
    method = Full(parameters(variant=variant, lambda_n=1.0))
    assert all(value.isfinite() for value in losses(method, net, twice).values())
    assert all(value.isfinite().all() for value in gradients(method, net, twice).values())
    one = of_rows(sampled[:1].expand(32, -1), labels, around[:1].expand(30, -1))
    assert all(value.isfinite().all() for value in gradients(method, net, one).values())


@pytest.mark.parametrize("reciprocal", ["batch", "dataset"])
def test_each_loss_group_has_its_own_queries(reciprocal: str) -> None:
    """Two groups of 16 images, with floor(20 / 6) queries of six images each, distinct within a group."""
    method = Full(
        parameters(batch_size=32, loss_group=16, neighbour_images=20, k=6, T_warm=0, reciprocal=reciprocal, epochs=1)
    )
    look = look_of(0)
    z = normalize(look.features(torch.arange(140)), dim=1)
    lists = nearest(z, 5).tolist()
    for step in method.before_epoch(network(), look).steps:
        ids = step["neighbours"].ids
        assert len(ids) == 2 * 3 * 6
        neighbourhoods = ids.reshape(2, 3, 6).tolist()
        for group in neighbourhoods:
            assert len({queried[0] for queried in group}) == 3
            assert all(queried[1:] == lists[queried[0]] for queried in group)
        assert neighbourhoods[0] != neighbourhoods[1]
        assert len(step["sampled"].ids) == 32


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("reciprocal", ["batch", "dataset"])
def test_released_neighbour_lists_against_loops(variant: str, reciprocal: str) -> None:
    """Raw features of one train view, Euclidean, and the image itself is one of the k."""
    k = 6
    p = parameters(batch_size=32, k=k, T_warm=2, reciprocal=reciprocal, variant=variant, neighbour_lists="released")
    epochs = {epoch: look_of(epoch) for epoch in (1, 2, 3)}
    streams = []

    def one_train_view(ids: Tensor, stream: torch.Generator, epoch: int) -> Tensor:
        """A view of each image that is not the test view."""
        streams.append(stream.initial_seed())
        return (look_of(epoch).features(ids) + torch.randn(len(ids), DIM, generator=stream)) * (1 + ids[:, None] % 3)

    for epoch, look in epochs.items():
        look = replace(look, train_features=lambda ids, stream, e=epoch: one_train_view(ids, stream, e))
        steps = Full(p).before_epoch(network(), look).steps
        if epoch < 2:
            assert not streams
            continue
        view = one_train_view(torch.arange(140), generator(0, "neighbour_lists", epoch), epoch).double()
        distance = [[float((a - b).square().sum()) for b in view] for a in view]
        lists = [sorted(range(140), key=lambda j: (distance[i][j], j))[:k] for i in range(140)]
        assert all(listed[0] == i for i, listed in enumerate(lists))
        for step in steps:
            found = step["neighbours"].ids.reshape(-1, k).tolist()
            assert found == [lists[listed[0]] for listed in found]
            if reciprocal == "dataset":
                ids, given = step["sampled"].ids.tolist(), step["sampled"].given["nearest"].tolist()
                assert given == [lists[i][1:] for i in ids]
        usual = Full(p | {"neighbour_lists": "paper"}).before_epoch(network(), look).steps
        assert all(torch.equal(a["sampled"].ids, b["sampled"].ids) for a, b in zip(steps, usual, strict=True))
        queries = [[step["neighbours"].ids[::k].tolist() for step in of] for of in (steps, usual)]
        assert queries[0] == queries[1]  # the same queries with other neighbours
        assert not all(torch.equal(a["neighbours"].ids, b["neighbours"].ids) for a, b in zip(steps, usual, strict=True))


def test_joined_keeps_views_apart() -> None:
    a, b = torch.tensor([10, 11, 12, 20, 21, 22]), torch.tensor([13, 14, 23, 24])
    assert joined(a, b).tolist() == [10, 11, 12, 13, 14, 20, 21, 22, 23, 24]


def test_an_unknown_variant_is_refused() -> None:
    with pytest.raises(KeyError):
        Full(parameters(variant="papr"))
