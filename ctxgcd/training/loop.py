"""The training loop, which can be resumed after every epoch."""

from __future__ import annotations

import time
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

from ctxgcd.training.row import Row
from ctxgcd.training.step_inputs import PATIENCE, StepInputs
from ctxgcd.training.tensorboard_files import board
from ctxgcd.utils.progress import Progress

EVERY = 5.0  # seconds between two progress lines


def train(row: Row, inputs: StepInputs) -> None:
    """Train the remaining epochs of a run; before the first epoch, train the method's stage."""
    if not row.resume():
        _before_first_epoch(row, inputs)
    elif inputs.processes.first:
        print(f"{row.title}  resumed after epoch {len(row.history)}", flush=True)
    inputs.processes.together()  # before a process writes the checkpoint that others resume from
    first, start, printed = len(row.history), time.monotonic(), 0.0
    before = row.seconds
    with board(row.title, first) if inputs.processes.first else nullcontext() as show:
        for epoch in range(first, row.epochs):
            train_epoch(row, inputs, epoch)
            now = time.monotonic()
            row.seconds = before + now - start
            if show is None:
                continue
            row.save()
            show(row.history[-1])
            if now - printed > EVERY or epoch == row.epochs - 1:
                printed = now
                left, loss = (now - start) / (epoch + 1 - first) * (row.epochs - epoch - 1), row.history[-1]["loss"]
                print(f"{row.title}  epoch {epoch + 1}/{row.epochs}  loss {loss:.3f}  {_clock(left)} left", flush=True)


def train_epoch(row: Row, inputs: StepInputs, epoch: int) -> None:
    """Train one epoch; print the progress of a long epoch."""
    plan = row.begin(inputs.look(row.network, epoch))
    images = sum(len(group.ids) for step in plan.steps for group in step.values())
    progress = Progress(f"{row.title}  epoch {epoch + 1}/{row.epochs}", images, after=PATIENCE)
    for batch in inputs.batches(plan, epoch):
        row.learn(batch)
        if inputs.processes.first:
            progress.add(sum(len(rows.ids) for rows in batch.groups.values()))
    row.end(len(plan.steps))


def _before_first_epoch(row: Row, inputs: StepInputs) -> None:
    """Train the stage on the same network with a separate checkpoint, then let the method prepare the network."""
    if stage := row.method.stage():
        state = row.state_file.with_name(f"stage-{row.state_file.name}")
        own = Row(stage, row.network, Path(state), f"{row.title} stage", row.about)
        train(own, replace(inputs, streams=f"{inputs.streams}stage/"))
        row.seconds, row.steps = own.seconds, own.steps
    row.method.prepare(row.network, inputs.look(row.network, 0))


def _clock(seconds: float) -> str:
    hours, rest = divmod(round(seconds), 3600)
    return f"{hours}:{rest // 60:02d}:{rest % 60:02d}"
