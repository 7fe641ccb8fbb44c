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
from ctxgcd.bench.pictures import packed_photographs
from ctxgcd.bench.training import Step, prepared_rows
from ctxgcd.bench.work import Work, row_of, timed
from ctxgcd.config import read
from ctxgcd.methods.step import Look, Plan
from ctxgcd.models.precision import has_bf16
from ctxgcd.pipeline.resolve import resolve
from ctxgcd.training.loop import train_epoch, train_epoch_of
from ctxgcd.training.row import Row
from ctxgcd.training.step_inputs import StepInputs
from ctxgcd.training.views import FreshViews

COUNT, ALONE = 16, 2  # rows that are trained together, and rows that are trained alone for the comparison
IMAGES = 512  # from which neighbours are drawn
KEPT = 0.9  # share of a row's lists that other rows may have too, so that two rows share 0.81 of their members


def steps_of(device: torch.device, precision: str, context: bool) -> list[Step]:
    """Return the steps of 16 rows of the ablation and of the sensitivity tables.

    They have the paper's batch sizes on a GPU, and smaller ones on a CPU: 16 images and 16 / k queries with neighbours.
    """
    on_cpu = device.type == "cpu"
    common = f"+precision={precision}" + "+batch_size=16" * on_cpu
    around = "+neighbour_images=16" * on_cpu
    usual, others = ("+k=8", ("+k=4", "+k=16")) if on_cpu else ("", ("+k=20", "+k=30"))
    lambdas = [f"+lambda_{name}={value}" for name in "nc" for value in (0.3, 0.5, 0.7)]
    variants = ["full-paper", "full-released", "full-mended"]
    rows = [f"{name}{common}" for name in ("gcd", "simgcd")]
    rows += [f"{name}{common}{around}{usual}" for name in variants]
    rows += [f"full-paper{common}{around}{usual}{ending}" for ending in ("-without-n", "-without-c", "-zero", *lambdas)]
    rows += [f"full-paper{common}{around}{k}" for k in others]
    assert len(rows) == COUNT
    params = read(Path("params.yaml"))
    return [Step(resolve(params, "cub", row, 0), context) for row in rows]


def lists_of(images: int, k: int, number: int) -> Tensor:
    """Return a row's neighbour lists int64 [images, k]: those of all rows, with an own member in some places.

    After training, lists of two rows of cifar10_12k agree in 82% of their members, which determines what rows share.
    """
    shared, own = (torch.Generator().manual_seed(seed) for seed in (0, number + 1))
    common, other = (
        torch.stack([torch.randperm(images - 1, generator=drawn)[:k] for _ in range(images)]) for drawn in (shared, own)
    )
    members = torch.where(torch.rand(images, k, generator=own) < KEPT, common, other)
    return (members + torch.arange(images)[:, None] + 1) % images  # never the image itself


def begun(steps: Sequence[Step], folder: Path, device: torch.device) -> tuple[list[Row], StepInputs, int]:
    """Return rows that have trained once, their inputs, and an epoch of the phase, of which they train a few steps."""
    rows, inputs = prepared_rows(steps, folder, IMAGES, device)
    for number, row in enumerate(rows):
        row.measured_in = frozenset()  # do not measure the sizes of the loss terms
        _shorten(row, number, count(device))
    epoch = max(step.p.get("T_warm", 0) for step in steps) if steps[0].context else 0
    train_epoch_of(rows, inputs, epoch)
    return rows, inputs, epoch


def count(device: torch.device) -> int:
    """Return the number of steps of an epoch."""
    return 1 if device.type == "cpu" else IMAGES // 128


def _shorten(row: Row, number: int, steps: int) -> None:
    """Let a row train a few steps of an epoch, with neighbour lists that need no features of trained rows."""
    method: Any = row.method
    before = method.before_epoch

    def short(network: Any, look: Look) -> Plan:
        plan: Plan = before(network, look)
        return replace(plan, steps=plan.steps[:steps])

    method.before_epoch = short
    if k := row.parameters.get("k"):
        method.neighbour_lists = lambda look: lists_of(len(look.labels), k - 1, number)


def _together(folder: Path, n: int, device: torch.device, context: bool, precision: str) -> float:
    """Return the seconds of one step of n rows."""
    rows, inputs, epoch = begun(steps_of(device, precision, context)[-n:], folder, device)
    return timed(lambda: train_epoch_of(rows, inputs, epoch), device) / count(device) * n / len(rows)


def _alone(folder: Path, n: int, device: torch.device, context: bool, precision: str) -> float:
    """Return the seconds of one step of n rows that are trained one after another."""
    rows, inputs, epoch = begun(steps_of(device, precision, context)[2 : 2 + n], folder, device)

    def work() -> None:
        for row in rows:
            train_epoch(row, inputs, epoch)

    return timed(work, device) / count(device) * n / len(rows)


# Defined at module level, so that they can be pickled for the measuring processes.
PARTS = {
    (context, precision): tuple(partial(part, context=context, precision=precision) for part in (_together, _alone))
    for context in (False, True)
    for precision in ("float32", "bf16")
}


def works(device: torch.device) -> list[Work]:
    """Return the benchmarks: 16 rows together beside rows alone, in steps of a row a second."""
    precision = "bf16" if has_bf16(device) and device.type == "cuda" else "float32"
    made = []
    for context, phase in ((False, "baseline"), (True, "contextual")):
        ours, alone = PARTS[context, precision]
        name = f"{COUNT} rows that share the trunk, {phase} phase"
        made.append(Work(name, "steps/s", (COUNT,), _photographs, ours, alone, ALONE, threads=2, least=ALONE))
    return made


def parts(device: torch.device) -> list[dict[str, Any]]:
    """Return what is left for each row in a contextual step: its views that are not shared, and its tail and heads."""
    precision = "bf16" if has_bf16(device) and device.type == "cuda" else "float32"
    steps = steps_of(device, precision, context=True)
    with TemporaryDirectory() as name:
        _photographs(Path(name), 0)
        rows, inputs, epoch = begun(steps, Path(name), device)
        views = inputs.views
        assert isinstance(views, FreshViews)
        clock, counts, outputs = Clock(device), list[int](), views.outputs

        def counted(*arguments: Any) -> Any:
            made = outputs(*arguments)
            counts.append(len(made))
            return made

        views.outputs = clock.wrap("trunk", counted)  # type: ignore[method-assign]

        def rest(part: Sequence[Row]) -> float:
            """Return the percentage of an epoch's time that is not spent in the trunk."""
            clock.seconds.clear()
            whole = timed(lambda: train_epoch_of(part, inputs, epoch), device)
            return 100 * (1 - clock.seconds["trunk"] / whole)

        alone = rest(rows[2:3])
        counts.clear()
        together = rest(rows)
    asked = sum(step.views if step.p.get("k") else 2 * step.p["batch_size"] for step in steps)
    computed = sum(counts) / len(counts)
    title = f"contextual step of {COUNT} rows"
    return [
        row_of(f"views of a {title}", device, "views", computed, asked, asked / computed, 0.0, COUNT),
        row_of(f"tails and heads in a {title}", device, "%", together, alone, alone / together, 0.0, COUNT),
    ]


def _photographs(folder: Path, n: int) -> None:
    packed_photographs(folder, IMAGES)
