"""Training of several runs in one process; rows with the same trunk share its forward passes."""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack

import pandas as pd
import torch

from ctxgcd.catalogue.entries import METHODS
from ctxgcd.errors import UserError
from ctxgcd.methods.method import Method
from ctxgcd.names import counted
from ctxgcd.pipeline.trunk import by_trunk
from ctxgcd.training.checkpoint import TrainedElsewhere, owned
from ctxgcd.training.devices import free_memory
from ctxgcd.training.one_run import OneRun
from ctxgcd.training.row import Row
from ctxgcd.training.step_inputs import StepInputs
from ctxgcd.training.train import Asked, run_rows

OF_FREE = 0.5  # share of the free memory for the rows of a part


def train_together(runs: Sequence[OneRun], split: pd.DataFrame, device: torch.device) -> list[str]:
    """Train runs of one benchmark and seed and keep them in the run cache; return the rows that failed.

    Rows with the same trunk are trained in the same steps, the others one after another. A run that another process
    trains is skipped with a line; the error of a row that failed is printed, and the others are trained.
    """
    failed = []
    for places in by_trunk([one.parameters for one in runs]):
        with ExitStack() as locks:
            asked = []
            for one in sorted((runs[place] for place in places), key=lambda one: one.state):  # as every process does
                try:
                    locks.enter_context(owned(one.state, patience=0))
                    if not one.finished():  # another process may have finished it
                        asked.append(one.asked(split))
                except TrainedElsewhere as error:
                    print(f"skipped {one.parameters['row']}: {error}", flush=True)
                except UserError as error:
                    failed.append(_told(one.parameters["row"], error))
            for group in _divided(asked):
                failed += [_told(one.parameters["row"], error) for one, error in _ended(group, split, device) if error]
                gc.collect()
    return failed


def _ended(
    group: Sequence[Asked], split: pd.DataFrame, device: torch.device
) -> Iterator[tuple[Asked, UserError | None]]:
    """Yield each run when its training has ended; an error of their common inputs is that of each run."""
    left = list(group)
    try:
        for one, error in run_rows(group, split, device, parts=fitting):
            left.remove(one)
            yield one, error
    except UserError as error:
        yield from ((one, error) for one in left)


def fitting(rows: Sequence[Row], inputs: StepInputs) -> Iterator[Sequence[Row]]:
    """Yield the rows in parts that fit into the free memory, each with at least one row; print the parts before."""
    if len(rows) == 1:
        yield rows
        return
    room, used, parts = OF_FREE * free_memory(inputs.labels.device), 0, [[rows[0]]]
    for row in rows[1:]:
        used += (needed := memory_of(row, inputs))
        if used > room:
            used = needed
            parts.append([])
        parts[-1].append(row)
    if len(parts) > 1:
        sizes = ", ".join(str(len(part)) for part in parts)
        print(
            f"{counted(len(rows), 'row')} train in {len(parts)} parts ({sizes} rows), because together they need more "
            f"than {room / 1e9:.1f} GB, {OF_FREE:.0%} of the free memory",
            flush=True,
        )
    yield from parts


def memory_of(row: Row, inputs: StepInputs) -> int:
    """Return the bytes that a further row needs.

    These are its parameters, gradients and momentum, the trunk's outputs for the images that its steps have beside the
    sampled ones, and its features of all images if they are computed together with those of other rows.
    """
    entry, last = METHODS[row.parameters["method"]], row.epochs - 1
    one = torch.zeros(1, dtype=torch.int64, device=inputs.labels.device)
    trained = sum(value.numel() * value.element_size() for value in row.network.parameters() if value.requires_grad)
    around = 2 * entry.around(row.parameters, last) * inputs.views.test(one).numel() * 4
    swept = entry.swept(row.parameters, last) and not inputs.views.keeps_tests
    features = inputs.features(row.network, one).numel() * 4 * len(inputs.labels) if swept else 0
    return 3 * trained + around + features


def _divided(asked: Sequence[Asked]) -> Iterator[list[Asked]]:
    """Yield the runs that train in the same steps, and alone those whose method has its own trunk or a stage."""
    shares = [
        isinstance(one.method, Method) and type(one.method).cut is Method.cut and one.method.stage() is None
        for one in asked
    ]
    if any(shares):
        yield [one for one, together in zip(asked, shares, strict=True) if together]
    yield from ([one] for one, together in zip(asked, shares, strict=True) if not together)


def _told(row: str, error: UserError) -> str:
    print(f"error: {error}", file=sys.stderr, flush=True)
    return row
