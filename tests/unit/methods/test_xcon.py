"""XCon: its subsets, the steps of an epoch, its terms, and odd data."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn.functional import normalize

from ctxgcd.catalogue.compared import xcon_steps
from ctxgcd.catalogue.entries import METHODS, load
from ctxgcd.clustering.kmeans import kmeans
from ctxgcd.config import Params
from ctxgcd.images.sampler import draw_batches, draw_steps
from ctxgcd.methods.step import Look, Plan
from ctxgcd.methods.xcon import XCon
from ctxgcd.pipeline.resolve import resolve
from ctxgcd.training import checkpoint
from tests.helpers.compared import batch_of, method_and_network, small
from tests.helpers.hooks import begun, whole_run
from tests.helpers.methods import look_of
from tests.helpers.refusals import error_of
from tests.helpers.training import IMAGES, made_up

torch.set_num_threads(1)

IMAGES_SEEN = 140  # of look_of


def planned(sizes: list[int], labelled: Tensor | None = None, **changes: Any) -> tuple[Plan, Tensor, Look]:
    """Return the plan of an epoch with subsets of these sizes, the subset of each image, and the images."""
    look = look_of(0)
    if labelled is not None:
        look = replace(look, labels=torch.where(labelled, 0, -1))
    method, network = method_and_network("xcon", experts=len(sizes), **{"batch_size": 20, "expert_batch": 8} | changes)
    mixed = torch.randperm(IMAGES_SEEN, generator=torch.Generator().manual_seed(1))
    network.partition = torch.arange(len(sizes)).repeat_interleave(torch.tensor(sizes))[mixed]
    return method.before_epoch(network, look), network.partition, look


def test_subsets_are_those_of_k_means_on_the_features_of_all_images() -> None:
    method, network = method_and_network("xcon", experts=3, partition_restarts=4, partition_seed=5)
    look = look_of(0)
    method.prepare(network, look)
    rows = normalize(look.features(torch.arange(IMAGES_SEEN)), dim=1).numpy()
    expected, _ = kmeans(rows, 3, restarts=4, seed=5, threads=1)
    assert network.partition.tolist() == expected.tolist()
    assert "partition" in network.state_dict()


def test_the_subsets_are_found_once_from_the_frozen_features(tmp_path: Path) -> None:
    made, _ = whole_run(tmp_path, XCon, **small("xcon"))
    _, test_view, _ = made_up()
    frozen = begun(tmp_path, XCon, **small("xcon"))[0].row.network
    rows = normalize(frozen.tail(test_view[:IMAGES]).detach(), dim=1).numpy()
    expected, _ = kmeans(rows, 2, restarts=1, seed=5, threads=1)
    assert made.row.network.partition.tolist() == expected.tolist()


def test_a_resumed_run_keeps_its_subsets(tmp_path: Path) -> None:
    """Those of the checkpoint, here others than k-means finds."""
    broken, _ = begun(tmp_path, XCon, stop_at=40, **small("xcon"))
    with pytest.raises(KeyboardInterrupt):
        broken.train()
    state, other = checkpoint.load(tmp_path / "last.pt", "ctxgcd-state"), torch.arange(IMAGES) % 2
    assert not torch.equal(state["network"]["partition"], other)
    state["network"]["partition"] = other
    checkpoint.save(tmp_path / "last.pt", "ctxgcd-state", state)
    made, _ = begun(tmp_path, XCon, **small("xcon"))
    made.train()
    assert made.row.network.partition.tolist() == other.tolist()
    assert [row["largest_subset"] for row in made.row.history[1:]] == [30, 30]


@pytest.mark.parametrize(
    ("sizes", "kind", "steps"),
    [
        ([47, 47, 46], "released", 7),  # 140 images give 7 batches of 20, the largest subset 5 of 8
        ([100, 30, 10], "released", 12),
        ([100, 30, 10], "global", 7),
        ([136, 3, 1], "released", 17),
        ([140], "released", 17),
    ],
)
def test_an_epoch_is_as_long_as_its_largest_subset(sizes: list[int], kind: str, steps: int) -> None:
    plan, partition, _ = planned(sizes, steps=kind)
    assert len(plan.steps) == steps
    assert (
        xcon_steps({"batch_size": 20, "expert_batch": 8, "experts": len(sizes), "steps": kind}, 140, plan.logged)
        == steps
    )
    assert plan.logged == {
        "smallest_subset": min(sizes),
        "median_subset": sorted(sizes)[(len(sizes) - 1) // 2],
        "largest_subset": max(sizes),
    }
    for step in plan.steps:
        assert len(step["sampled"].ids) == 20
        assert partition[step["experts"].ids].tolist() == [s for s in range(len(sizes)) for _ in range(8)]


def test_the_first_pass_over_all_images_is_that_of_the_other_methods() -> None:
    plan, _, look = planned([100, 30, 10])
    usual = draw_batches(look.labels >= 0, 20, look.stream("sampler"))
    found = torch.stack([step["sampled"].ids for step in plan.steps])
    assert torch.equal(found[:7], usual)
    assert not torch.equal(found[7:12], usual[:5])  # further passes have fresh draws


def test_about_half_of_the_images_of_a_subset_are_labelled() -> None:
    """Of a subset with labelled and unlabelled images; the others are drawn uniformly."""
    labelled = torch.zeros(IMAGES_SEEN, dtype=torch.bool)
    mixed, all_labelled, none = slice(0, 100), slice(100, 120), slice(120, 140)
    labelled[[*range(10), *range(100, 120)]] = True
    for part, share in ((mixed, 0.5), (all_labelled, 1.0), (none, 0.0)):
        drawn = draw_steps(labelled[part], 8, 250, torch.Generator().manual_seed(0))
        assert labelled[part][drawn].double().mean() == pytest.approx(share, abs=0.03)
        counts = Counter(drawn.flatten().tolist())
        assert len(counts) == len(labelled[part])
        if part is not mixed:
            assert max(counts.values()) < 2 * min(counts.values())


def test_a_subset_smaller_than_its_batch_is_drawn_with_replacement() -> None:
    plan, partition, _ = planned([136, 3, 1], torch.arange(IMAGES_SEEN) < 70)
    of = torch.stack([step["experts"].ids for step in plan.steps]).unflatten(1, (3, 8))
    assert set(of[:, 2].flatten().tolist()) == set((partition == 2).nonzero()[:, 0].tolist())
    assert set(of[:, 1].flatten().tolist()) == set((partition == 1).nonzero()[:, 0].tolist())


def test_each_group_of_losses_has_images_of_every_subset() -> None:
    plan, partition, _ = planned([100, 30, 10], loss_group=5)
    for step in plan.steps:
        for part in step["experts"].ids.chunk(4):
            assert partition[part].tolist() == [0, 0, 1, 1, 2, 2]


def test_each_subset_has_a_head_of_its_own() -> None:
    method, network = method_and_network("xcon", expert_batch=4)
    of = batch_of([0, 1, 0, 0, -1, -1, -1, -1])
    network.zero_grad()
    sum(value for name, value in method.losses(network, of).terms.items() if name.startswith("expert")).backward()
    assert network.projector.direction.grad is None
    kept = [head.direction.grad.clone() for head in network.experts]
    before = float(method.losses(network, of).terms["expert_sup_con"].detach())
    with torch.no_grad():
        network.experts[1].direction.mul_(torch.randn(network.experts[1].direction.shape))
    assert float(method.losses(network, of).terms["expert_sup_con"].detach()) == before  # no label in the second one
    assert not torch.equal(*kept)


def test_terms_are_the_written_formula() -> None:
    method, network = method_and_network("xcon", expert_batch=4)
    of = batch_of([0, 1, 0, 0, -1, 0, 0, -1])
    found = method.losses(network, of).terms
    features, labels = network.tail(of.sampled.views), of.sampled.labels
    expected = method.representation(network.projector(features), labels)
    rows, own = features.view(2, 2, 4, -1), labels.view(2, 4)  # views, subsets, images
    one, two = (
        method.representation(network.experts[subset](rows[:, subset].flatten(0, 1)), own[subset]) for subset in (0, 1)
    )
    expected |= {f"expert_{name}": (one[name] + two[name]) / 2 for name in one}
    for name, value in expected.items():
        torch.testing.assert_close(found[name], value)
    weights = method.weights(of)
    assert weights == pytest.approx(
        {"info_nce": 0.65, "sup_con": 0.35, "expert_info_nce": 0.065, "expert_sup_con": 0.035}
    )


def test_impossible_subsets_are_refused(params: Params) -> None:
    assert "experts is 2500 but there are only 1500 training images" in error_of(
        lambda: resolve(params, "cub50", "xcon+experts=2500", 0)
    )
    assert "batch_size 2048 exceeds the 1500 training images" in error_of(
        lambda: resolve(params, "cub50", "xcon+batch_size=2048", 0)
    )
    assert "expert_batch 100 is no multiple of the 16 groups of losses" in error_of(
        lambda: resolve(params, "imagenet_1k", "xcon+expert_batch=100", 0)
    )
    assert "loss_group 128 does not divide batch_size 200" in error_of(
        lambda: resolve(params, "imagenet_1k", "xcon+batch_size=200", 0)
    )
    method, network = method_and_network("xcon", experts=3)
    look = replace(look_of(0), features=lambda ids: torch.ones(len(ids), 4) * (1 + ids % 2)[:, None])
    assert "of the 3 subsets are empty" in error_of(lambda: method.prepare(network, look))


def test_an_empty_mechanism_is_named() -> None:
    method = load("xcon")(small("xcon"))
    row = {"smallest_subset": 1, "median_subset": 1, "largest_subset": 90}
    assert "single image" in method.idle([row, row])
    assert method.idle([row, row | {"median_subset": 2}]) == ""


def test_its_heads_start_as_those_of_gcd() -> None:
    _, network = method_and_network("xcon")
    _, same = method_and_network("gcd", projector_width=16, projection_dim=6, head_dim=12)
    for mine, other in zip(network.projector.parameters(), same.projector.parameters(), strict=True):
        assert torch.equal(mine, other)
    assert METHODS["xcon"].published == {"xcon": "xcon"}
    assert np.unique([float(head.direction.detach().sum()) for head in network.experts]).size == 2
