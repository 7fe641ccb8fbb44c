"""Benchmarks of the rows of an ablation that share the trunk's forward passes, compared with rows trained alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from torch import Tensor

from ctxgcd.bench.budget import Clock
from ctxgcd.bench.neighbours import STEPS, parameters, recorded
from ctxgcd.bench.pictures import packed_photographs
from ctxgcd.bench.training import PHOTOGRAPHS, Step, prepared_rows
from ctxgcd.bench.work import Work, row_of, timed
from ctxgcd.methods.step import Group, Look, Plan
from ctxgcd.models.precision import has_bf16
from ctxgcd.training.loop import train_epoch, train_epoch_of
from ctxgcd.training.row import Row
from ctxgcd.training.step_inputs import StepInputs
from ctxgcd.training.views import FreshViews

COUNT = 16
LISTS = ("cub50", "cifar10_12k")  # benchmarks whose recorded neighbours the rows have

ENDINGS = ("", "-without-n", "-without-c", "-zero")
OTHERS = {"lambda_n": (0.3, 0.5, 0.7), "lambda_c": (0.1, 0.5, 0.7), "k": (20, 30)}  # of the sensitivity tables
ROWS = ["gcd", "simgcd", "full-released", "full-mended", *(f"full-paper{ending}" for ending in ENDINGS)]
ROWS += [f"full-paper+{name}={value}" for name, values in OTHERS.items() for value in values]
assert len(ROWS) == COUNT
COMPARED = ("full-paper", "full-released", "full-mended")
MEASURED = ("simgcd", "full-paper")  # rows that are trained alone, for those without and with neighbours
IMAGES = PHOTOGRAPHS  # at least the number of different neighbours in a step


def steps_of(device: torch.device, precision: str, context: bool) -> list[Step]:
    """Return the steps of the rows of the ablation and of the sensitivity tables.

    They have the paper's batch sizes on a GPU, and smaller ones on a CPU.
    """
    small = device.type == "cpu"
    return [Step({**parameters(row, small), "precision": precision}, context) for row in ROWS]


Begun = tuple[list[Row], StepInputs, int]


def begun(steps: Sequence[Step], folder: Path, device: torch.device, lists: str) -> Begun:
    """Return rows that have trained once, their inputs, and an epoch of the phase, of which they train a few steps.

    lists: the benchmark whose recorded neighbours the rows have.
    """
    rows, inputs, epoch = _untrained(steps, folder, device, lists)
    train_epoch_of(rows, inputs, epoch)
    return rows, inputs, epoch


def _untrained(steps: Sequence[Step], folder: Path, device: torch.device, lists: str) -> Begun:
    rows, inputs = prepared_rows(steps, folder, IMAGES, device)
    around = recorded(lists, steps[0].p["batch_size"])
    for step, row in zip(steps, rows, strict=True):
        row.measured_in = frozenset()  # do not measure the sizes of the loss terms
        _shorten(row, around.get(step.p["row"]), count(device))
    epoch = max(step.p.get("T_warm", 0) for step in steps) if steps[0].context else 0
    return rows, inputs, epoch


def count(device: torch.device) -> int:
    """Return the number of steps of an epoch."""
    return 1 if device.type == "cpu" else STEPS


def _shorten(row: Row, around: Sequence[Tensor] | None, steps: int) -> None:
    """Let a row train a few steps of an epoch, with recorded neighbours, which need no features of trained rows."""
    method: Any = row.method
    before = method.before_epoch

    def short(network: Any, look: Look) -> Plan:
        plan: Plan = before(network, look)
        own = [dict(step) for step in plan.steps[:steps]]
        for number, step in enumerate(own):
            if "neighbours" in step:
                assert around
                step["neighbours"] = Group(around[number])
        return replace(plan, steps=own)

    method.before_epoch = short
    if k := row.parameters.get("k"):
        method.neighbour_lists = lambda look: torch.zeros(len(look.labels), k - 1, dtype=torch.int64)


def _together(folder: Path, n: int, device: torch.device, context: bool, precision: str, lists: str) -> float:
    """Return the seconds of one step of n rows."""
    rows, inputs, epoch = begun(steps_of(device, precision, context)[-n:], folder, device, lists)
    return timed(lambda: train_epoch_of(rows, inputs, epoch), device) / count(device) * n / len(rows)


def _alone(folder: Path, n: int, device: torch.device, context: bool, precision: str, lists: str) -> float:
    """Return the seconds of one step of n rows that are trained one after another.

    One row without neighbours and one with them are measured, and weighted as they occur among the rows.
    """
    steps = steps_of(device, precision, context)
    rows, inputs, epoch = begun([step for step in steps if step.p["row"] in MEASURED], folder, device, lists)
    seconds = {}
    for row in rows:
        seconds[row.parameters["row"]] = timed(partial(train_epoch, row, inputs, epoch), device)
    without, around = MEASURED
    whole = sum(seconds[around if "k" in step.p else without] for step in steps)
    return whole / count(device) * n / len(steps)


# Defined at module level, so that they can be pickled for the measuring processes.
PARTS = {
    (context, precision, lists): tuple(
        partial(part, context=context, precision=precision, lists=lists) for part in (_together, _alone)
    )
    for context in (False, True)
    for precision in ("float32", "bf16")
    for lists in LISTS
}


def works(device: torch.device) -> list[Work]:
    """Return the benchmarks: 16 rows together beside rows alone, in steps of a row a second."""
    precision, made = _precision(device), []
    for context, lists in ((False, LISTS[0]), *((True, lists) for lists in LISTS)):
        ours, alone = PARTS[context, precision, lists]
        phase = f"contextual phase, {lists}" if context else "baseline phase"
        name = f"{COUNT} rows that share the trunk, {phase}"
        made.append(Work(name, "steps/s", (COUNT,), _photographs, ours, alone, threads=2, least=COUNT))
    return made


def parts(device: torch.device) -> list[dict[str, Any]]:
    """Return what is left for each row in a contextual step: its views that are not shared, and its tail and heads."""
    steps, found = steps_of(device, _precision(device), context=True), []
    asked = sum(step.views if "k" in step.p else 2 * step.p["batch_size"] for step in steps)
    with TemporaryDirectory() as name:
        _photographs(Path(name), 0)
        for lists in LISTS:
            computed, together, alone = _measured(steps, Path(name), device, lists)
            title = f"contextual step of {COUNT} rows, {lists}"
            views, rest = f"views of a {title}", f"tails and heads in a {title}"
            found.append(row_of(views, device, "views", computed, asked, asked / computed, 0.0, COUNT))
            found.append(row_of(rest, device, "%", together, alone, alone / together, 0.0, COUNT))
    return found


def differences(device: torch.device) -> list[dict[str, Any]]:
    """Return how far the weights of rows that take contextual steps together are from those of each row alone.

    On a GPU, rounding may depend on the other rows. Neighbour lists and pseudo labels amplify it, so few steps from one
    state are compared. `ours` is the largest difference of a weight, as a percentage of the largest change of a weight.
    """
    steps = [step for step in steps_of(device, _precision(device), context=True) if step.p["row"] in COMPARED]
    with TemporaryDirectory() as name:
        _photographs(Path(name), 0)
        rows, inputs, epoch = _untrained(steps, Path(name), device, LISTS[0])
        start = [_weights(row) for row in rows]
        train_epoch_of(rows, inputs, epoch)
        difference = change = 0.0
        for row, step, before in zip(rows, steps, start, strict=True):
            [alone], inputs, epoch = _untrained([step], Path(name), device, LISTS[0])
            train_epoch(alone, inputs, epoch)
            difference = max(difference, float((_weights(row) - _weights(alone)).abs().max()))
            change = max(change, float((_weights(alone) - before).abs().max()))
    of = f"weights of {len(rows)} rows after {count(device)} steps together and alone"
    return [row_of(of, device, "%", 100 * difference / change, 100.0, difference / change, 0.0, len(rows))]


def _weights(row: Row) -> Tensor:
    return torch.cat([value.detach().flatten().double() for value in row.network.parameters()])


def _measured(steps: Sequence[Step], folder: Path, device: torch.device, lists: str) -> tuple[float, float, float]:
    """Return the views of a step, and the percentage of its time outside the trunk: for all rows, and for one alone."""
    rows, inputs, epoch = begun(steps, folder, device, lists)
    views = inputs.views
    assert isinstance(views, FreshViews)
    clock, counts, outputs = Clock(device), list[int](), views.outputs

    def counted(*arguments: Any) -> Any:
        made = outputs(*arguments)
        counts.append(len(made))
        return made

    views.outputs = clock.wrap("trunk", counted)  # type: ignore[method-assign]

    def rest(part: Sequence[Row]) -> float:
        clock.seconds.clear()
        whole = timed(lambda: train_epoch_of(part, inputs, epoch), device)
        return 100 * (1 - clock.seconds["trunk"] / whole)

    alone = rest([row for row in rows if row.parameters["row"] == "full-paper"])
    counts.clear()
    together = rest(rows)
    return sum(counts) / len(counts), together, alone


def _precision(device: torch.device) -> str:
    return "bf16" if has_bf16(device) and device.type == "cuda" else "float32"


def _photographs(folder: Path, n: int) -> None:
    packed_photographs(folder, IMAGES)
