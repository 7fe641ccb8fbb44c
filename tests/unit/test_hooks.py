"""What a method may do in the loop: plans, optimisers, a stage before, buffers, looks, own columns; all resumable."""

from __future__ import annotations

import csv
from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import normalize

from ctxgcd.catalogue.entries import METHODS
from ctxgcd.errors import UserError
from ctxgcd.images.sampler import draw_batches
from ctxgcd.losses.cross_entropy import cross_entropy
from ctxgcd.losses.info_nce import info_nce
from ctxgcd.methods.build import method_of
from ctxgcd.methods.by_classifier import ByClassifier
from ctxgcd.methods.method import Method
from ctxgcd.methods.schedules import cosine_lr
from ctxgcd.methods.simgcd import SimGCD
from ctxgcd.methods.step import Batch, Group, Look, Losses, Plan, Rows
from ctxgcd.models import weights
from ctxgcd.models.backbone import Backbone, cut
from ctxgcd.models.network import Network, Outputs, TailNetwork
from ctxgcd.pipeline import run_cache
from ctxgcd.training import checkpoint, loop, train
from ctxgcd.training.row import Row
from ctxgcd.training.step_inputs import Source
from ctxgcd.training.views import BankViews
from ctxgcd.utils.seeding import Counted, Stream, generator
from tests.unit import test_training
from tests.unit.test_training import (
    ABOUT,
    BANK,
    CLASSES,
    DIM,
    IMAGES,
    TEST,
    Recorder,
    Training,
    equal,
    made_up,
    parameters,
    slow_lists,
)

torch.set_num_threads(1)

STEPS = IMAGES // 8
EVERY_IMAGE = torch.arange(IMAGES + TEST)


def network(seed: int) -> Network:
    """That of test_training, with a projector large enough for InfoNCE to have a gradient."""
    net = test_training.network(seed)
    with torch.no_grad():
        for value in net.projector.parameters():
            value.mul_(10)
    return net


class Plain(ByClassifier):
    """InfoNCE and cross-entropy of the first group; notes the batches that it sees."""

    def __init__(self, parameters: dict[str, Any]) -> None:
        super().__init__(parameters)
        self.seen: list[Batch] = []

    def network(self, tail: nn.Module, dim: int, old_classes: int) -> TailNetwork:
        return network(self.p["seed"])

    def terms(self) -> dict[str, int]:
        return {"info_nce": 0, "cls": 0}

    def weights(self, batch: Batch) -> dict[str, float]:
        return {"info_nce": 0.5, "cls": 1.0}

    def losses(self, network: Any, batch: Batch) -> Losses:
        self.seen.append(batch)
        rows = next(iter(batch.groups.values()))
        return Losses(self.of(network(rows.views), rows.labels))

    def of(self, out: Outputs, labels: Tensor) -> dict[str, Tensor]:
        return {
            "info_nce": info_nce(normalize(out.projections, dim=1), 1.0),
            "cls": cross_entropy(out.logits, labels, labels >= 0, 0.1),
        }


def begun(
    folder: Path,
    kind: type[Method],
    name: str = "last.pt",
    stop_at: int | None = None,
    start: int = 0,
    **changes: Any,
) -> tuple[Training, Recorder]:
    """A training of the made-up data by a method; start: the seed of the heads, which a resumed run does not keep."""
    p = parameters(**{"epochs": 3, "lr": 0.02, **changes})
    bank, test_view, labels = made_up()
    recorder = Recorder(BankViews(bank, test_view), stop_at)
    net = kind({**p, "seed": start}).network(network(0).tail, DIM, 2)
    row = Row(kind(p), net.eval(), folder / name, "made-up", ABOUT)
    return Training(row, Source(recorder, labels, p["precision"], p["seed"])), recorder


def whole_run(folder: Path, kind: type[Method], **changes: Any) -> tuple[Training, Recorder]:
    made, recorder = begun(folder, kind, name="whole.pt", **changes)
    made.train()
    return made, recorder


def resumed_run(folder: Path, kind: type[Method], stop_at: int, **changes: Any) -> tuple[Training, Recorder]:
    """A run that is interrupted at its `stop_at`-th views, and resumed by another process, as it were."""
    broken, _ = begun(folder, kind, stop_at=stop_at, **changes)
    with pytest.raises(KeyboardInterrupt):
        broken.train()
    made, recorder = begun(folder, kind, start=5 if any(folder.glob("*last.pt")) else 0, **changes)
    made.train()
    return made, recorder


# -- what a hook returns ---------------------------------------------------------------------------------


def changed_losses(found: Losses, **changes: Any) -> Losses:
    return replace(found, terms={**found.terms, **changes})


def extra_plan(plan: Plan, group: Any) -> Plan:
    return replace(plan, steps=[{**step, "more": group} for step in plan.steps])


WRONG = {  # (hook, what it returns in place of the right value) -> the sentence
    ("before_epoch", lambda plan: list(plan.steps)): r"before_epoch returns a list; return a Plan",
    ("before_epoch", lambda plan: None): r"before_epoch returns nothing; return a Plan",
    ("before_epoch", lambda plan: replace(plan, steps=[])): r"a plan without a step; give at least one",
    ("before_epoch", lambda plan: replace(plan, steps=[{}])): r"gives \{\} as a step; give a mapping",
    ("before_epoch", lambda plan: extra_plan(plan, EVERY_IMAGE)): r"gives a Tensor as group 'more' of a step",
    ("before_epoch", lambda plan: extra_plan(plan, Group(EVERY_IMAGE))): rf"'more' .* ids from 0 to {IMAGES - 1}",
    ("before_epoch", lambda plan: extra_plan(plan, Group(EVERY_IMAGE[:2] - 1))): r"that are not training images",
    ("before_epoch", lambda plan: replace(plan, told={"health": 1.0})): r"number told 'health', but logged is empty",
    ("learning_rate", lambda rate: None): r"learning_rate returns None; return a finite number",
    ("learning_rate", lambda rate: float("nan")): r"learning_rate returns nan",
    ("losses", lambda found: dict(found.terms)): r"losses returns a dict; return a Losses",
    (
        "losses",
        lambda found: changed_losses(found, clss=found.terms["cls"]),
    ): r"'clss', .* did you mean 'cls'\?; add it",
    ("losses", lambda found: changed_losses(found, cls=found.terms["cls"].expand(3))): r"shape \(3,\) as 'cls'",
    (
        "losses",
        lambda found: Losses({"cls": found.terms["cls"]}),
    ): r"losses gives no term 'info_nce', which acts from epoch 0",
    (
        "losses",
        lambda found: replace(found, logged={"health": found.terms["cls"]}),
    ): r"column 'health', but logged is empty",
    ("weights", lambda weights: None): r"weights returns nothing; return a Mapping",
    ("weights", lambda weights: {"cls": 1.0}): r"losses returns the term 'info_nce', but weights\(\) has cls",
    ("optimisers", lambda made: made[0]): r"optimisers returns a SGD; return a list",
    ("optimisers", lambda made: [made]): r"optimisers returns a list; return a Optimizer",
}


@pytest.mark.parametrize(("hook", "change", "sentence"), [(*key, sentence) for key, sentence in WRONG.items()])
def test_what_a_hook_must_not_return_is_told(
    tmp_path: Path, hook: str, change: Callable[[Any], Any], sentence: str
) -> None:
    def wrong(self: Plain, *given: Any) -> Any:
        return change(getattr(super(kind, self), hook)(*given))

    kind = type("Wrong", (Plain,), {hook: wrong})
    with pytest.raises(UserError, match=rf"^Wrong\..*{sentence}"):
        whole_run(tmp_path, kind)
    assert not list(tmp_path.iterdir())


class Late(Plain):
    """A buffer that is not there from the beginning."""

    def before_epoch(self, network: Any, look: Look) -> Plan:
        network.register_buffer("bank", torch.zeros(3))
        return super().before_epoch(network, look)


class Grown(Plain):
    """A buffer that grows."""

    def network(self, tail: nn.Module, dim: int, old_classes: int) -> TailNetwork:
        made = super().network(tail, dim, old_classes)
        made.register_buffer("bank", torch.zeros(3))
        return made

    def after_step(self, network: Any, batch: Batch, kept: Mapping[str, Any]) -> None:
        network.bank = torch.zeros(len(network.bank) + 1)


@pytest.mark.parametrize("kind", [Late, Grown])
def test_state_that_no_run_could_resume_from_is_refused(tmp_path: Path, kind: type[Method]) -> None:
    with pytest.raises(
        UserError, match=r"added, removed or resized bank of the network, so no run could resume; make all"
    ):
        whole_run(tmp_path, kind)
    assert not list(tmp_path.iterdir())


# -- the plan of an epoch --------------------------------------------------------------------------------


class Grouped(Plain):
    """Three groups a step, with integers that tell the images, two ways."""

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


NONE = torch.empty(0, dtype=torch.int64)


def without(*names: str) -> type[Grouped]:
    """The same, with these groups alone."""
    return type("Fewer", (Grouped,), {"names": names})


def test_losses_see_the_planned_groups(tmp_path: Path) -> None:
    made, recorder = whole_run(tmp_path, Grouped)
    method, (bank, _, labels) = made.row.method, made_up()
    assert isinstance(method, Grouped)
    assert len(method.seen) == len(method.planned) == 3 * STEPS
    asked = iter(recorder.asked)
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
            assert torch.equal(rows.views, BankViews(bank, bank[0]).pair(ids, drawn[name]))
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
            # A further occurrence of an image has views of its own, in whichever group it is.
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


def test_a_batch_draws_alike_in_a_second_evaluation() -> None:
    def drawn(name: str = "mask", **changes: int) -> tuple[float, ...]:
        rows = Rows(torch.zeros(2, 1), torch.zeros(1).long(), torch.zeros(1).long())
        batch = Batch({"sampled": rows}, **{"epoch": 1, "step": 2, "steps": 7, "seed": 3, **changes})
        first, second = (tuple(torch.rand(4, generator=batch.stream(name)).tolist()) for _ in range(2))
        assert first == second
        return first

    others = [drawn("crop"), *(drawn(**{key: 5}) for key in ("epoch", "step", "seed"))]
    assert len({drawn(), *others}) == 5
    assert drawn(steps=9) == drawn()


# -- optimisers ------------------------------------------------------------------------------------------


class Fresh(Plain):
    def before_epoch(self, network: Any, look: Look) -> Plan:
        return replace(super().before_epoch(network, look), fresh_optimiser=look.epoch == 2)


def test_a_fresh_optimiser_has_no_momentum(tmp_path: Path) -> None:
    """Epoch 2 is then that of a run which begins with the network as it is."""
    for kind, is_fresh in ((Fresh, True), (Plain, False)):
        made, _ = begun(tmp_path, kind, epochs=4)
        for epoch in range(2):
            loop.train_epoch(made.row, made.source, epoch)
        other, _ = begun(tmp_path, Plain, epochs=4)
        other.row.network.load_state_dict(made.row.network.state_dict())
        for one in (made, other):
            loop.train_epoch(one.row, one.source, 2)
        expected = other.row.network.state_dict()
        same = [torch.equal(value, expected[name]) for name, value in made.row.network.state_dict().items()]
        assert all(same) == is_fresh
        made.row.begin(made.source.look(made.row.network, 2))
        assert all(bool(optimiser.state) != is_fresh for optimiser in made.row.optimisers)


@pytest.mark.parametrize("epochs_done", [2, 3])
def test_a_fresh_optimiser_is_resumed(tmp_path: Path, epochs_done: int) -> None:
    whole, _ = whole_run(tmp_path, Fresh, epochs=5)
    assert not equal(whole, whole_run(tmp_path / "without", Plain, epochs=5)[0])
    again, rest = resumed_run(tmp_path, Fresh, epochs_done * STEPS + 3, epochs=5)
    assert equal(again, whole)
    assert len(rest.asked) == (5 - epochs_done) * STEPS


class Two(Plain):
    """Adam at a constant rate for the classifier; SGD by the cosine for the rest, the tail at a third of it."""

    def optimisers(self, network: Any) -> list[torch.optim.Optimizer]:
        groups = [
            {"params": list(part.parameters()), "factor": factor}
            for part, factor in ((network.tail, 1 / 3), (network.projector, 1.0))
        ]
        adam = torch.optim.Adam(network.classifier.parameters(), lr=0.003)
        return [adam, torch.optim.SGD(groups, lr=self.p["lr"], momentum=0.5)]


def test_several_optimisers_step_and_are_resumed(tmp_path: Path) -> None:
    made, recorder = whole_run(tmp_path, Two)
    net, labels = network(0), made_up()[2]
    adam = torch.optim.Adam(net.classifier.parameters(), lr=0.003)
    tail = torch.optim.SGD(net.tail.parameters(), lr=1.0, momentum=0.5)
    head = torch.optim.SGD(net.projector.parameters(), lr=1.0, momentum=0.5)
    for number, (ids, views) in enumerate(recorder.asked):
        lr = cosine_lr(number // STEPS, 3, 0.02, 1.0e-3)
        tail.param_groups[0]["lr"], head.param_groups[0]["lr"] = lr * (1 / 3), lr
        terms = Plain(parameters()).of(net(views), labels[ids])
        net.zero_grad()
        (0.5 * terms["info_nce"] + terms["cls"]).backward()
        for optimiser in (adam, tail, head):
            optimiser.step()
    for name, value in made.row.network.state_dict().items():
        torch.testing.assert_close(value, net.state_dict()[name], rtol=1e-5, atol=1e-6)
    of_adam, of_sgd = made.row.optimisers
    assert [group["lr"] for group in of_adam.param_groups] == [0.003]
    assert [group["lr"] for group in of_sgd.param_groups] == [lr * (1 / 3), lr]
    again, _ = resumed_run(tmp_path, Two, 2 * STEPS + 3)
    assert equal(again, made)
    assert [row["lr"] for row in again.row.history] == [cosine_lr(epoch, 3, 0.02, 1.0e-3) for epoch in range(3)]


class Scheduled(Two):
    """Adam divided by ten from epoch 2 on; the rest as in Two."""

    def schedule(self, optimisers: Sequence[torch.optim.Optimizer], epoch: int) -> None:
        super().schedule(optimisers, epoch)
        optimisers[0].param_groups[0]["lr"] = 0.003 if epoch < 2 else 0.0003


def test_each_optimiser_may_have_a_schedule(tmp_path: Path) -> None:
    made, _ = begun(tmp_path, Scheduled, epochs=4)
    rates = []
    for epoch in range(4):
        loop.train_epoch(made.row, made.source, epoch)
        rates.append([group["lr"] for optimiser in made.row.optimisers for group in optimiser.param_groups])
    expected = [cosine_lr(epoch, 4, 0.02, 1.0e-3) for epoch in range(4)]
    assert [rate[0] for rate in rates] == [0.003, 0.003, 0.0003, 0.0003]
    assert [rate[1:] for rate in rates] == [[lr * (1 / 3), lr] for lr in expected]
    whole, _ = whole_run(tmp_path, Scheduled, epochs=4)
    assert not equal(whole, whole_run(tmp_path / "two", Two, epochs=4)[0])
    assert equal(resumed_run(tmp_path, Scheduled, 3 * STEPS + 3, epochs=4)[0], whole)


class Phased(Plain):
    """From epoch 1 on other optimisers: which phase it is, a buffer tells."""

    def network(self, tail: nn.Module, dim: int, old_classes: int) -> TailNetwork:
        net = network(self.p["seed"])
        net.register_buffer("phase", torch.zeros((), dtype=torch.int64))
        return net

    def optimisers(self, network: Any) -> list[torch.optim.Optimizer]:
        if not network.phase:
            return super().optimisers(network)
        return [torch.optim.Adam(network.projector.parameters(), lr=0.003), *super().optimisers(network)]

    def before_epoch(self, network: Any, look: Look) -> Plan:
        network.phase.fill_(min(look.epoch, 1))
        return replace(super().before_epoch(network, look), fresh_optimiser=look.epoch == 1)


@pytest.mark.parametrize("epochs_done", [0, 1, 2])
def test_optimisers_of_a_later_phase_are_resumed(tmp_path: Path, epochs_done: int) -> None:
    whole, _ = whole_run(tmp_path, Phased)
    assert len(whole.row.optimisers) == 2
    assert equal(resumed_run(tmp_path, Phased, epochs_done * STEPS + 3)[0], whole)


# -- a stage before epoch 0, and preparation -------------------------------------------------------------


class Before(Plain):
    def optimisers(self, network: Any) -> list[torch.optim.Optimizer]:
        return [torch.optim.Adam(network.parameters(), lr=0.01)]

    def losses(self, network: Any, batch: Batch) -> Losses:
        found = super().losses(network, batch)
        return Losses({"info_nce": found.terms["info_nce"]}, {"drawn": torch.rand((), generator=batch.stream("own"))})

    logged = ("drawn",)

    def terms(self) -> dict[str, int]:
        return {"info_nce": 0}


STAGE_STEPS = IMAGES // 12


class Staged(Plain):
    """Two epochs of another loss, batch size and optimiser; then the classifier starts from features."""

    logged = ("drawn",)

    def __init__(self, parameters: dict[str, Any]) -> None:
        super().__init__(parameters)
        self.prepared = 0

    def stage(self) -> Method:
        return Before(self.p | {"epochs": 2, "batch_size": 12})

    def prepare(self, network: Any, look: Look) -> None:
        self.prepared += 1
        with torch.no_grad():
            network.classifier.direction.copy_(look.features(torch.arange(CLASSES)))

    def losses(self, network: Any, batch: Batch) -> Losses:
        return replace(super().losses(network, batch), logged={"drawn": torch.rand((), generator=batch.stream("own"))})


def test_a_stage_is_a_training_before_epoch_0(tmp_path: Path) -> None:
    made, recorder = whole_run(tmp_path, Staged)
    p, (bank, test_view, labels) = made.row.parameters, made_up()
    net, views = network(0), BankViews(bank, test_view)
    stage = Row(Before(p | {"epochs": 2, "batch_size": 12}), net.eval(), tmp_path / "1.pt", "stage", ABOUT)
    loop.train(stage, Source(views, labels, "float32", 0, streams="stage/"))
    with torch.no_grad():
        net.classifier.direction.copy_(net.tail(test_view[:CLASSES]))
    after = type("After", (Staged,), {"stage": lambda self: None, "prepare": lambda self, network, look: None})
    row = Row(after(p), net, tmp_path / "2.pt", "after", ABOUT)
    loop.train(row, Source(views, labels, "float32", 0))
    assert all(torch.equal(value, net.state_dict()[name]) for name, value in made.row.network.state_dict().items())
    assert made.row.history == row.history
    assert len(recorder.asked) == 2 * STAGE_STEPS + 3 * STEPS
    assert checkpoint.load(tmp_path / "stage-whole.pt", "ctxgcd-state")["history"] == stage.history
    # No step of the stage sees what one of the training sees, nor draws what it draws.
    assert isinstance(stage.method, Before)
    assert made.row.steps == stage.steps + 3 * STEPS == 2 * STAGE_STEPS + 3 * STEPS
    assert isinstance(row.method, Staged)
    drawn = [{float(torch.rand((), generator=b.stream("own"))) for b in m.seen} for m in (stage.method, row.method)]
    assert (len(drawn[0]), len(drawn[1]), drawn[0] & drawn[1]) == (2 * STAGE_STEPS, 3 * STEPS, set())
    firsts = [recorder.asked[i][0].tolist()[:8] for i in (0, 2 * STAGE_STEPS)]
    assert firsts[0] != firsts[1]


@pytest.mark.parametrize(
    ("stop_at", "stage_epochs", "epochs"),
    [
        (3, 0, 0),  # in the stage's first epoch
        (STAGE_STEPS + 3, 1, 0),
        (2 * STAGE_STEPS, 2, 0),  # between the stage and epoch 0
        (2 * STAGE_STEPS + 3, 2, 0),
        (2 * STAGE_STEPS + STEPS + 3, 2, 1),
    ],
)
def test_a_stage_is_resumed(tmp_path: Path, stop_at: int, stage_epochs: int, epochs: int) -> None:
    whole, _ = whole_run(tmp_path, Staged)
    assert isinstance(whole.row.method, Staged)
    assert whole.row.method.prepared == 1
    again, rest = resumed_run(tmp_path, Staged, stop_at)
    assert equal(again, whole)
    assert again.row.shares == whole.row.shares
    assert len(rest.of(12)) == (2 - stage_epochs) * STAGE_STEPS
    assert len(rest.of(8)) == (3 - epochs) * STEPS
    assert isinstance(again.row.method, Staged)
    assert again.row.method.prepared == (epochs == 0)  # once a training, and not where epochs are there


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
    found = made.row.method.discover(net, made.features, made.source.labels, unlabelled, test)
    one_by_one = torch.cat([evaluated.classify(features[i : i + 1]).argmax(dim=1) for i in EVERY_IMAGE])
    assert torch.equal(torch.cat([found.unlabelled, found.test]), one_by_one)
    assert net.norm.num_batches_tracked == 2 * 3 * STEPS
    again, _ = resumed_run(tmp_path, Normed, STEPS + 3)
    assert equal(again, made)
    assert len(recorder.asked) == 3 * STEPS


class AveragedNetwork(Network):
    """With a moving average of the classifier, and the mean feature of this epoch."""

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


def test_after_step_changes_buffers_that_are_carried(tmp_path: Path) -> None:
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
    assert torch.equal(kept["logits"], first(recorder.asked[0][1]).logits)
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
    """Looks at everything, in every epoch and before the first, around the draws of the sampler."""

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


def test_a_look_gives_the_features_of_now_and_moves_nothing(tmp_path: Path) -> None:
    made, recorder = whole_run(tmp_path / "looking", Looking)
    plain, expected = whole_run(tmp_path / "plain", Normed)
    assert equal(made, plain)
    for (ids, views), (own_ids, own_views) in zip(recorder.asked, expected.asked, strict=True):
        assert torch.equal(ids, own_ids)
        assert torch.equal(views, own_views)


# -- what is written down --------------------------------------------------------------------------------


class Weighing(Plain):
    """Weights by epoch and step; a number of the epoch and one of each step for the history."""

    logged = ("threshold", "spread")

    def before_epoch(self, network: Any, look: Look) -> Plan:
        return replace(super().before_epoch(network, look), told={"threshold": 0.5 + look.epoch})

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
        spreads = [float(views.std()) for _, views in recorder.asked[epoch * STEPS : (epoch + 1) * STEPS]]
        assert row["spread"] == pytest.approx(sum(spreads) / STEPS, rel=1e-5)
    assert [of["epoch"] for of in made.row.shares] == [0, 2]
    for of in made.row.shares:
        first, sizes = method.noted[of["epoch"] * STEPS], of["terms"]
        assert [sizes[term]["weight"] for term in ("info_nce", "cls")] == [1, 0.1 + of["epoch"]]
        for term in ("info_nce", "cls"):
            assert sizes[term]["loss"] == pytest.approx(sizes[term]["weight"] * first[term], rel=1e-5)


def rows_of(file: Path) -> list[dict[str, str]]:
    with open(file, newline="", encoding="utf-8") as opened:
        return list(csv.DictReader(opened))


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


# -- whole runs ------------------------------------------------------------------------------------------


class StagedSimGCD(SimGCD):
    def stage(self) -> Method:
        return SimGCD(self.p | {"epochs": 1})


class OneMoreTerm(SimGCD):
    def terms(self) -> dict[str, int]:
        return {**super().terms(), "proto": 0}


class NoTailNetwork(SimGCD):
    def network(self, tail: nn.Module, dim: int, old_classes: int) -> Any:
        return nn.Linear(2, 2)


class NoDiscovery(SimGCD):
    def discover(self, *given: Any) -> Any:
        return super().discover(*given).unlabelled


class OwnCut(SimGCD):
    def cut(self, net: nn.Module) -> Backbone:
        return cut(net, 1)


def made_run(folder: Path, split: pd.DataFrame, kept: Path, **changes: Any) -> Path:
    """A run on a tiny ViT's view bank, from split to predictions; its folder."""
    tiny = {"model": "vit_tiny_patch16_224", "crop": 32, "tail_blocks": 1, "view_bank": BANK, "threads": 1}
    named = {"benchmark": "mine", "row": changes.get("method", "full"), "projector_width": 16, "projection_dim": 7}
    p = parameters(**{"epochs": 2, "T_warm": 1, **tiny, **named, **changes})
    files = {name: kept / f"{name}.npy" for name in ("test_view", "view_bank")} | {"weights": kept / "weights.pt"}
    method, device = method_of(p), torch.device("cpu")
    train.run(p, method=method, split=split, files=files, state=folder, device=device, about=ABOUT)
    return folder


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Weights of a tiny ViT, and random trunk outputs in place of those of images."""
    folder, draw = tmp_path_factory.mktemp("kept"), np.random.RandomState(0)
    torch.manual_seed(0)
    torch.save(weights.build("vit_tiny_patch16_224", 32).state_dict(), folder / "tiny.pth")
    weights.prepare("vit_tiny_patch16_224", str(folder / "tiny.pth"), 32, folder / "weights.pt")
    classes = np.arange(IMAGES + TEST) % CLASSES
    centres = draw.randn(CLASSES, 5, 192)
    for name, images in (("test_view", IMAGES + TEST), ("view_bank", IMAGES)):
        times = BANK if name == "view_bank" else 1
        rows = centres[np.tile(classes[:images], times)] + 0.5 * draw.randn(times * images, 5, 192)
        np.save(folder / f"{name}.npy", rows.astype(np.float32))
    return folder


@pytest.fixture
def split() -> pd.DataFrame:
    ids = np.arange(IMAGES + TEST)
    classes = ids % CLASSES
    role = np.where(ids >= IMAGES, "test", np.where((classes < 2) & (ids % 8 < 4), "labelled", "unlabelled"))
    return pd.DataFrame({"id": ids, "class_id": classes, "role": role, "part": np.where(ids < IMAGES, "train", "test")})


@pytest.mark.parametrize("method", ["simgcd", "full", "gcd"])
def test_class_ids_of_unlabelled_images_change_nothing(
    tmp_path: Path, kept: Path, split: pd.DataFrame, method: str
) -> None:
    false = split.copy()
    false.loc[false.role != "labelled", "class_id"] = np.random.RandomState(1).randint(0, 999, IMAGES + TEST)[
        : int((false.role != "labelled").sum())
    ]
    more = {"head_dim": 20, "semi_kmeans_restarts": 2, "semi_kmeans_iterations": 20, "reciprocal": "dataset"}
    folders = [
        made_run(tmp_path / name, own, kept, method=method, **more) for name, own in (("true", split), ("false", false))
    ]
    for name in ("history.csv", "assignments.csv"):
        first, second = ((folder / "finished" / name).read_bytes() for folder in folders)
        assert first == second
    finals = [checkpoint.load(folder / "finished/final.pt", "ctxgcd-model")["network"] for folder in folders]
    assert all(torch.equal(finals[0][name], finals[1][name]) for name in finals[0])
    moved = split.copy()
    moved.loc[moved.role == "labelled", "class_id"] = 1 - moved.class_id[moved.role == "labelled"]
    other = made_run(tmp_path / "moved", moved, kept, method=method, **more)
    final = checkpoint.load(other / "finished/final.pt", "ctxgcd-model")["network"]
    if method != "gcd":  # whose terms know only which labels are equal
        assert not all(torch.equal(finals[0][name], final[name]) for name in final)


def add_method(monkeypatch: pytest.MonkeyPatch, name: str, method: type[Method]) -> None:
    entry = replace(METHODS["simgcd"], cls=f"{__name__}.{method.__name__}")
    monkeypatch.setitem(METHODS, name, entry)


def test_nothing_of_a_finished_training_is_left_behind(
    tmp_path: Path, kept: Path, split: pd.DataFrame, monkeypatch: pytest.MonkeyPatch
) -> None:
    add_method(monkeypatch, "staged", StagedSimGCD)
    folder = made_run(tmp_path / "state", split, kept, method="staged")
    assert [path.name for path in folder.iterdir()] == ["finished"]
    assert {path.name for path in (folder / "finished").iterdir()} == {*run_cache.FILES, run_cache.SUMS}
    assert [row["epoch"] for row in rows_of(folder / "finished/history.csv")] == ["0", "1"]


def test_a_method_with_a_cut_of_its_own_needs_fresh_views(
    tmp_path: Path, kept: Path, split: pd.DataFrame, monkeypatch: pytest.MonkeyPatch
) -> None:
    add_method(monkeypatch, "cut", OwnCut)
    with pytest.raises(UserError, match=r"benchmark mine, row cut: the method overrides .* set view_bank to 0"):
        made_run(tmp_path / "state", split, kept, method="cut")


@pytest.mark.parametrize(
    ("method", "sentence"),
    [
        (
            OneMoreTerm,
            r"OneMoreTerm\.terms returns the term 'proto', but `terms` of the entries in .*catalogue\.py has",
        ),
        (NoTailNetwork, r"NoTailNetwork\.network returns a Linear; return a TailNetwork"),
        (NoDiscovery, r"NoDiscovery\.discover returns a Tensor; return a Discovery"),
    ],
)
def test_a_run_tells_what_a_hook_must_not_return(
    tmp_path: Path,
    kept: Path,
    split: pd.DataFrame,
    monkeypatch: pytest.MonkeyPatch,
    method: type[Method],
    sentence: str,
) -> None:
    add_method(monkeypatch, "wrong", method)
    with pytest.raises(UserError, match=sentence):
        made_run(tmp_path / "state", split, kept, method="wrong")
    assert not (tmp_path / "state" / "finished").exists()
