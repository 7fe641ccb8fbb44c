"""Which device a job computes on: each GPU belongs to one job at a time, whoever started it."""

from __future__ import annotations

import ctypes
import os
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
from filelock import FileLock, Timeout

# glibc's mallopt: parameter, value.
NO_MAPPED_BLOCKS, NEVER_TRIM = (-4, 0), (-1, 2**31 - 1)


def keep_freed_memory() -> None:
    """Let the C library keep what a step frees for the next one, instead of giving it back to the kernel.

    A training step on a CPU takes and frees the same large blocks over and over; each time they come back as fresh
    pages, which the kernel must clear and map: a third of a step's time here (docs/measured/bench.md). Results are
    the same bits. Where the C library has no mallopt nothing happens.
    """
    if mallopt := getattr(ctypes.CDLL(None), "mallopt", None):
        for option in (NO_MAPPED_BLOCKS, NEVER_TRIM):
            mallopt(*option)


@contextmanager
def borrowed_device(wait: float = 2.0) -> Iterator[torch.device]:
    """Give a free CUDA device, waiting for one if all are taken, or the CPU where there is none.

    Devices are those of CUDA_VISIBLE_DEVICES, which a queue such as SLURM sets. One lock file a device lies in a
    folder of the host; the kernel lets go of it when the process ends, however it ends.
    """
    if not torch.cuda.is_available():
        yield torch.device("cpu")
        return
    # Without it products on CUDA may add in another order from run to run; read when the first one is made.
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    names = [name for name in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if name]
    names = names or [str(number) for number in range(torch.cuda.device_count())]
    folder = Path(tempfile.gettempdir()) / "ctxgcd-devices"
    folder.mkdir(exist_ok=True)
    while True:
        for number, name in enumerate(names):
            lock = FileLock(folder / f"{name}.lock")
            try:
                lock.acquire(timeout=0)
            except Timeout:
                continue
            try:
                yield torch.device("cuda", number)
            finally:
                lock.release()
            return
        time.sleep(wait)
