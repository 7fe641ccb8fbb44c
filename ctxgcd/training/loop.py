"""The training loop, which can be resumed after every epoch."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ctxgcd.catalogue.entries import METHODS
from ctxgcd.methods.step import Plan
from ctxgcd.names import counted
from ctxgcd.training.row import Row
from ctxgcd.training.step_inputs import PATIENCE, StepInputs
from ctxgcd.training.tensorboard_files import board
from ctxgcd.utils.progress import Progress

EVERY = 5.0  # seconds between two progress lines


def train(row: Row, inputs: StepInputs) -> None:
    """Train the remaining epochs of a row."""
    for _ in train_rows([row], inputs):
        _raise_error(row)


def train_rows(rows: Sequence[Row], inputs: StepInputs) -> Iterator[Row]:
    """Train the remaining epochs of rows that share their inputs; yield each row when its training has ended.

    The rows of an epoch are trained in the same steps; a row that was resumed earlier than others catches up first. An
    error ends the training of its row alone, and is an attribute of the row.
    """
    ended: set[Row] = set()
    with ExitStack() as boards:
        logs = {}
        for row in rows:
            with row.ending():
                _start(row, inputs)
                if inputs.processes.first:
                    logs[row] = Log(row, boards.enter_context(board(row.title, len(row.history))))
        inputs.processes.together()  # before a process writes the checkpoint that others resume from
        for epoch in range(max(row.epochs for row in rows) + 1):
            for row in rows:
                if row not in ended and row.epoch_due is None:
                    ended.add(row)
                    yield row
            if due := [row for row in rows if row.epoch_due == epoch]:
                start, own = time.monotonic(), {row: row.own_seconds for row in due}
                train_epoch_of(due, inputs, epoch)
                spent = {row: row.own_seconds - before for row, before in own.items()}
                shared = (time.monotonic() - start - sum(spent.values())) / len(due)
                for row in due:
                    row.seconds += spent[row] + shared
                    row.together = max(row.together, len(due))
                    if row in logs and row.error is None:
                        row.save()
                        logs[row].add()


def train_epoch(row: Row, inputs: StepInputs, epoch: int) -> None:
    """Train one epoch of a row; print the progress of a long epoch."""
    train_epoch_of([row], inputs, epoch)
    _raise_error(row)


def train_epoch_of(rows: Sequence[Row], inputs: StepInputs, epoch: int) -> None:
    """Train one epoch of rows in the same steps; an error ends the training of its row."""
    plans: dict[Row, Plan] = {}
    swept = _swept(rows, inputs, epoch)
    for row in rows:
        with row.ending():
            plans[row] = row.begin(inputs.look(row.network, epoch, swept.pop(row, None)))
    images = sum(len(group.ids) for plan in plans.values() for step in plan.steps for group in step.values())
    of = rows[0].title if len(rows) == 1 else f"{rows[0].title} and {counted(len(rows) - 1, 'other row')}"
    progress = Progress(f"{of}  epoch {epoch + 1}/{rows[0].epochs}", images, after=PATIENCE)
    trained = dict(plans)
    for row, batch in inputs.batches(trained, epoch):
        with row.ending():
            row.learn(batch)
        if row.error:
            del trained[row]
        if inputs.processes.first:
            progress.add(sum(len(group.ids) for group in batch.groups.values()))
    for row in trained:
        with row.ending():
            row.end(len(plans[row].steps))


def _swept(rows: Sequence[Row], inputs: StepInputs, epoch: int) -> dict[Row, Tensor]:
    """Return the features of all training images for the rows that ask for them before the epoch.

    They are computed here if several rows ask and the trunk would compute the test views again for each of them.
    """
    asking = [row for row in rows if METHODS[row.parameters["method"]].swept(row.parameters, epoch)]
    if len(asking) < 2 or inputs.views.keeps_tests:
        return {}
    every = torch.arange(len(inputs.labels), device=inputs.labels.device)
    return dict(zip(asking, inputs.features_of([row.network for row in asking], every), strict=True))


def _start(row: Row, inputs: StepInputs) -> None:
    """Resume a row, or prepare it for its first epoch."""
    if not row.resume():
        _before_first_epoch(row, inputs)
    elif inputs.processes.first:
        print(f"{row.title}  resumed after epoch {len(row.history)}", flush=True)


def _before_first_epoch(row: Row, inputs: StepInputs) -> None:
    """Train the stage on the same network with a separate checkpoint, then let the method prepare the network."""
    if stage := row.method.stage():
        state = row.state_file.with_name(f"stage-{row.state_file.name}")
        own = Row(stage, row.network, Path(state), f"{row.title} stage", row.about)
        train(own, replace(inputs, streams=f"{inputs.streams}stage/"))
        row.seconds, row.steps = own.seconds, own.steps
    row.method.prepare(row.network, inputs.look(row.network, 0))


def _raise_error(row: Row) -> None:
    if row.error:
        raise row.error


class Log:
    """The progress lines of a row, and its TensorBoard file."""

    def __init__(self, row: Row, show: Callable[[Mapping[str, Any]], None]) -> None:
        self.row, self.show, self.first, self.start = row, show, len(row.history), time.monotonic()
        self.printed = 0.0

    def add(self) -> None:
        """Add the last epoch."""
        last, epochs, now = self.row.history[-1], self.row.epochs, time.monotonic()
        done = len(self.row.history)
        self.show(last)
        if now - self.printed > EVERY or done == epochs:
            self.printed = now
            left = _clock((now - self.start) / (done - self.first) * (epochs - done))
            print(f"{self.row.title}  epoch {done}/{epochs}  loss {last['loss']:.3f}  {left} left", flush=True)


def _clock(seconds: float) -> str:
    hours, rest = divmod(round(seconds), 3600)
    return f"{hours}:{rest // 60:02d}:{rest % 60:02d}"
