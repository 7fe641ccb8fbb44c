"""Training of several runs in one job; rows with the same views share what they are made from."""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack
from itertools import islice

import pandas as pd
import torch

from ctxgcd.catalogue.entries import METHODS
from ctxgcd.errors import UserError
from ctxgcd.methods.method import Method
from ctxgcd.names import counted
from ctxgcd.pipeline.trunk import grouped, views_of
from ctxgcd.training.checkpoint import TrainedElsewhere, owned
from ctxgcd.training.devices import free_memory
from ctxgcd.training.one_run import OneRun
from ctxgcd.training.processes import ALONE, Processes
from ctxgcd.training.row import Row
from ctxgcd.training.step_inputs import StepInputs
from ctxgcd.training.train import Asked, run_rows

OF_FREE = 0.5  # share of the free memory for the rows of a part


def train_together(
    runs: Sequence[OneRun], split: pd.DataFrame, device: torch.device, processes: Processes = ALONE
) -> list[str]:
    """Train runs of one benchmark and seed and keep them in the run cache; return the rows that failed.

    Rows with the same views are trained in the same steps, the others one after another. A run that another call trains
    is skipped with a line; the error of a row that failed is printed, and the others are trained.

    processes: processes that share the work. The first one decides which runs are trained, prints and returns the rows.
    """
    failed: list[str] = []
    for places in grouped([one.parameters for one in runs], views_of):
        with ExitStack() as locks:
            held = _held([(place, runs[place]) for place in places], split, locks, failed) if processes.first else {}
            asked = {runs[place].asked(split): place for place in processes.from_first(list(held))}
            for group in _divided(list(asked)):
                for one, error in run_rows(group, split, device, processes, parts=fitting):
                    if processes.first:
                        held[asked[one]].close()  # another job that waits for this run need not wait for the others
                        failed += [_told(one.parameters["row"], error)] if error else []
                gc.collect()
    return failed


def _held(
    runs: Iterable[tuple[int, OneRun]], split: pd.DataFrame, locks: ExitStack, failed: list[str]
) -> dict[int, ExitStack]:
    """Return the places of the runs that are to be trained, each with its lock; add the rows that fail to `failed`."""
    held = {}
    for place, one in sorted(runs, key=lambda of: of[1].state):  # as every call does
        lock = locks.enter_context(ExitStack())
        try:
            lock.enter_context(owned(one.state, patience=0))
            if not one.finished():  # another call may have finished it
                one.asked(split)
                held[place] = lock
        except TrainedElsewhere as error:
            print(f"skipped {one.parameters['row']}: {error}", flush=True)
        except UserError as error:
            failed.append(_told(one.parameters["row"], error))
    return held


def fitting(rows: Sequence[Row], inputs: StepInputs) -> Iterator[Sequence[Row]]:
    """Yield the rows in parts that fit into the free memory, each with at least one row; print their sizes before.

    The memory is that of the first process.
    """
    if len(rows) == 1:
        yield rows
        return
    room, used, sizes = OF_FREE * free_memory(inputs.labels.device), 0, [1]
    for row in rows[1:]:
        used += (needed := memory_of(row, inputs))
        if used > room:
            used = needed
            sizes.append(0)
        sizes[-1] += 1
    sizes = inputs.processes.from_first(sizes)
    if len(sizes) > 1 and inputs.processes.first:
        print(
            f"{counted(len(rows), 'row')} train in {len(sizes)} parts ({', '.join(map(str, sizes))} rows), because "
            f"together they need more than {room / 1e9:.1f} GB, {OF_FREE:.0%} of the free memory",
            flush=True,
        )
    left = iter(rows)
    yield from (list(islice(left, size)) for size in sizes)


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
