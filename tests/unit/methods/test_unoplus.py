"""UNO+: targets, heads, prototypes, the predicting head, and odd data."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.functional import normalize

from ctxgcd.catalogue.entries import load
from ctxgcd.config import Params
from ctxgcd.losses.swapped import targets
from ctxgcd.methods.step import Batch
from ctxgcd.models.multi_head import MultiHead
from ctxgcd.pipeline.resolve import resolve
from tests.helpers.compared import batch_of, method_and_network, small
from tests.helpers.hooks import STEPS, whole_run
from tests.helpers.methods import look_of
from tests.helpers.refusals import error_of
from tests.helpers.training import IMAGES, TEST

torch.set_num_threads(1)

LABELS = [0, 1, 0, -1, -1, 1, 0, -1, -1, -1]


def stepped(method: Any, network: Any, of: Batch) -> Any:
    """Compute the losses of a step without an optimiser, and call the hook after it."""
    found = method.losses(network, of)
    with torch.no_grad():
        method.after_step(network, of, found.kept)
    return found


def test_heads_are_those_computed_one_by_one() -> None:
    heads = MultiHead(5, 7, 3, 4, 2, generator=torch.Generator().manual_seed(0))
    x = torch.randn(9, 5, generator=torch.Generator().manual_seed(1))
    found = heads(x)
    for h in range(2):
        units = slice(7 * h, 7 * h + 7)
        hidden = x @ heads.first[units].T + heads.first_bias[units]
        normed = (hidden - hidden.mean(dim=0)) / (hidden.var(dim=0, unbiased=False) + 1e-5).sqrt()
        rows = normalize(normed.relu() @ heads.second[h] + heads.second_bias[h], dim=1)
        torch.testing.assert_close(found[h], rows @ heads.prototypes[h].T)
    torch.testing.assert_close(heads.prototypes.norm(dim=-1), torch.ones(2, 4))


@pytest.mark.parametrize("over", ["all", "new"])
def test_terms_are_the_written_formula(over: str) -> None:
    method, network = method_and_network("unoplus", targets_over=over)
    of = batch_of(LABELS)
    found = stepped(method, network, of)
    features = network.tail(of.sampled.views).chunk(2)
    for term, heads in (("swapped", network.new), ("over", network.over)):
        by_head = []
        for h in range(2):
            cosines = [torch.cat([normalize(f, dim=1) @ network.old.T, heads(f)[h]], dim=1) for f in features]
            target = [targets(c, of.sampled.labels, 0.05, 3, 2 if over == "new" else 0) for c in cosines]
            terms = [-(target[1 - v] * (cosines[v] / 0.1).log_softmax(dim=1)).sum(dim=1).mean() for v in (0, 1)]
            by_head.append(sum(terms) / 2)
            if term == "swapped":
                torch.testing.assert_close(network.sums[h], by_head[h].detach())
        torch.testing.assert_close(found.terms[term], sum(by_head) / 2)
    assert method.weights(of) == {"swapped": 0.5, "over": 0.5}


def test_each_view_moves_the_running_statistics(tmp_path: Path) -> None:
    made, _ = whole_run(tmp_path, load("unoplus"), **small("unoplus"))
    net = made.row.network
    for heads in (net.new, net.over):
        assert heads.norm.num_batches_tracked == 2 * 3 * STEPS  # not more: the measured sizes of terms add none
        assert (heads.norm.running_mean != 0).all()
    assert not net.training
    ids = torch.arange(IMAGES + TEST)
    features = made.features(ids)
    whole = net.classify(features)
    torch.testing.assert_close(whole, torch.cat([net.classify(features[i : i + 1]) for i in ids]))


def test_sums_are_those_of_the_last_epoch_and_choose_the_head(tmp_path: Path) -> None:
    seen: list[Tensor] = []
    uno = load("unoplus")

    class Watching(uno):  # type: ignore[misc, valid-type]
        def after_step(self, network: Any, batch: Batch, kept: Any) -> None:
            seen.append(kept["of_heads"])
            super().after_step(network, batch, kept)

    made, _ = whole_run(tmp_path, Watching, **small("unoplus", heads=3))
    net = made.row.network
    torch.testing.assert_close(net.sums, sum(seen[-STEPS:]))
    best = [int(sum(seen[STEPS * e : STEPS * (e + 1)]).argmin()) for e in range(3)]
    assert [row["best_head"] for row in made.row.history] == best
    features = made.features(torch.arange(IMAGES))
    for predicting, head in (("best", best[-1]), ("first", 0)):
        net.first_head = predicting == "first"
        expected = torch.cat([normalize(features, dim=1) @ net.old.T, net.new(features)[head]], dim=1)
        torch.testing.assert_close(net.classify(features), expected)
    _, first = method_and_network("unoplus", predicting_head="first")
    first.sums.copy_(torch.tensor([2.0, 1.0]))
    assert first.predicting == 0
    first.first_head = False
    assert first.predicting == 1


@pytest.mark.parametrize("scored", ["normalised", "released"])
def test_prototypes_have_length_one_before_each_step(tmp_path: Path, scored: str) -> None:
    lengths: list[Tensor] = []
    uno = load("unoplus")

    class Watching(uno):  # type: ignore[misc, valid-type]
        def losses(self, network: Any, batch: Batch) -> Any:
            parts = (network.old, network.new.prototypes, network.over.prototypes)
            lengths.extend(part.detach().norm(dim=-1).flatten() for part in parts)
            return super().losses(network, batch)

    made, _ = whole_run(tmp_path, Watching, **small("unoplus", scored_prototypes=scored))
    torch.testing.assert_close(torch.cat(lengths), torch.ones(len(torch.cat(lengths))))
    after = made.row.network.new.prototypes.detach().norm(dim=-1)
    assert bool((after - 1).abs().max() < 1e-6) == (scored == "normalised")


def test_targets_of_few_or_many_unlabelled_images(capsys: pytest.CaptureFixture[str]) -> None:
    """One unlabelled image has the uniform target; without any, only labels count. A large K is noted once."""
    uniform = []
    for labels in ([0] * 7 + [-1], [0, 1] * 4, [-1] * 8):
        method, network = method_and_network("unoplus")
        found = method.losses(network, batch_of(labels))
        assert all(value.isfinite() for value in found.terms.values())
        uniform.append(float(found.logged["target_entropy"]))
    assert uniform[0] == pytest.approx(1.0)
    assert uniform[1] == 0.0
    assert 0 < uniform[2] < 1
    method, network = method_and_network("unoplus", K=9, batch_size=16)
    for epoch in range(2):
        method.before_epoch(network, look_of(epoch))
    note = (
        "note: about 8 unlabelled images in a step are divided among K = 9 classes, so the targets of UNO+ are soft\n"
    )
    assert capsys.readouterr().out == note
    method, network = method_and_network("unoplus", K=8, batch_size=16)
    method.before_epoch(network, look_of(0))
    assert capsys.readouterr().out == ""


def test_collapsed_features_give_uniform_targets_which_are_named() -> None:
    method, network = method_and_network("unoplus")
    with torch.no_grad():
        network.tail.weight.zero_()
    logged = method.losses(network, batch_of(LABELS)).logged
    assert float(logged["target_entropy"]) == pytest.approx(1.0)
    row = {"target_entropy": float(logged["target_entropy"])}
    assert method.idle([row] * 3) == "the targets of unlabelled images were uniform in every epoch"
    assert method.idle([row, {"target_entropy": 0.4}]) == ""


def test_the_learning_rate_of_short_warm_ups(params: Params) -> None:
    row = "unoplus+warmup_epochs={}+epochs=4"
    rates = {}
    for warm in (0, 1, 4):
        method = load("unoplus")(resolve(params, "fashion", row.format(warm), 0))
        rates[warm] = [method.learning_rate(epoch) for epoch in range(4)]
    falling = [0.001 + 0.399 * (1 + math.cos(math.pi * e / 4)) / 2 for e in range(4)]
    assert rates[0] == pytest.approx(falling)
    assert rates[1][:2] == [0.001, 0.4]
    assert rates[4] == pytest.approx([0.001 + e * 0.133 for e in range(4)])
    assert "warmup_epochs 5 exceeds epochs 4" in error_of(lambda: resolve(params, "fashion", row.format(5), 0))


def test_a_group_of_one_image_is_refused(params: Params) -> None:
    """Batch norm needs two rows."""
    for key in ("batch_size=1", "loss_group=1"):
        assert error_of(lambda key=key: resolve(params, "fashion", f"unoplus+{key}", 0))  # type: ignore[misc]
