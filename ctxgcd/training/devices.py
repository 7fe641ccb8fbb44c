"""Selection of the device of a job; each GPU is used by one job at a time."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import nn

from ctxgcd.errors import UserError
from ctxgcd.models.precision import computing
from ctxgcd.training.device_locks import borrowed
from ctxgcd.training.processes import is_a_started_one

# glibc's mallopt: parameter, value.
NO_MAPPED_BLOCKS, NEVER_TRIM = (-4, 0), (-1, 2**31 - 1)


def compute_alike(device: torch.device) -> None:
    """Set PyTorch to deterministic computation, as fast as possible."""
    torch.use_deterministic_algorithms(True, warn_only=True)
    # In this mode, PyTorch fills new memory before it is written; no result depends on it, and it takes time.
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]
    if device.type == "cpu":
        keep_freed_memory()


def keep_freed_memory() -> None:
    """Let the C library keep freed memory for the next step, instead of returning it to the kernel.

    A training step on a CPU takes and frees the same large blocks over and over; each time they come back as fresh
    pages, which the kernel must clear and map: a sixth to a third of a step's time on two cores. Results are the
    same bits. Where the C library has no mallopt nothing happens.
    """
    if mallopt := getattr(ctypes.CDLL(None), "mallopt", None):
        for option in (NO_MAPPED_BLOCKS, NEVER_TRIM):
            mallopt(*option)


def compiled(trunk: nn.Module, crop: int, precision: str, device: torch.device) -> nn.Module:
    """Return the trunk compiled with torch.compile on a GPU. Its outputs are equal up to rounding.

    Compilation requires a C compiler and the Python headers. If it fails, the trunk is used uncompiled, with a warning.
    """
    if device.type == "cpu":
        return trunk
    made = torch.compile(trunk, dynamic=True)
    try:
        with torch.no_grad(), computing(precision, device):
            made(torch.zeros(2, 3, crop, crop, device=device))
    except Exception as error:  # a compiler can raise almost any error, and compilation is optional
        print(
            f"warning: torch.compile failed ({type(error).__name__}); the backbone runs uncompiled and slower",
            flush=True,
        )
        return trunk
    return made  # type: ignore[return-value]


TAKEN = "CTXGCD_TAKEN_DEVICES"  # passes the locked devices to the other processes of a training


@contextmanager
def borrowed_devices(count: int) -> Iterator[list[torch.device]]:
    """Give `count` free CUDA devices, waiting while fewer are free, or the CPU as often where there is none.

    Devices are those of CUDA_VISIBLE_DEVICES, which a queue such as SLURM sets, each held by one job of the host at a
    time (training/device_locks.py). Raises UserError where there are not so many.
    """
    if not torch.cuda.is_available():
        yield [torch.device("cpu")] * count
        return
    # Without it products on CUDA may add in another order from run to run; read when the first one is made.
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    if is_a_started_one():
        yield [torch.device("cuda", int(number)) for number in os.environ[TAKEN].split(",")]
        return
    # By the card's own name: its number is another one for each process that is shown a part of the host's cards.
    names = [str(torch.cuda.get_device_properties(number).uuid) for number in range(torch.cuda.device_count())]
    if count > len(names):
        raise UserError(
            f"{count} devices are requested, but only {len(names)} are visible; request fewer devices or make more "
            "visible"
        )
    with borrowed(names, count) as held:
        os.environ[TAKEN] = ",".join(map(str, held))
        yield [torch.device("cuda", number) for number in held]
