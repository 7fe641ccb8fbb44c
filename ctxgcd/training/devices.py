"""Selection of the device of a job; each GPU is used by one job at a time."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
from torch import nn

from ctxgcd.errors import UserError
from ctxgcd.models.precision import computing
from ctxgcd.training.device_locks import borrowed
from ctxgcd.training.rank import is_child_process

# glibc's mallopt: parameter, value.
NO_MAPPED_BLOCKS, NEVER_TRIM = (-4, 0), (-1, 2**31 - 1)


def make_deterministic(device: torch.device) -> None:
    """Set PyTorch to deterministic computation, as fast as possible."""
    torch.use_deterministic_algorithms(True, warn_only=True)
    # In this mode, PyTorch fills new memory before it is written; no result depends on it, and it takes time.
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]
    if device.type == "cpu":
        keep_freed_memory()


def keep_freed_memory() -> None:
    """Let the C library keep freed memory for the next step, instead of returning it to the kernel.

    A training step on a CPU repeatedly allocates and frees the same large blocks. Without this setting, the kernel has
    to clear and map new pages each time, which is a sixth to a third of a step's time on two cores. Results are
    bit-identical. Without mallopt in the C library, this does nothing.
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


def free_memory(device: torch.device) -> int:
    """Return the free memory of a device in bytes."""
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    lines = Path("/proc/meminfo").read_text(encoding="utf-8").splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("MemAvailable")) * 1024


TAKEN = "CTXGCD_TAKEN_DEVICES"  # passes the locked devices to the other processes of a training


@contextmanager
def borrowed_devices(count: int) -> Iterator[list[torch.device]]:
    """Yield `count` locked CUDA devices; wait until enough are free; without CUDA, yield the CPU `count` times.

    Devices are those of CUDA_VISIBLE_DEVICES, which a queue such as SLURM sets; each is locked by one job of the host
    at a time (training/device_locks.py). Raises UserError if fewer devices are visible, or without CUDA if the host has
    fewer cores.
    """
    if not torch.cuda.is_available():
        if count > (cores := os.cpu_count() or 1):
            raise UserError(f"{count} processes are requested, but the cores of this host are {cores}; request fewer")
        yield [torch.device("cpu")] * count
        return
    # Makes the order of sums in CUDA products deterministic; it is read at the first product.
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    if is_child_process():
        yield [torch.device("cuda", int(number)) for number in os.environ[TAKEN].split(",")]
        return
    # Locked by UUID, because the index depends on the devices that are visible to a process.
    names = [str(torch.cuda.get_device_properties(number).uuid) for number in range(torch.cuda.device_count())]
    if count > len(names):
        raise UserError(
            f"{count} devices are requested, but only {len(names)} are visible; request fewer devices or make more "
            "visible"
        )
    with borrowed(names, count) as held:
        os.environ[TAKEN] = ",".join(map(str, held))
        yield [torch.device("cuda", number) for number in held]
