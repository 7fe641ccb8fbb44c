"""Several processes of one training, each with its own device.

They divide the forward passes of the trunk, which are almost all of a step's work. Its output is gathered, and the
tail, the heads, the losses and the optimiser run in every process on the gathered rows. The losses therefore see the
whole batch, no gradients are exchanged, and the parameters of all processes are bit-identical.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from threading import Thread
from threading import enumerate as enumerate_threads
from typing import TypeVar

import torch
from torch import Tensor, distributed

from ctxgcd.errors import UserError
from ctxgcd.training.rank import is_child_process
from ctxgcd.utils.signals import exists

T = TypeVar("T")
FIRST = "CTXGCD_FIRST_PROCESS"  # passes the first process's number to the other processes


class ProcessEnded(UserError):
    """Another process of the training has ended, so no row can be trained on."""


@dataclass(frozen=True)
class Processes:
    """This process, `rank`, of `count` processes."""

    rank: int = 0
    count: int = 1

    @property
    def first(self) -> bool:
        """Return whether this is the first process, which writes the files."""
        return self.rank == 0

    def share(self, n: int) -> slice:
        """Return this process's share of n rows, at least one; if there are too few, some rows are computed twice."""
        each = -(-n // self.count)
        start = min(self.rank * each, n - 1)
        return slice(start, min(start + each, n))

    def gather(self, own: Tensor, n: int) -> Tensor:
        """Return the n rows of all processes in order, gathered from their shares."""
        if self.count == 1:
            return own
        each = -(-n // self.count)
        padded = own.new_zeros(each, *own.shape[1:])
        padded[: len(own)] = own
        parts = [torch.empty_like(padded) for _ in range(self.count)]
        with _all_there():
            distributed.all_gather(parts, padded)
        return torch.cat(parts)[:n]

    def from_first(self, value: T) -> T:
        """Return the first process's value in every process: a decision that files or free memory determine."""
        if self.count == 1:
            return value
        values = [value]
        with _all_there():
            distributed.broadcast_object_list(values)
        return values[0]

    def together(self) -> None:
        """Wait for all processes."""
        if self.count > 1:
            with _all_there():
                distributed.barrier()


ALONE = Processes()


@contextmanager
def _all_there() -> Iterator[None]:
    """Raise ProcessEnded, a UserError, if another process has ended."""
    try:
        yield
    except RuntimeError:
        raise ProcessEnded(
            "another process of this training has ended; run the same command again to resume after the last finished "
            "epoch"
        ) from None


@contextmanager
def started(devices: Sequence[torch.device]) -> Iterator[tuple[Processes, torch.device]]:
    """Start one process for each device by running this script again; yield this process and its device.

    Lightning Fabric starts and connects the processes (NCCL between GPUs, gloo on a CPU). They end with the first one.
    """
    if len(devices) == 1:
        yield ALONE, devices[0]
        return
    from lightning_fabric import Fabric  # here, because its import is slow and a single process does not need it
    from lightning_fabric.plugins.environments import LightningEnvironment

    on_cuda = devices[0].type == "cuda"
    if is_child_process():
        Thread(target=_end_with, args=(int(os.environ[FIRST]),), daemon=True).start()
    else:
        os.environ[FIRST] = str(os.getpid())
    which = [device.index for device in devices] if on_cuda else len(devices)
    # Set explicitly, because in a SLURM job Fabric would expect SLURM to have started all processes.
    ours = LightningEnvironment()
    fabric = Fabric(accelerator=devices[0].type, devices=which, strategy="ddp", plugins=[ours])
    fabric.launch()
    try:
        yield Processes(fabric.global_rank, fabric.world_size), fabric.device
    except UserError:
        if is_child_process():  # the first process reports errors that affect all processes
            time.sleep(10)
        _disarm_observer()
        raise


def _disarm_observer() -> None:
    """Let this process report its error: within 5 s after another one has ended, Fabric's observer would kill it."""
    for thread in enumerate_threads():
        if thread.name == "child-process-observer":
            thread._terminate_all = lambda: None  # type: ignore[attr-defined]


def _end_with(first: int) -> None:
    """End this process when the first one has ended, which may have happened before this call."""
    parent = os.getppid()
    while os.getppid() == parent and exists(first):
        time.sleep(0.5)
    os._exit(1)
