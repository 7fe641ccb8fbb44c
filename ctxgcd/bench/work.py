"""A measurement: our way and a plain reference, each in a process of its own."""

from __future__ import annotations

import multiprocessing
import resource
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch

from ctxgcd.files import write_rows
from ctxgcd.training.record import device_name

COLUMNS = ["work", "device", "unit", "ours", "reference", "ratio", "peak_memory_mb", "reference_memory_mb", "n"]
Part = Callable[[Path, int, torch.device], float]


@dataclass(frozen=True)
class Work:
    """A step and its plain reference: each does the work of n units in the folder and returns its seconds.

    prepare: what both need, not measured. threads: of each of them on a CPU. least: the fewest units that make sense.
    """

    name: str
    unit: str
    n: int
    prepare: Callable[[Path, int], None]
    ours: Part
    reference: Part
    threads: int = 1
    least: int = 1


def bench(works: Sequence[Work], out: Path, scale: float, device: torch.device) -> None:
    """Measure every work, print it and write `out`; `scale` shrinks or grows all n."""
    rows = []
    for work in works:
        n = max(work.least, round(work.n * scale))
        with TemporaryDirectory() as name:
            _measured(work.prepare, work.threads, Path(name), n)
            reference, plain_memory = _measured(work.reference, work.threads, Path(name), n, device)
            ours, memory = _measured(work.ours, work.threads, Path(name), n, device)
        row = {"work": work.name, "device": device_name(device), "unit": work.unit, "n": n}
        row |= {"ours": n / ours, "reference": n / reference, "ratio": reference / ours}
        row |= {"peak_memory_mb": memory, "reference_memory_mb": plain_memory}
        rows.append({key: f"{value:.4g}" if isinstance(value, float) else value for key, value in row.items()})
        print(
            f"{work.name:<52} {n / ours:>12,.1f} {work.unit:<9} reference {n / reference:>12,.1f}   "
            f"{reference / ours:>7.2f} x   {memory:,.0f} MiB against {plain_memory:,.0f}",
            flush=True,
        )
        write_rows(out, COLUMNS, rows)


def timed(call: Callable[[], object], device: torch.device) -> float:
    """Seconds that a call takes, what it leaves to a GPU included."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    begun = time.perf_counter()
    call()
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter() - begun


def _measured(part: Callable[..., Any], threads: int, *arguments: Any) -> tuple[Any, float]:
    """Return what a function returns in a fresh process of so many threads, and that process's peak memory in MiB."""
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
        return pool.submit(_with_memory, part, threads, *arguments).result()


def _with_memory(part: Callable[..., Any], threads: int, *arguments: Any) -> tuple[Any, float]:
    torch.set_num_threads(threads)
    result = part(*arguments)
    return result, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
