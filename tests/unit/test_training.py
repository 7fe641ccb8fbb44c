"""The loop on a made-up network: pairing, neighbour lists, resuming, divergence, views, files."""

from __future__ import annotations

import csv
import importlib.util
import math
import signal
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from threading import Timer
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import normalize
from torch.utils._python_dispatch import TorchDispatchMode

from ctxgcd.catalogue.entries import load
from ctxgcd.errors import UserError
from ctxgcd.images.store import Store
from ctxgcd.images.views import Cropper
from ctxgcd.losses.info_nce import info_nce
from ctxgcd.methods import full
from ctxgcd.methods.full import Full
from ctxgcd.methods.method import Method
from ctxgcd.methods.schedules import cosine_lr
from ctxgcd.methods.step import Batch, Losses, Rows, weighted
from ctxgcd.models.backbone import Backbone
from ctxgcd.models.network import Network
from ctxgcd.pipeline.possible import check_k
from ctxgcd.training import checkpoint, loop, views
from ctxgcd.training.row import Row
from ctxgcd.training.step_inputs import Source
from ctxgcd.training.views import BankViews, FreshViews
from ctxgcd.utils.files import write_rows
from ctxgcd.utils.seeding import Draws, Stream, generator

torch.set_num_threads(1)

ROOT = Path(__file__).resolve().parents[2]
IMAGES, TEST, KEPT, DIM, CLASSES, BANK = 60, 10, 6, 8, 4, 3
VARIANTS = ("paper", "released", "mended")


def parameters(**changes: Any) -> dict[str, Any]:
    return {
        "method": "full",
        "seed": 0,
        "K": CLASSES,
        "epochs": 5,
        "T_warm": 2,
        "context_delay": 0,
        "batch_size": 8,
        "lr": 0.1,
        "lr_floor": 1.0e-3,
        "momentum": 0.9,
        "weight_decay": 5.0e-5,
        "tail_lr_factor": 0.5,
        "teacher_warmup_epochs": 2,
        "teacher_temperature_start": 0.07,
        "teacher_temperature_end": 0.04,
        "teacher_schedule": "linear",
        "supervised_weight": 0.35,
        "info_nce_weight": 1.0,
        "sup_con_weight": 1.0,
        "entropy_weight": 1.0,
        "student_temperature": 0.1,
        "info_nce_temperature": 1.0,
        "sup_con_temperature": 0.07,
        "variant": "paper",
        "context_terms": ["L_n", "L_c"],
        "k": 4,
        "lambda_n": 0.1,
        "lambda_c": 0.3,
        "precision": "float32",
        "neighbour_images": 13,  # three queries of four images: 12, so that no pair of views is mistaken for a batch
        "reciprocal": "batch",
        "delta": 1.0,
        "tau": 0.5,
    } | changes


SIMGCD = {"method": "simgcd"}
ABOUT = {"identity": "0123456789abcdef", "split_sha256": "a", "code": "b"}
CONTROL = {"lambda_n": 0.0, "lambda_c": 0.0}


def made_up() -> tuple[Tensor, Tensor, Tensor]:
    """A bank [BANK, IMAGES, KEPT], test views and labels: four blurred classes, two of them old."""
    stream = torch.Generator().manual_seed(0)
    centres = torch.randn(CLASSES, KEPT, generator=stream) * 2
    classes = torch.arange(IMAGES + TEST) % CLASSES
    clean = centres[classes]
    test_view = clean + torch.randn(clean.shape, generator=stream) * 0.5
    bank = torch.stack([clean[:IMAGES] + torch.randn(IMAGES, KEPT, generator=stream) * 0.5 for _ in range(BANK)])
    labelled = (classes[:IMAGES] < 2) & (torch.arange(IMAGES) % 8 < 4)
    return bank, test_view, classes[:IMAGES].where(labelled, torch.tensor(-1))


class Recorder:
    """Views that note what is asked of them, and can break off."""

    def __init__(self, inner: BankViews, stop_at: int | None = None) -> None:
        self.inner, self.stop_at = inner, stop_at
        self.asked: list[tuple[Tensor, Tensor]] = []

    def pair(self, ids: Tensor, drawn: Draws) -> Tensor:
        if len(self.asked) == self.stop_at:
            raise KeyboardInterrupt
        rows = self.inner.pair(ids, drawn)
        self.asked.append((ids.clone(), rows.clone()))
        return rows

    def train(self, ids: Tensor, drawn: Draws) -> Tensor:
        return self.inner.train(ids, drawn)

    def test(self, ids: Tensor) -> Tensor:
        return self.inner.test(ids)

    def of(self, images: int) -> list[tuple[Tensor, Tensor]]:
        return [asked for asked in self.asked if len(asked[0]) == images]


def network(seed: int) -> Network:
    tail = nn.Linear(KEPT, DIM, device="meta").to_empty(device="cpu")
    stream = torch.Generator().manual_seed(99)
    with torch.no_grad():
        for parameter in tail.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=stream) * 0.5)
    return Network(tail, DIM, CLASSES, 16, 7, seed)


@dataclass
class Training:
    """A run and its images."""

    row: Row
    source: Source

    def train(self) -> None:
        loop.train(self.row, self.source)

    def features(self, ids: Tensor) -> Tensor:
        return self.source.features(self.row.network, ids)


def training(
    folder: Path, changes: dict[str, Any], stop_at: int | None = None, start: int | None = None, name: str = "last.pt"
) -> tuple[Training, Recorder]:
    """A training on the made-up data; `start`: a seed of the heads other than the run's own."""
    p = parameters(**changes)
    bank, test_view, labels = made_up()
    recorder = Recorder(BankViews(bank, test_view), stop_at)
    net = network(p["seed"] if start is None else start)
    row = Row(load(p["method"])(p), net.eval(), folder / name, "made-up", ABOUT)
    return Training(row, Source(recorder, labels, p["precision"], p["seed"])), recorder


def trained(folder: Path, name: str, **changes: Any) -> tuple[Training, Recorder]:
    made, recorder = training(folder, changes, name=name)
    made.train()
    return made, recorder


def equal(one: Training, other: Training) -> bool:
    first, second = one.row.network.state_dict(), other.row.network.state_dict()
    return all(torch.equal(first[name], second[name]) for name in first) and one.row.history == other.row.history


# -- what a training records -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "acts"),
    [
        (SIMGCD, {}),
        ({}, {"L_n": 2, "L_c": 2}),
        ({"context_delay": 1, "variant": "released"}, {"L_n": 3, "L_c": 3}),
        ({"context_terms": ["L_c"]}, {"L_c": 2}),
        ({"context_terms": ["L_n"], "variant": "mended"}, {"L_n": 2}),
        ({"T_warm": 0}, {"L_n": 0, "L_c": 0}),
        (CONTROL, {"L_n": 2, "L_c": 2}),
    ],
)
def test_terms_are_empty_before_they_act(tmp_path: Path, changes: dict[str, Any], acts: dict[str, int]) -> None:
    made, _ = trained(tmp_path, "a.pt", **changes)
    columns = ["epoch", "lr", "teacher_temperature", "loss", "info_nce", "sup_con", "distill", "entropy", "cls", *acts]
    assert list(made.row.method.columns()) == columns
    write_rows(tmp_path / "history.csv", columns, made.row.history)
    with open(tmp_path / "history.csv", newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert [int(row["epoch"]) for row in rows] == [0, 1, 2, 3, 4]
    for row in rows:
        for name in columns:
            is_empty = int(row["epoch"]) < acts.get(name, 0)
            assert (row[name] == "") == is_empty, (row["epoch"], name)
            assert is_empty or math.isfinite(float(row[name]))
        context = [made.row.parameters[f"lambda_{term[-1]}"] * float(row[term] or 0) for term in acts]
        baseline = 0.65 * (float(row["info_nce"]) + float(row["distill"]) + float(row["entropy"]))
        baseline += 0.35 * (float(row["sup_con"]) + float(row["cls"]))
        assert float(row["loss"]) == pytest.approx(baseline + sum(context), abs=1e-5)
    expected = [cosine_lr(epoch, 5, 0.1, 1.0e-3) for epoch in range(5)]
    assert [float(row["lr"]) for row in rows] == pytest.approx(expected)
    assert [float(row["teacher_temperature"]) for row in rows] == pytest.approx([0.07, 0.04, 0.04, 0.04, 0.04])


def test_training_learns(tmp_path: Path) -> None:
    made, _ = trained(tmp_path, "a.pt", epochs=20, **SIMGCD)
    assert made.row.history[-1]["cls"] < 0.5 * made.row.history[0]["cls"]
    labels = made_up()[2]
    ids = torch.nonzero(labels >= 0)[:, 0]
    found = made.row.method.discover(made.row.network, made.features, labels, ids, ids[:0])
    assert (found.unlabelled == labels[ids]).float().mean() > 0.9
    assert len(found.test) == 0
    assert made.features(torch.arange(IMAGES + TEST)).shape == (IMAGES + TEST, DIM)


class Counter(TorchDispatchMode):
    """Counts what makes the host wait for a GPU: values that Python reads, and shapes that depend on values."""

    def __init__(self) -> None:
        super().__init__()
        self.waits = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        by_mask = func is torch.ops.aten.index.Tensor and any(i is not None and i.dtype == torch.bool for i in args[1])
        names = {"_local_scalar_dense", "nonzero", "masked_select", "equal", "_unique2", "unique_dim"}
        self.waits += by_mask or func.overloadpacket.__name__ in names
        return func(*args, **kwargs or {})


@pytest.mark.parametrize(
    "changes",
    [
        SIMGCD,
        *({"variant": variant} for variant in VARIANTS),
        {"reciprocal": "dataset"},
        {"precision": "bf16"},
    ],
)
def test_a_step_never_waits_for_the_device(tmp_path: Path, changes: dict[str, Any]) -> None:
    """However many steps an epoch has, the host reads as many values: the means at its end."""
    waits = []
    for batch_size in (4, 12):
        made, _ = training(tmp_path, {"batch_size": batch_size, **changes})
        with Counter() as counter:
            loop.train_epoch(made.row, made.source, 3)
        waits.append(counter.waits)
    assert waits[0] == waits[1] > 0


@pytest.mark.parametrize("changes", [SIMGCD, {}])
def test_bf16_trains_nearly_as_float32(tmp_path: Path, changes: dict[str, Any]) -> None:
    exact, _ = trained(tmp_path, "exact.pt", **changes)
    half, _ = trained(tmp_path, "half.pt", precision="bf16", **changes)
    again, _ = trained(tmp_path, "again.pt", precision="bf16", **changes)
    assert equal(half, again)
    assert not equal(half, exact)
    assert all(value.dtype == torch.float32 for value in half.row.network.state_dict().values())
    for mine, theirs in zip(exact.row.history, half.row.history, strict=True):
        assert theirs["loss"] == pytest.approx(mine["loss"], rel=0.02)
    ids = torch.arange(IMAGES + TEST)
    assert half.features(ids).dtype == torch.float32
    torch.testing.assert_close(half.features(ids), exact.features(ids), rtol=0.05, atol=0.05)


def test_tail_has_a_learning_rate_of_its_own(tmp_path: Path) -> None:
    made, _ = trained(tmp_path, "a.pt", **SIMGCD)
    last = cosine_lr(4, 5, 0.1, 1.0e-3)
    [optimiser] = made.row.optimisers
    rates = {
        name: group["lr"]
        for group in optimiser.param_groups
        for parameter in group["params"]
        for name, own in made.row.network.named_parameters()
        if own is parameter
    }
    assert rates.keys() == dict(made.row.network.named_parameters()).keys()
    assert {name for name, rate in rates.items() if rate == pytest.approx(last * 0.5)} == {"tail.weight", "tail.bias"}
    assert {rate for name, rate in rates.items() if not name.startswith("tail.")} == {last}


def test_one_step_is_that_of_plain_sgd(tmp_path: Path) -> None:
    """The first step of an epoch of one batch, by hand: decay on matrices alone, the tail at half the rate."""
    changes = {**SIMGCD, "epochs": 1, "batch_size": IMAGES, "teacher_warmup_epochs": 1, "weight_decay": 0.1}
    made, recorder = training(tmp_path, changes)
    before = {name: value.clone() for name, value in made.row.network.state_dict().items()}
    made.train()
    after = made.row.network.state_dict()
    ids, rows = recorder.asked[0]
    net = network(0)
    batch = Batch({"sampled": Rows(rows, ids, made_up()[2][ids])})
    weighted(made.row.method.losses(net, batch).terms, made.row.method.weights(batch)).backward()
    for name, parameter in net.named_parameters():
        assert parameter.grad is not None
        step = parameter.grad + (0.1 * before[name] if parameter.ndim > 1 else 0)
        expected = before[name] - (0.05 if name.startswith("tail.") else 0.1) * step
        torch.testing.assert_close(after[name], expected, rtol=1e-6, atol=1e-7)


# -- pairing ---------------------------------------------------------------------------------------------


def test_methods_of_one_seed_see_the_same(tmp_path: Path) -> None:
    """Same start, same sampled images, same views: SimGCD, every variant, ablations, any k."""
    cases: dict[str, dict[str, Any]] = {"simgcd": SIMGCD} | {v: {"variant": v} for v in VARIANTS}
    cases |= {"without_n": {"context_terms": ["L_c"]}, "zero": CONTROL, "k": {"k": 6}, "early": {"T_warm": 0}}
    cases |= {"dataset": {"reciprocal": "dataset"}}
    seen, starts = {}, {}
    for name, changes in cases.items():
        made, recorder = training(tmp_path, changes, name=f"{name}.pt")
        starts[name] = {key: value.clone() for key, value in made.row.network.state_dict().items()}
        made.train()
        seen[name] = recorder.of(8)
        steps = IMAGES // 8
        around = len(recorder.asked) - len(seen[name])
        assert len(seen[name]) == 5 * steps
        assert around == {"simgcd": 0, "early": 5 * steps}.get(name, 3 * steps)
    for name in cases:
        assert all(torch.equal(starts[name][key], value) for key, value in starts["simgcd"].items())
        for (ids, rows), (own_ids, own_rows) in zip(seen["simgcd"], seen[name], strict=True):
            assert torch.equal(ids, own_ids)
            assert torch.equal(rows, own_rows)


def test_seeds_and_epochs_see_different_images(tmp_path: Path) -> None:
    first, second = (trained(tmp_path, f"{seed}.pt", seed=seed, **SIMGCD)[1].of(8) for seed in (0, 1))
    assert not any(torch.equal(a[0], b[0]) for a, b in zip(first, second, strict=True))
    assert len({tuple(ids.tolist()) for ids, _ in first}) == len(first)


def test_same_seed_twice_is_bit_equal(tmp_path: Path) -> None:
    for number, changes in enumerate((SIMGCD, {}, {"variant": "mended"})):
        torch.manual_seed(1)
        one, _ = trained(tmp_path, f"{number}a.pt", **changes)
        torch.manual_seed(2)
        torch.rand(5)
        other, _ = trained(tmp_path, f"{number}b.pt", **changes)
        assert equal(one, other)
        assert not equal(one, trained(tmp_path, f"{number}c.pt", **{**changes, "seed": 1})[0])


def test_control_gives_the_parameters_of_simgcd(tmp_path: Path) -> None:
    """With both weights 0 the context terms are computed and logged, and change nothing beyond rounding."""
    baseline = trained(tmp_path, "a.pt", **SIMGCD)[0]
    for variant in VARIANTS:
        control = trained(tmp_path, f"{variant}.pt", variant=variant, **CONTROL)[0]
        assert all(row["L_n"] != 0 and row["L_c"] != 0 for row in control.row.history[2:])
        for name, value in baseline.row.network.state_dict().items():
            torch.testing.assert_close(control.row.network.state_dict()[name], value, rtol=1e-4, atol=1e-5)


def test_released_trains_simgcd_and_its_cluster_term_alone(tmp_path: Path) -> None:
    """The neighbourhood term of the released code changes no parameter: with it, without it, at any weight."""
    released = {"variant": "released", "lambda_c": 0.1}
    whole, heavy, without = (
        trained(tmp_path, f"{name}.pt", **released, **changes)[0]
        for name, changes in (("a", {}), ("b", {"lambda_n": 50.0}), ("c", {"context_terms": ["L_c"]}))
    )
    for other in (heavy, without):
        for name, value in whole.row.network.state_dict().items():
            assert torch.equal(other.row.network.state_dict()[name], value)
    assert whole.row.history[3]["L_n"] > 0
    baseline = trained(tmp_path, "d.pt", **SIMGCD)[0].row.network.state_dict()
    assert not torch.equal(baseline["projector.0.weight"], whole.row.network.state_dict()["projector.0.weight"])


# -- neighbours ------------------------------------------------------------------------------------------


def slow_lists(features: Tensor, k: int) -> list[list[int]]:
    """Each image's k most similar others, by sorting."""
    z = normalize(features, dim=1)
    table = (z @ z.T).tolist()
    return [sorted((j for j in range(len(z)) if j != i), key=lambda j: -row[j])[:k] for i, row in enumerate(table)]


@pytest.mark.parametrize(("reciprocal", "length"), [("batch", 3), ("dataset", 4)])
def test_neighbour_lists(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, reciprocal: str, length: int) -> None:
    """Nearest others by the test view's features at the start of the epoch; refreshed every epoch."""
    made, recorder = training(tmp_path, {"reciprocal": reciprocal})
    found: list[Tensor] = []
    used: list[Tensor] = []
    own_lists, own_batch = Source._nearest, full.query_batch

    def lists_of(self: Source, features: Tensor, k: int) -> Tensor:
        now = made.features(torch.arange(IMAGES))
        assert torch.equal(features, normalize(now, dim=1))
        found.append(own_lists(self, features, k))
        assert found[-1].tolist() == slow_lists(now, length)
        return found[-1]

    def batch_of(lists: Tensor, queries: int, stream: torch.Generator) -> Tensor:
        assert lists.shape == (IMAGES, 3)  # a query brings its k - 1 nearest others
        assert queries == 3
        assert torch.equal(lists, found[-1][:, :3])
        used.append(own_batch(lists, queries, stream))
        return used[-1]

    monkeypatch.setattr(Source, "_nearest", lists_of)
    monkeypatch.setattr(full, "query_batch", batch_of)
    made.train()
    assert len(found) == 3  # epochs 2, 3, 4
    assert all((lists != torch.arange(IMAGES)[:, None]).all() for lists in found)
    assert not torch.equal(found[0], found[1])
    assert not torch.equal(found[1], found[2])
    asked = [ids for ids, _ in recorder.of(12)]
    assert [ids.tolist() for ids in asked] == [ids.tolist() for ids in used]
    for step, ids in enumerate(asked):
        lists = found[step // (IMAGES // 8)]
        for query in ids.view(3, 4):
            assert query[1:].tolist() == lists[query[0], :3].tolist()
        assert len(ids.view(3, 4)[:, 0].unique()) == 3
    assert len({tuple(ids.view(3, 4)[:, 0].tolist()) for ids in asked}) > 15  # of 21 draws


def test_methods_get_the_images_of_their_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made, recorder = training(tmp_path, {"T_warm": 4, "reciprocal": "dataset"})
    batches: list[Batch] = []
    lists: list[Tensor] = []
    own, own_lists = Full.losses, Source._nearest

    def noted(self: Full, net: Network, of: Batch) -> Losses:
        batches.append(of)
        return own(self, net, of)

    def lists_of(self: Source, features: Tensor, k: int) -> Tensor:
        lists.append(own_lists(self, features, k))
        return lists[-1]

    monkeypatch.setattr(Full, "losses", noted)
    monkeypatch.setattr(Source, "_nearest", lists_of)
    made.train()
    labels, [nearest] = made_up()[2], lists
    for of, (ids, rows), (around, near) in zip(batches[-7:], recorder.of(8)[-7:], recorder.of(12), strict=True):
        assert list(of.groups) == ["sampled", "neighbours"]
        for group, own_ids, own_rows in ((of.sampled, ids, rows), (of.groups["neighbours"], around, near)):
            assert torch.equal(group.ids, own_ids)
            assert torch.equal(group.views, own_rows)
            assert torch.equal(group.labels, labels[own_ids])
            assert torch.equal(group.given["nearest"], nearest[own_ids])
    assert all(list(of.groups) == ["sampled"] and not of.sampled.given for of in batches[:-7])


# -- resuming --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("changes", [SIMGCD, {}, {"variant": "released"}, {"variant": "mended"}], ids=str)
@pytest.mark.parametrize("epochs_done", [0, 1, 3])
def test_resumed_is_uninterrupted(tmp_path: Path, changes: dict[str, Any], epochs_done: int) -> None:
    whole, recorder = trained(tmp_path, "whole.pt", **changes)
    with_context = changes.get("method") != "simgcd"
    steps = IMAGES // 8
    calls = sum(steps * (2 if with_context and epoch >= 2 else 1) for epoch in range(epochs_done))
    broken, _ = training(tmp_path, changes, stop_at=calls + 4)  # in the middle of the epoch
    with pytest.raises(KeyboardInterrupt):
        broken.train()
    assert len(broken.row.history) == epochs_done
    torch.manual_seed(7)
    again, rest = training(tmp_path, changes, start=5 if epochs_done else None)
    again.train()
    assert equal(again, whole)
    assert len(rest.asked) == len(recorder.asked) - calls
    ids = torch.arange(IMAGES + TEST)
    assert torch.equal(again.features(ids), whole.features(ids))


def test_a_finished_state_is_not_trained_again(tmp_path: Path) -> None:
    first, _ = trained(tmp_path, "a.pt")
    again, recorder = training(tmp_path, {}, start=5, name="a.pt")
    again.train()
    assert not recorder.asked
    assert equal(first, again)


def test_state_holds_tensors_and_plain_types(tmp_path: Path) -> None:
    made, _ = trained(tmp_path, "a.pt")
    state = torch.load(tmp_path / "a.pt", weights_only=True)
    assert (state["kind"], state["schema"]) == ("ctxgcd-state", checkpoint.SCHEMAS["ctxgcd-state"])
    assert state["parameters"] == made.row.parameters
    assert state["history"] == made.row.history
    assert {path.name for path in tmp_path.iterdir()} == {"a.pt", "a_history.csv"}


WORDS = {
    **dict.fromkeys(("cut", "empty", "text"), "is damaged or was not written by ctxgcd"),
    **dict.fromkeys(("list", "other kind"), "is not a file of kind ctxgcd-state"),
    "other schema": f"has schema 99, but this version reads schema {checkpoint.SCHEMAS['ctxgcd-state']}",
    "one bit": "is damaged: its content does not match its digest",
    "of another run": "is the checkpoint of another run",
}


def damage(path: Path, kind: str) -> None:
    content = path.read_bytes()
    if kind == "other kind":
        checkpoint.save(path, "ctxgcd-model", {})
    elif kind == "other schema":
        torch.save({"kind": "ctxgcd-state", "schema": 99}, path)
    elif kind == "list":
        torch.save([1], path)
    elif kind == "one bit":  # of a parameter, which torch itself loads without a word
        parameter = checkpoint.load(path, "ctxgcd-state")["network"]["tail.weight"].numpy().tobytes()
        place = content.index(parameter)
        path.write_bytes(content[:place] + bytes([content[place] ^ 1]) + content[place + 1 :])
        torch.load(path, weights_only=True)
    elif kind == "of another run":
        content = checkpoint.load(path, "ctxgcd-state")
        checkpoint.save(path, "ctxgcd-state", content | {"identity": "another"})
    else:
        path.write_bytes({"cut": content[: len(content) // 2], "empty": b"", "text": b"state"}[kind])


@pytest.mark.parametrize("kind", WORDS)
def test_a_damaged_state_is_refused(tmp_path: Path, kind: str) -> None:
    trained(tmp_path, "a.pt", epochs=2, **SIMGCD)
    damage(tmp_path / "a.pt", kind)
    made, _ = training(tmp_path, SIMGCD, name="a.pt")
    with pytest.raises(UserError) as raised:
        made.train()
    sentence = str(raised.value)
    assert str(tmp_path / "a.pt") in sentence
    assert "\n" not in sentence
    assert WORDS[kind] in sentence
    assert "delete it to restart the training" in sentence


def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    made, _ = training(tmp_path / "file", SIMGCD)
    with pytest.raises(UserError, match=r"last\.pt cannot be read or written \(.*\); check the folder"):
        made.train()


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_divergence_ends_in_a_sentence_and_keeps_the_state(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, value: float
) -> None:
    made, recorder = training(tmp_path, SIMGCD)
    own = made.row.method.losses

    def diverging(net: Network, of: Batch) -> Losses:
        found = own(net, of)
        if len(recorder.asked) == 3 * (IMAGES // 8) - 2:  # a step of epoch 2, after which no term is finite
            found = Losses({**found.terms, "cls": found.terms["cls"] * value})
        return found

    monkeypatch.setattr(made.row.method, "losses", diverging)
    with pytest.raises(
        UserError, match=r"in epoch 2 .*, so training diverged.*of epoch 1 is kept; decrease lr"
    ) as raised:
        made.train()
    assert f"in epoch 2 from step {IMAGES // 8 - 3} on (not finite there: cls)" in str(raised.value)
    assert len(checkpoint.load(made.row.state_file, "ctxgcd-state")["history"]) == 2


def test_divergence_in_the_first_epoch_names_no_epoch_before_it(tmp_path: Path) -> None:
    made, _ = training(tmp_path, {**SIMGCD, "lr": 1.0e30})
    with pytest.raises(UserError, match=r"in epoch 0 from step [0-9]+ on .*, so training diverged") as raised:
        made.train()
    assert "epoch -1" not in str(raised.value)
    assert not made.row.state_file.exists()


def test_a_run_is_trained_by_one_process_at_a_time(tmp_path: Path) -> None:
    state = tmp_path / "state"
    owner, other = checkpoint.owned(state), checkpoint.owned(state, patience=0.1)
    with owner, pytest.raises(UserError, match="another process trains the run"):
        other.__enter__()
    with checkpoint.owned(state):  # free again
        assert state.is_dir()


def test_a_second_process_waits_for_an_orphan_that_ends(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    script = f"""
from pathlib import Path
from ctxgcd.training.checkpoint import owned
with owned(Path({str(tmp_path)!r})):
    print("held", flush=True)
    input()
"""
    call = [sys.executable, "-c", script]
    with subprocess.Popen(call, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as orphan:
        assert orphan.stdout
        assert orphan.stdout.readline() == b"held\n"
        Timer(1, orphan.kill).start()
        with checkpoint.owned(tmp_path):
            assert orphan.wait() == -signal.SIGKILL
    assert capsys.readouterr().out == f"waiting for another process that trains the run in {tmp_path}\n"


# -- TensorBoard -----------------------------------------------------------------------------------------


def test_tensorboard_shows_each_epoch_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also of a training that was interrupted between its state and the end of the next epoch."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    monkeypatch.setenv("CTXGCD_TENSORBOARD", str(tmp_path / "board"))
    broken, _ = training(tmp_path, SIMGCD, stop_at=2 * (IMAGES // 8) + 3)
    with pytest.raises(KeyboardInterrupt):
        broken.train()
    made, _ = training(tmp_path, SIMGCD)
    made.train()
    shown = EventAccumulator(str(tmp_path / "board/made-up"))
    shown.Reload()
    assert set(shown.Tags()["scalars"]) == set(made.row.method.columns()) - {"epoch"}
    for name in shown.Tags()["scalars"]:
        events = shown.Scalars(name)
        assert [event.step for event in events] == [0, 1, 2, 3, 4]
        assert [event.value for event in events] == pytest.approx([row[name] for row in made.row.history], rel=1e-6)


def test_tensorboard_is_off_unless_asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trained(tmp_path / "a", "last.pt", **SIMGCD)
    assert sorted(path.name for path in (tmp_path / "a").iterdir()) == ["last.pt", "last_history.csv"]
    monkeypatch.setenv("CTXGCD_TENSORBOARD", str(tmp_path / "board"))
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    made, recorder = training(tmp_path / "b", SIMGCD)
    with pytest.raises(UserError, match="TensorBoard is not installed; run `pip install tensorboard` or unset"):
        made.train()
    assert not recorder.asked
    assert not (tmp_path / "board").exists()


# -- views -----------------------------------------------------------------------------------------------


def numbered(count: int, images: int = 7) -> BankViews:
    """A bank whose row tells its view and image."""
    bank = torch.stack([torch.stack([torch.tensor([float(v), float(i)]) for i in range(images)]) for v in range(count)])
    return BankViews(bank, torch.arange(images + 2.0)[:, None])


@pytest.mark.parametrize("count", [2, 3, 4])
def test_bank_gives_two_different_views(count: int) -> None:
    ids = torch.arange(7).repeat(300)
    rows = numbered(count).pair(ids, Stream(generator(0, "views")))
    first, second = rows.chunk(2)
    assert torch.equal(first[:, 1].long(), ids)
    assert torch.equal(second[:, 1].long(), ids)
    drawn = list(zip(first[:, 0].long().tolist(), second[:, 0].long().tolist(), strict=True))
    assert all(a != b for a, b in drawn)
    shares = [drawn.count((a, b)) / len(drawn) for a in range(count) for b in range(count) if a != b]
    chance = 1 / (count * (count - 1))
    # Every ordered pair as often as another, within five standard errors.
    assert max(abs(share - chance) for share in shares) < 5 * (chance * (1 - chance) / len(drawn)) ** 0.5
    assert torch.equal(rows, numbered(count).pair(ids, Stream(generator(0, "views"))))
    assert not torch.equal(rows, numbered(count).pair(ids, Stream(generator(0, "views", 1))))
    assert numbered(count).test(torch.tensor([8, 0])).tolist() == [[8.0], [0.0]]


@pytest.fixture
def cropper() -> Cropper:
    draw = np.random.RandomState(0)
    heights, widths = torch.from_numpy(draw.randint(8, 12, (2, 300)))
    offsets = torch.cat([torch.zeros(1, dtype=torch.int64), (heights * widths).cumsum(0)[:-1]])
    pixels = torch.from_numpy(draw.randint(0, 256, (int((heights * widths).sum()), 3), dtype=np.uint8))
    store = Store(pixels, offsets, heights, widths)
    return Cropper(store, 8, [0.5] * 3, [0.5] * 3)


def backbone() -> Backbone:
    return Backbone(nn.Flatten(), nn.Identity(), 3 * 8 * 8)


def fresh_views(cropper: Cropper, folder: Path, precision: str = "float32") -> FreshViews:
    return FreshViews(cropper, backbone(), precision, folder)


def test_fresh_views_are_two_draws_of_the_cropper(cropper: Cropper, tmp_path: Path) -> None:
    ids, stream = torch.tensor([5, 0, 5, 299]), Stream(generator(3, "views"))
    expected = torch.cat([cropper.train_view(ids, stream) for _ in range(2)]).flatten(1)
    rows = fresh_views(cropper, tmp_path).pair(ids, Stream(generator(3, "views")))
    assert torch.equal(rows, expected)
    assert not torch.equal(rows[:4], rows[4:])
    assert not torch.equal(rows[0], rows[2])  # one draw an image, also of the same image


SIZE = 300 * 192  # values of all test views


@pytest.mark.parametrize("precision", ["float32", "bf16"])
@pytest.mark.parametrize("place", ["memory", "file", "none"])
def test_test_views_are_the_same_wherever_they_are_kept(
    cropper: Cropper, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str, precision: str
) -> None:
    size = SIZE * (4 if precision == "float32" else 2)
    monkeypatch.setattr(views, "IN_MEMORY", size - (place != "memory"))
    monkeypatch.setattr(views, "ON_DISK", size - (place == "none"))
    fresh, ids = fresh_views(cropper, tmp_path, precision), torch.tensor([299, 3, 3, 150])
    expected = cropper.test_view(ids).flatten(1)
    for _ in range(2):
        rows = fresh.test(ids)
        assert rows.dtype == torch.float32
        assert torch.equal(rows, expected if precision == "float32" else expected.half().float())
    assert (fresh.kept is None) == (place == "none")
    assert not list(tmp_path.iterdir())  # a file without a name: nothing is left behind, however a process ends


def test_kept_test_views_go_through_the_trunk_once(cropper: Cropper, tmp_path: Path) -> None:
    fresh, passed = fresh_views(cropper, tmp_path), []
    fresh.trunk = lambda images: passed.append(len(images)) or images.flatten(1)  # type: ignore[assignment]
    for _ in range(3):
        fresh.test(torch.arange(280))
    assert sum(passed) == 1 + 280  # the first image tells how large the rows are


def test_fresh_and_kept_features_train_alike(cropper: Cropper, tmp_path: Path) -> None:
    """The loop on fresh views of a store: deterministic, whatever is kept."""
    results: list[dict[str, Tensor]] = []
    for name in ("a", "b"):
        p = parameters(epochs=3, batch_size=16)
        labels = torch.where(torch.arange(280) % 3 == 0, torch.arange(280) % 2, -1)
        net = Network(nn.Identity(), 192, CLASSES, 16, 7, 0)
        source = Source(fresh_views(cropper, tmp_path), labels, p["precision"], p["seed"])
        loop.train(Row(Full(p), net, tmp_path / name, "fresh", ABOUT), source)
        results.append(net.state_dict())
    assert all(torch.equal(results[0][name], results[1][name]) for name in results[0])


def test_collapse_is_the_info_nce_of_chance() -> None:
    method: Method = Full(parameters(batch_size=128))
    alike = torch.ones(256, 8) + torch.arange(8)
    assert method.collapsed({"loss": 0.0, "info_nce": float(info_nce(alike, 1.0))})
    apart = torch.randn(256, 8, generator=torch.Generator().manual_seed(0))
    assert not method.collapsed({"loss": 0.0, "info_nce": float(info_nce(apart, 1.0))})
    assert not method.collapsed({"loss": 0.0})  # a method without that term


# -- what a split cannot have ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("method", "k", "words"),
    [
        ("simgcd", 2, "the labelled images have 3 classes"),
        ("kmeans", 2, "the labelled images have 3 classes"),
        ("gcd", 11, "too large for 8 unlabelled images"),
        ("kmeans", 9, "too large for 8 unlabelled images"),
        ("gcd", 10, ""),
        ("kmeans", 8, ""),
        ("simgcd", 3, ""),
    ],
)
def test_an_impossible_k_is_refused_before_training(method: str, k: int, words: str) -> None:
    split = pd.DataFrame({"role": ["labelled"] * 4 + ["unlabelled"] * 8, "class_id": [0, 2, 2, 0, *range(8)]})
    p = {"benchmark": "mine", "row": f"{method}+K={k}", "method": method, "K": k}
    if words:
        with pytest.raises(UserError, match=rf"benchmark mine, row {method}\+K={k}: K is {k}, .*{words}"):
            check_k(p, split)
    else:
        check_k(p, split)
