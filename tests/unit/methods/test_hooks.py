"""Hooks of a method in the loop: plans, streams, modes, buffers, looks, and further columns."""

from __future__ import annotations

from collections.abc import Mapping
from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import normalize

from ctxgcd.errors import UserError
from ctxgcd.images.sampler import draw_batches
from ctxgcd.methods.step import Batch, Group, Look, Losses, Plan, Rows
from ctxgcd.models.network import Network, Outputs, TailNetwork
from ctxgcd.training import checkpoint
from ctxgcd.training.views import BankViews
from ctxgcd.utils.seeding import Counted, Stream, generator
from tests.helpers.hooks import EVERY_IMAGE, NONE, STEPS, Plain, begun, network, resumed_run, rows_of, whole_run
from tests.helpers.training import (
    BANK,
    CLASSES,
    DIM,
    IMAGES,
    TEST,
    equal,
    made_up,
    slow_lists,
)

torch.set_num_threads(1)


# -- the plan of an epoch --------------------------------------------------------------------------------


class Grouped(Plain):
    """Three groups per step, with two kinds of integers that identify the images."""

    names: tuple[str, ...] = ("sampled", "near", "far")

    def __init__(self, parameters: dict[str, Any]) -> None:
        super().__init__(parameters)
        self.planned: list[dict[str, Group]] = []

    def before_epoch(self, network: Any, look: Look) -> Plan:
        drawn, steps = look.stream("own"), []
        for step in look.sampled(self.p["batch_size"]):
            near, far = (torch.randint(0, IMAGES, (n,), generator=drawn) for n in (5, 3))
            ids = {"sampled": step["sampled"].ids, "near": near, "far": far}
            steps.append(
                {
                    name: Group(ids[name], {"triple": 3 * ids[name], "pair": torch.stack([-ids[name], ids[name]], 1)})
                    for name in self.names
                }
            )
        self.planned += steps
        return Plan(steps)


def without(*names: str) -> type[Grouped]:
    """Return the same method with only these groups."""
    return type("Fewer", (Grouped,), {"names": names})


def test_losses_see_the_planned_groups(tmp_path: Path) -> None:
    made, recorder = whole_run(tmp_path, Grouped)
    method, (bank, _, labels) = made.row.method, made_up()
    assert isinstance(method, Grouped)
    assert len(method.seen) == len(method.planned) == 3 * STEPS
    asked = iter(recorder.calls)
    for number, (batch, step) in enumerate(zip(method.seen, method.planned, strict=True)):
        epoch = number // STEPS
        assert (batch.epoch, batch.step, batch.steps, batch.seed) == (epoch, number % STEPS, STEPS, 0)
        assert list(batch.groups) == ["sampled", "near", "far"]
        if number % STEPS == 0:
            sampled = Stream(generator(0, "views", epoch))
        near, far = Counted.of_step([step["near"].ids, step["far"].ids], 0, "counted_views", epoch, number % STEPS)
        drawn = {"sampled": sampled, "near": near, "far": far}
        for name, rows in batch.groups.items():
            ids = step[name].ids
            assert torch.equal(rows.ids, ids)
            assert torch.equal(rows.labels, labels[ids])
            assert torch.equal(rows.given["triple"], 3 * ids)
            assert torch.equal(rows.given["pair"], torch.stack([-ids, ids], 1))
            [expected] = BankViews(bank, bank[0]).pairs([(ids, drawn[name])], ids.device)
            assert torch.equal(rows.views, expected)
            own_ids, own_views = next(asked)  # in the order of the groups
            assert torch.equal(own_ids, ids)
            assert torch.equal(own_views, rows.views)


@pytest.mark.parametrize("names", [("sampled", "far"), ("near",), ("far", "sampled")], ids="-".join)
def test_views_do_not_depend_on_other_images(tmp_path: Path, names: tuple[str, ...]) -> None:
    seen = []
    for kind in (Grouped, without(*names)):
        made, _ = begun(tmp_path, kind, name=kind.__name__, epochs=2)
        made.train()
        assert isinstance(made.row.method, Grouped)
        seen.append(made.row.method.seen)
    for of_all, fewer in zip(*seen, strict=True):
        assert list(fewer.groups) == list(names)
        elsewhere = torch.cat([of_all.groups[name].ids for name in ("near", "far") if name not in names] + [NONE])
        for name in names:
            ids = fewer.groups[name].ids
            assert torch.equal(ids, of_all.groups[name].ids)
            # A further occurrence of an image has other views, in any group.
            same = torch.ones(len(ids), dtype=torch.bool) if name == "sampled" else ~torch.isin(ids, elsewhere)
            assert same.any()
            assert torch.equal(fewer.groups[name].views[same.repeat(2)], of_all.groups[name].views[same.repeat(2)])


@pytest.mark.parametrize("name", ["views", "heads", "own/3"])
def test_a_stream_of_the_training_is_refused(tmp_path: Path, name: str) -> None:
    class Taking(Plain):
        def before_epoch(self, network: Any, look: Look) -> Plan:
            look.stream(name)
            return super().before_epoch(network, look)

    made, _ = begun(tmp_path, Taking)
    with pytest.raises(ValueError, match=f"'{name}' is a reserved stream"):
        made.train()


def test_a_second_evaluation_of_a_batch_draws_the_same_numbers() -> None:
    def drawn(name: str = "mask", **changes: int) -> tuple[float, ...]:
        rows = Rows(torch.zeros(2, 1), torch.zeros(1).long(), torch.zeros(1).long())
        batch = Batch({"sampled": rows}, **{"epoch": 1, "step": 2, "steps": 7, "seed": 3, **changes})
        first, second = (tuple(torch.rand(4, generator=batch.stream(name)).tolist()) for _ in range(2))
        assert first == second
        return first

    others = [drawn("crop"), *(drawn(**{key: 5}) for key in ("epoch", "step", "seed"))]
    assert len({drawn(), *others}) == 5
    assert drawn(steps=9) == drawn()


# -- modes and buffers of the network --------------------------------------------------------------------


class NormedNetwork(TailNetwork):
    """Batch norm in the tail and in the head."""

    def __init__(self, seed: int) -> None:
        inner = network(seed)
        super().__init__(nn.Sequential(inner.tail, nn.BatchNorm1d(DIM)))
        self.norm, self.projector, self.classifier = nn.BatchNorm1d(DIM), inner.projector, inner.classifier

    def forward(self, views: Tensor) -> Outputs:
        assert (self.training, self.norm.training, self.tail[1].training) == (True, True, False)
        features = self.tail(views)
        return Outputs(features, self.projector(self.norm(features)), self.classify(features))

    def classify(self, features: Tensor) -> Tensor:
        return self.classifier(self.norm(features))


class Normed(Plain):
    def network(self, tail: nn.Module, dim: int, old_classes: int) -> TailNetwork:
        return NormedNetwork(self.p["seed"])


def test_heads_train_in_training_mode_and_the_tail_does_not(tmp_path: Path) -> None:
    made, recorder = whole_run(tmp_path, Normed)
    net = made.row.network
    assert isinstance(net, NormedNetwork)
    assert not net.training
    assert net.norm.num_batches_tracked == 2 * 3 * STEPS  # classify and the projector, in each step
    assert (net.norm.running_mean != 0).any()
    assert net.tail[1].num_batches_tracked == 0
    assert (net.tail[1].running_mean == 0).all()
    assert (net.tail[1].running_var == 1).all()
    assert (net.tail[1].weight != 1).any()  # it is trained
    features = made.features(EVERY_IMAGE)
    evaluated = deepcopy(net).eval()
    for i in EVERY_IMAGE.tolist():  # in evaluation mode no image depends on another
        torch.testing.assert_close(features[i], evaluated.tail(made_up()[1][i : i + 1])[0].detach())
    unlabelled, test = torch.arange(IMAGES), torch.arange(IMAGES, IMAGES + TEST)
    found = made.row.method.discover(net, made.features, made.inputs.labels, unlabelled, test)
    one_by_one = torch.cat([evaluated.classify(features[i : i + 1]).argmax(dim=1) for i in EVERY_IMAGE])
    assert torch.equal(torch.cat([found.unlabelled, found.test]), one_by_one)
    assert net.norm.num_batches_tracked == 2 * 3 * STEPS
    again, _ = resumed_run(tmp_path, Normed, STEPS + 3)
    assert equal(again, made)
    assert len(recorder.calls) == 3 * STEPS


class AveragedNetwork(Network):
    """A network with a moving average of the classifier, and the mean feature of the epoch."""

    def __init__(self, seed: int) -> None:
        inner = network(seed)
        super().__init__(inner.tail, DIM, CLASSES, 16, 7, seed)
        self.projector = inner.projector
        self.register_buffer("average", self.classifier.direction.detach().clone())
        self.register_buffer("centre", torch.zeros(DIM), persistent=False)


class Averaged(Plain):
    def __init__(self, parameters: dict[str, Any]) -> None:
        super().__init__(parameters)
        self.directions: list[Tensor] = []
        self.kept: list[tuple[Batch, Mapping[str, Any]]] = []

    def network(self, tail: nn.Module, dim: int, old_classes: int) -> TailNetwork:
        return AveragedNetwork(self.p["seed"])

    def before_epoch(self, network: Any, look: Look) -> Plan:
        network.centre = look.features(torch.arange(IMAGES)).mean(dim=0)
        return super().before_epoch(network, look)

    def losses(self, network: Any, batch: Batch) -> Losses:
        self.directions.append(network.classifier.direction.detach().clone())
        self.seen.append(batch)
        out = network(batch.sampled.views)
        pull = ((out.features - network.centre) @ network.average.T).pow(2).mean()  # depends on both buffers
        terms = self.of(out, batch.sampled.labels)
        return Losses({**terms, "cls": terms["cls"] + 0.1 * pull}, kept={"logits": out.logits.detach()})

    def after_step(self, network: Any, batch: Batch, kept: Mapping[str, Any]) -> None:
        assert not torch.is_grad_enabled()
        self.kept.append((batch, kept))
        network.average.lerp_(network.classifier.direction, 0.2)


def test_after_step_changes_buffers_that_are_saved(tmp_path: Path) -> None:
    made, recorder = whole_run(tmp_path, Averaged)
    method, net = made.row.method, made.row.network
    assert isinstance(method, Averaged)
    assert isinstance(net, AveragedNetwork)
    expected = method.directions[0]
    for direction in [*method.directions[1:], net.classifier.direction.detach()]:  # as they are after each step
        expected = torch.lerp(expected, direction, 0.2)
    assert torch.equal(net.average, expected)
    assert not torch.equal(net.average, method.directions[0])
    assert [batch for batch, _ in method.kept] == method.seen
    first, (_, kept) = network(0), method.kept[0]
    assert torch.equal(kept["logits"], first(recorder.calls[0][1]).logits)
    assert not kept["logits"].requires_grad
    saved = checkpoint.load(tmp_path / "whole.pt", "ctxgcd-state")["network"]
    assert torch.equal(saved["average"], net.average)
    assert "centre" not in saved
    for done in (1, 2):
        again, _ = resumed_run(tmp_path / str(done), Averaged, done * STEPS + 3)
        assert equal(again, made)
        assert torch.equal(again.row.network.centre, net.centre)


# -- looks before an epoch -------------------------------------------------------------------------------


class Looking(Normed):
    """Uses all attributes of the look in every epoch and before the first, before and after the sampler's draws."""

    def prepare(self, network: Any, look: Look) -> None:
        self.look_around(network, look)

    def before_epoch(self, network: Any, look: Look) -> Plan:
        self.look_around(network, look)
        plan = super().before_epoch(network, look)
        self.look_around(network, look)
        return plan

    def look_around(self, network: Any, look: Look) -> None:
        bank, test_view, labels = made_up()
        assert torch.equal(look.labels, labels)
        tail = deepcopy(network.tail).eval()
        ids = torch.tensor([3, 69, 3, 0, 64])
        with torch.enable_grad():
            features = look.features(ids)
            drawn = look.train_features(ids % IMAGES, look.stream("looks"))
        assert not features.requires_grad
        assert not drawn.requires_grad
        torch.testing.assert_close(features, tail(test_view[ids]).detach())
        which = torch.rand(2, 5, generator=generator(0, "looks", look.epoch), dtype=torch.float64)[0]
        views = [bank[int(view * BANK), image] for view, image in zip(which.tolist(), ids % IMAGES, strict=True)]
        torch.testing.assert_close(drawn, tail(torch.stack(views)).detach())
        everything = look.features(torch.arange(IMAGES))
        assert look.nearest(normalize(everything, dim=1), 6).tolist() == slow_lists(everything, 6)
        sampled = draw_batches(labels >= 0, 8, generator(0, "sampler", look.epoch))
        assert [step["sampled"].ids.tolist() for step in look.sampled(8)] == sampled.tolist()


def test_a_look_gives_current_features_without_side_effects(tmp_path: Path) -> None:
    made, recorder = whole_run(tmp_path / "looking", Looking)
    plain, expected = whole_run(tmp_path / "plain", Normed)
    assert equal(made, plain)
    for (ids, views), (own_ids, own_views) in zip(recorder.calls, expected.calls, strict=True):
        assert torch.equal(ids, own_ids)
        assert torch.equal(views, own_views)


# -- recorded values --------------------------------------------------------------------------------


class Weighing(Plain):
    """Weights by epoch and step; a value of the epoch and one of each step for the history."""

    logged = ("threshold", "spread")

    def before_epoch(self, network: Any, look: Look) -> Plan:
        return replace(super().before_epoch(network, look), logged={"threshold": 0.5 + look.epoch})

    def weights(self, batch: Batch) -> dict[str, float]:
        return {"info_nce": 1 / (1 + batch.step), "cls": 0.1 + batch.epoch + batch.step / batch.steps}

    def losses(self, network: Any, batch: Batch) -> Losses:
        found = super().losses(network, batch)
        self.noted = [*getattr(self, "noted", []), {name: float(value.detach()) for name, value in found.terms.items()}]
        return replace(found, logged={"spread": batch.sampled.views.std()})


def test_history_and_shares_use_the_weights_of_the_step(tmp_path: Path) -> None:
    made, recorder = whole_run(tmp_path, Weighing)
    method = made.row.method
    assert isinstance(method, Weighing)
    assert list(method.columns()) == ["epoch", "lr", "threshold", "spread", "loss", "info_nce", "cls"]
    for epoch, row in enumerate(made.row.history):
        assert set(row) == set(method.columns())
        of_epoch = method.noted[epoch * STEPS : (epoch + 1) * STEPS]
        by_hand = [
            of["info_nce"] / (1 + step) + (0.1 + epoch + step / STEPS) * of["cls"] for step, of in enumerate(of_epoch)
        ]
        assert row["loss"] == pytest.approx(sum(by_hand) / STEPS, rel=1e-5)
        for term in ("info_nce", "cls"):
            assert row[term] == pytest.approx(sum(of[term] for of in of_epoch) / STEPS, rel=1e-5)
        assert row["threshold"] == 0.5 + epoch
        spreads = [float(views.std()) for _, views in recorder.calls[epoch * STEPS : (epoch + 1) * STEPS]]
        assert row["spread"] == pytest.approx(sum(spreads) / STEPS, rel=1e-5)
    assert [of["epoch"] for of in made.row.shares] == [0, 2]
    for of in made.row.shares:
        first, sizes = method.noted[of["epoch"] * STEPS], of["terms"]
        assert [sizes[term]["weight"] for term in ("info_nce", "cls")] == [1, 0.1 + of["epoch"]]
        for term in ("info_nce", "cls"):
            assert sizes[term]["loss"] == pytest.approx(sizes[term]["weight"] * first[term], rel=1e-5)


class Judged(Plain):
    """Numbers that are known after the last step of an epoch."""

    logged = ("size",)

    def after_epoch(self, network: Any) -> dict[str, float]:
        assert not network.training
        return {"size": float(network.classifier.direction.detach().norm())}


def test_numbers_after_an_epoch_are_in_its_history(tmp_path: Path) -> None:
    made, _ = whole_run(tmp_path, Judged)
    assert made.row.history[-1]["size"] == float(made.row.network.classifier.direction.detach().norm())
    assert len({row["size"] for row in made.row.history}) == 3
    assert equal(resumed_run(tmp_path, Judged, STEPS + 3)[0], made)


def test_a_number_after_an_epoch_must_be_a_number(tmp_path: Path) -> None:
    class Wrong(Judged):
        def after_epoch(self, network: Any) -> dict[str, Any]:
            return {"size": network.classifier.direction}

    with pytest.raises(UserError, match=r"Wrong\.after_epoch returns a Parameter as 'size'; return a number"):
        whole_run(tmp_path, Wrong)


def test_the_history_can_be_read_while_a_run_trains(tmp_path: Path) -> None:
    epochs: list[list[dict[str, str]]] = []

    class Reading(Weighing):
        def before_epoch(self, network: Any, look: Look) -> Plan:
            if look.epoch:
                epochs.append(rows_of(tmp_path / "whole_history.csv"))
            return super().before_epoch(network, look)

    made, _ = whole_run(tmp_path, Reading)
    epochs.append(rows_of(tmp_path / "whole_history.csv"))
    assert [len(rows) for rows in epochs] == [1, 2, 3]
    for rows in epochs:
        for found, row in zip(rows, made.row.history, strict=False):
            assert list(found) == list(made.row.method.columns())
            assert {name: float(value) for name, value in found.items()} == row
    resumed_run(tmp_path, Weighing, STEPS + 3)
    assert rows_of(tmp_path / "last_history.csv") == epochs[-1]
