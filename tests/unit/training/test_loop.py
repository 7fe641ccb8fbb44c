"""The loop on a synthetic network: recorded values, and what runs of one seed share."""

from __future__ import annotations

import csv
import math
from pathlib import Path
from typing import Any

import pytest
import torch

from ctxgcd.losses.info_nce import info_nce
from ctxgcd.methods.full import Full
from ctxgcd.methods.method import Method
from ctxgcd.methods.schedules import cosine_lr
from ctxgcd.methods.step import Batch, Rows, weighted
from ctxgcd.training import loop
from ctxgcd.utils.files import write_rows
from tests.helpers.training import (
    CONTROL,
    DIM,
    IMAGES,
    SIMGCD,
    TEST,
    VARIANTS,
    equal,
    made_up,
    network,
    parameters,
    trained,
    training,
)
from tests.helpers.waits import Counter

torch.set_num_threads(1)


# -- recorded values -----------------------------------------------------------------------------


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


@pytest.mark.slow
def test_training_learns(tmp_path: Path) -> None:
    made, _ = trained(tmp_path, "a.pt", epochs=20, **SIMGCD)
    assert made.row.history[-1]["cls"] < 0.5 * made.row.history[0]["cls"]
    labels = made_up()[2]
    ids = torch.nonzero(labels >= 0)[:, 0]
    found = made.row.method.discover(made.row.network, made.features, labels, ids, ids[:0])
    assert (found.unlabelled == labels[ids]).float().mean() > 0.9
    assert len(found.test) == 0
    assert made.features(torch.arange(IMAGES + TEST)).shape == (IMAGES + TEST, DIM)


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
    """The number of values that the host reads does not depend on the number of steps: the means of an epoch."""
    waits = []
    for batch_size in (4, 12):
        made, _ = training(tmp_path, {"batch_size": batch_size, **changes})
        with Counter() as counter:
            loop.train_epoch(made.row, made.inputs, 3)
        waits.append(counter.waits)
    assert waits[0] == waits[1] > 0


@pytest.mark.slow
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
    """The first step of an epoch of one batch, by hand: weight decay on matrices only, half the rate for the tail."""
    changes = {**SIMGCD, "epochs": 1, "batch_size": IMAGES, "teacher_warmup_epochs": 1, "weight_decay": 0.1}
    made, recorder = training(tmp_path, changes)
    before = {name: value.clone() for name, value in made.row.network.state_dict().items()}
    made.train()
    after = made.row.network.state_dict()
    ids, rows = recorder.calls[0]
    net = network(0)
    batch = Batch({"sampled": Rows(rows, ids, made_up()[2][ids])})
    weighted(made.row.method.losses(net, batch).terms, made.row.method.weights(batch)).backward()
    for name, parameter in net.named_parameters():
        assert parameter.grad is not None
        step = parameter.grad + (0.1 * before[name] if parameter.ndim > 1 else 0)
        expected = before[name] - (0.05 if name.startswith("tail.") else 0.1) * step
        torch.testing.assert_close(after[name], expected, rtol=1e-6, atol=1e-7)


# -- pairing ---------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_methods_of_one_seed_see_the_same(tmp_path: Path) -> None:
    """SimGCD, all variants, ablations and any k have equal initial values, sampled images and views."""
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
        around = len(recorder.calls) - len(seen[name])
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


@pytest.mark.slow
def test_same_seed_twice_is_bit_equal(tmp_path: Path) -> None:
    for number, changes in enumerate((SIMGCD, {}, {"variant": "mended"})):
        torch.manual_seed(1)
        one, _ = trained(tmp_path, f"{number}a.pt", **changes)
        torch.manual_seed(2)
        torch.rand(5)
        other, _ = trained(tmp_path, f"{number}b.pt", **changes)
        assert equal(one, other)
        assert not equal(one, trained(tmp_path, f"{number}c.pt", **{**changes, "seed": 1})[0])


def test_the_control_has_the_parameters_of_simgcd(tmp_path: Path) -> None:
    """With both weights 0, the context terms are computed and logged, with no effect except rounding."""
    baseline = trained(tmp_path, "a.pt", **SIMGCD)[0]
    for variant in VARIANTS:
        control = trained(tmp_path, f"{variant}.pt", variant=variant, **CONTROL)[0]
        assert all(row["L_n"] != 0 and row["L_c"] != 0 for row in control.row.history[2:])
        for name, value in baseline.row.network.state_dict().items():
            torch.testing.assert_close(control.row.network.state_dict()[name], value, rtol=1e-4, atol=1e-5)


def test_released_trains_simgcd_and_its_cluster_term_alone(tmp_path: Path) -> None:
    """The neighbourhood term of the released code changes no parameter: with the term, without it, with any weight."""
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


def test_collapse_is_the_info_nce_of_chance() -> None:
    method: Method = Full(parameters(batch_size=128))
    equal = torch.ones(256, 8) + torch.arange(8)
    assert method.collapsed({"loss": 0.0, "info_nce": float(info_nce(equal, 1.0))})
    apart = torch.randn(256, 8, generator=torch.Generator().manual_seed(0))
    assert not method.collapsed({"loss": 0.0, "info_nce": float(info_nce(apart, 1.0))})
    assert not method.collapsed({"loss": 0.0})  # a method without that term
