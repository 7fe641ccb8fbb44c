"""RS+: its terms, schedule and pairs, and values that are refused."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from ctxgcd.catalogue.entries import METHODS, load
from ctxgcd.config import Params
from ctxgcd.losses.labelled_cross_entropy import labelled_cross_entropy
from ctxgcd.losses.ranking import consistency, pair_bce, same_top, with_truth
from ctxgcd.methods.step import Batch
from ctxgcd.pipeline.resolve import resolve
from tests.helpers.compared import batch_of, method_and_network, small
from tests.helpers.refusals import error_of
from tests.helpers.training import DIM

torch.set_num_threads(1)

LABELS = [0, 1, 0, -1, -1, 1, 0, -1]


@pytest.mark.parametrize("changes", [{}, {"labelled_pairs": "truth", "ranked": "absolute", "ce_over": "old"}])
def test_terms_are_the_written_formula(changes: dict[str, Any]) -> None:
    method, network = method_and_network("rsplus", **changes)
    of = batch_of(LABELS)
    features = network.tail(of.sampled.views)
    one, two = (features @ network.weight.T + network.bias).chunk(2)
    same = same_top(features[:8], 3, absolute=bool(changes))
    expected = {
        "cls": labelled_cross_entropy(one[:, :2] if changes else one, of.sampled.labels),
        "pair_bce": pair_bce(one, two, with_truth(same, of.sampled.labels) if changes else same),
        "consistency": consistency(one, two),
    }
    found = method.losses(network, of).terms
    for name, value in expected.items():
        torch.testing.assert_close(found[name], value)


def test_pairs_of_one_image_are_not_counted() -> None:
    """The health is the number of ordered pairs of different images, by ranking also with `truth`."""
    for pairs in ("ranking", "truth"):
        method, network = method_and_network("rsplus", top_k=DIM, labelled_pairs=pairs)  # all sets are equal
        for ids, count in (([0, 1, 2, 3], 12), ([0, 0, 1, 2], 10), ([5, 5, 5, 5], 0)):
            logged = method.losses(network, batch_of([0, 1, -1, -1], ids=ids)).logged
            assert float(logged["positive_pairs"]) == count
    history = [{"positive_pairs": 0.0}, {"positive_pairs": 0.9}, {"positive_pairs": 1.5}]
    assert method.idle(history) == ""
    assert method.idle(history[:2]) == "almost no two images of a step had the same largest features in any epoch"


def test_the_weights_follow_the_epoch(params: Params) -> None:
    method = load("rsplus")(resolve(params, "cub", "rsplus", 0))
    found = [method.weights(Batch({}, epoch)) for epoch in (0, 75, 150, 199)]
    assert [of["consistency"] for of in found] == pytest.approx([0.3368973, 14.3252398, 50.0, 50.0])
    assert {(of["cls"], of["pair_bce"]) for of in found} == {(1.0, 1.0)}
    assert [method.learning_rate(epoch) for epoch in (84, 85, 170)] == pytest.approx([0.1, 0.01, 0.001])


def test_more_ranked_dimensions_than_features_are_refused(params: Params) -> None:
    """Before the training where the model's features are known, else by it."""
    what = "benchmark fashion, row rsplus+top_k=1281: top_k is 1281, but the features have 1280 dimensions"
    assert error_of(lambda: resolve(params, "fashion", "rsplus+top_k=1281", 0)) == f"{what}; give a smaller top_k"
    assert resolve(params, "fashion", "rsplus+top_k=1280", 0)["top_k"] == 1280
    assert METHODS["rsplus"].too_narrow({"top_k": 5}, 4) == (
        "top_k is 5, but the features have 4 dimensions; give a smaller top_k"
    )


def test_a_method_has_a_learning_rate_of_its_own(params: Params) -> None:
    """That of its section, of a row, or of the benchmark's values for it, but not of the benchmark's protocol."""
    own = {b: resolve(params, b, "rsplus", 0) for b in ("cub", "imagenet_1k")}
    assert [(p["lr"], p["weight_decay"]) for p in own.values()] == [(0.1, 1e-4), (0.8, 1e-4)]
    changed = resolve(params, "cub", "rsplus+lr=0.03+weight_decay=0.0", 0)
    assert (changed["lr"], changed["weight_decay"]) == (0.03, 0.0)
    assert "lr_floor" not in changed
    assert "rsplus does not read lr_floor" in error_of(lambda: resolve(params, "cub", "rsplus+lr_floor=0.1", 0))
    assert load("rsplus")(small("rsplus", lr=0.05)).learning_rate(0) == 0.05


@pytest.mark.parametrize("classes", [0, 1])
def test_fewer_than_two_classes_are_refused_as_fewer_than_the_old_ones(params: Params, classes: int) -> None:
    assert "at least 100 classes" in error_of(lambda: resolve(params, "cub", f"rsplus+K={classes}", 0))
