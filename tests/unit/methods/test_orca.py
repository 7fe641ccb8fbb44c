"""ORCA: its start, the margin of an epoch, its terms, and odd data."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor

from ctxgcd.catalogue.entries import load
from ctxgcd.errors import UserError
from ctxgcd.losses.labelled_cross_entropy import labelled_cross_entropy
from ctxgcd.losses.partners import negative_entropy, pair_similarity, partners
from ctxgcd.methods.orca import ORCA
from ctxgcd.methods.step import Look
from tests.helpers.compared import batch_of, method_and_network, small
from tests.helpers.hooks import whole_run
from tests.helpers.methods import look_of
from tests.helpers.training import made_up

torch.set_num_threads(1)


def uncertainty(network: object, features: Tensor) -> float:
    logits = 10 * features @ torch.nn.functional.normalize(network.classifier.direction, dim=1).T  # type: ignore[attr-defined]
    rows = (logits / features.norm(dim=1, keepdim=True)).softmax(dim=1)
    return sum(1 - row.max().item() for row in rows) / len(rows)


def test_directions_start_with_length_one() -> None:
    _, network = method_and_network("orca")
    torch.testing.assert_close(network.classifier.direction.norm(dim=1), torch.ones(4))


@pytest.mark.parametrize("limit", [0.5, 1.0, 0.05])
def test_the_margin_is_the_uncertainty_on_unlabelled_images(limit: float) -> None:
    method, network = method_and_network("orca", margin_limit=limit, batch_size=16)
    look = look_of(2)
    plan = method.before_epoch(network, look)
    expected = min(limit, uncertainty(network, look.features((look.labels < 0).nonzero()[:, 0])))
    assert plan.logged["margin"] == pytest.approx(expected, rel=1e-5)
    assert float(network.margin) == plan.logged["margin"]
    assert not network.margin.requires_grad
    assert len(plan.steps) == 140 // 16
    assert "margin" not in network.state_dict()


def test_the_margin_is_computed_before_every_epoch(tmp_path: Path) -> None:
    seen: list[float] = []

    class Watching(ORCA):
        def before_epoch(self, network: object, look: Look) -> object:  # type: ignore[override]
            _, test_view, labels = made_up()
            features = network.tail(test_view[: len(labels)][labels < 0]).detach()  # type: ignore[attr-defined]
            seen.append(uncertainty(network, features))
            return super().before_epoch(network, look)  # type: ignore[arg-type]

    made, _ = whole_run(tmp_path, Watching, **small("orca", margin_limit=1.0))
    assert [row["margin"] for row in made.row.history] == pytest.approx(seen, rel=1e-5)
    assert len(set(seen)) == 3


def test_terms_use_view_1_and_partners_view_2() -> None:
    method, network = method_and_network("orca")
    network.margin.fill_(0.3)
    of = batch_of([0, 1, 0, -1, -1, 1, 0, -1])
    found = method.losses(network, of)
    features = network.tail(of.sampled.views)
    one, two = network.classify(features).chunk(2)
    drawn = torch.rand(8, 8, generator=of.stream("partners"))
    partner = partners(features[:8], of.sampled.labels, drawn)
    expected = {
        "cls": labelled_cross_entropy(one, of.sampled.labels, 3.0),
        "pair": pair_similarity(one, two, partner),
        "neg_entropy": negative_entropy(one),
    }
    for name, value in expected.items():
        torch.testing.assert_close(found.terms[name], value)
    assert float(found.logged["partners_by_label"]) == 5 / 8
    assert method.losses(network, replace(of, step=3)).terms["pair"] != found.terms["pair"]  # other draws


def test_without_labels_all_partners_are_nearest_and_without_others_all_are_drawn() -> None:
    method, network = method_and_network("orca")
    for labels, share in (([-1] * 8, 0.0), ([0, 1] * 4, 1.0), ([0] + [-1] * 7, 0.0)):
        assert float(method.losses(network, batch_of(labels)).logged["partners_by_label"]) == share


def test_data_without_unlabelled_images_are_refused() -> None:
    method, network = method_and_network("orca", batch_size=16)
    look = look_of(0)
    with pytest.raises(UserError, match="unlabelled images are needed"):
        method.before_epoch(network, replace(look, labels=torch.zeros_like(look.labels)))


def test_an_empty_mechanism_is_named() -> None:
    method = load("orca")(small("orca"))
    row = {"margin": 0.4, "partners_by_label": 0.5}
    assert method.idle([row, row | {"margin": 0.0}]) == ""
    assert "margin was 0" in method.idle([row | {"margin": 1e-5}] * 2)
    assert "no partner was chosen by label" in method.idle([row | {"partners_by_label": 0.0}] * 2)
