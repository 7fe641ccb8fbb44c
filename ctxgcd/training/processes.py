"""Several processes of one training, each with a device of its own.

They share the trunk's work, which is nearly all of a step's. Its output is gathered, and the tail, the heads, the
losses and the optimiser run on every process alike, on the rows of all: so the losses see the whole batch, no
gradient is exchanged, and every process holds the same parameters, bit for bit.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from threading import Thread

import torch
from torch import Tensor, distributed

from ctxgcd.errors import UserError


@dataclass(frozen=True)
class Processes:
    """Which one this is, `rank`, of `count`."""

    rank: int = 0
    count: int = 1

    @property
    def first(self) -> bool:
        """Whether this process writes what is to be written once."""
        return self.rank == 0

    def share(self, n: int) -> slice:
        """This process's part of n rows, at least one: where there are too few, some are computed twice."""
        each = -(-n // self.count)
        start = min(self.rank * each, n - 1)
        return slice(start, min(start + each, n))

    def gather(self, own: Tensor, n: int) -> Tensor:
        """The n rows of all processes, in order, of which each gives its share."""
        if self.count == 1:
            return own
        each = -(-n // self.count)
        padded = own.new_zeros(each, *own.shape[1:])
        padded[: len(own)] = own
        parts = [torch.empty_like(padded) for _ in range(self.count)]
        with _all_there():
            distributed.all_gather(parts, padded)
        return torch.cat(parts)[:n]

    def together(self) -> None:
        """Wait until every process is here."""
        if self.count > 1:
            with _all_there():
                distributed.barrier()


ALONE = Processes()


@contextmanager
def _all_there() -> Iterator[None]:
    """Say in a sentence that another process is gone."""
    try:
        yield
    except RuntimeError:
        raise UserError(
            "another process of this training has ended; run the same command again, it goes on after its last "
            "finished epoch"
        ) from None


@contextmanager
def started(devices: Sequence[torch.device]) -> Iterator[tuple[Processes, torch.device]]:
    """Start one process a device by calling this script again; give which one this is, and its device.

    Lightning Fabric starts and joins them (NCCL between GPUs, gloo on a CPU). They end with the first one.
    """
    if len(devices) == 1:
        yield ALONE, devices[0]
        return
    from lightning_fabric import Fabric  # takes a second that a single process would wait for
    from lightning_fabric.plugins.environments import LightningEnvironment

    on_cuda = devices[0].type == "cuda"
    if is_a_started_one():
        Thread(target=_end_with, args=(os.getppid(),), daemon=True).start()
    which = [device.index for device in devices] if on_cuda else len(devices)
    # Named, because inside a job of SLURM Fabric would expect the queue to have started all processes.
    ours = LightningEnvironment()
    fabric = Fabric(accelerator=devices[0].type, devices=which, strategy="ddp", plugins=[ours])
    fabric.launch()
    try:
        yield Processes(fabric.global_rank, fabric.world_size), fabric.device
    except UserError:
        if is_a_started_one():  # what is wrong for all, the first one tells, and this one ends with it
            time.sleep(10)
        raise


def _end_with(parent: int) -> None:
    """End this process when the first one is gone, however it went."""
    while os.getppid() == parent:
        time.sleep(0.5)
    os._exit(1)


def is_a_started_one() -> bool:
    """Whether another process of the same training started this one."""
    return int(os.environ.get("LOCAL_RANK", "0")) > 0
