"""A measurement of our code and of a plain reference, each in a separate process."""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch

from ctxgcd.training.provenance import device_name, own_peak_memory
from ctxgcd.utils.files import write_rows

WORK_COLUMNS = ["work", "device", "unit", "ours", "reference", "ratio", "peak_memory_mb", "n"]
Part = Callable[[Path, int, torch.device], float]


@dataclass(frozen=True)
class Work:
    """A step and its plain reference: each processes n units in the folder and returns the seconds.

    Attributes:
        sizes: numbers of units n, measured separately.
        prepare: preparation for both, not measured.
        plain: number of units of the reference if n would take too long; 0: n.
        threads: number of CPU threads of each.
        least: minimum number of units.
        of_memory: compare the peak memory in MiB instead of the speed.
    """

    name: str
    unit: str
    sizes: tuple[int, ...]
    prepare: Callable[[Path, int], None]
    ours: Part
    reference: Part
    plain: int = 0
    threads: int = 1
    least: int = 1
    of_memory: bool = False


def bench(works: Sequence[Work], out: Path, scale: float, device: torch.device) -> list[dict[str, Any]]:
    """Run all benchmarks, print and write the results to `out`, and return the rows; `scale` multiplies all sizes."""
    rows: list[dict[str, Any]] = []
    references: dict[tuple[Part, int], tuple[float, float]] = {}  # several benchmarks share a reference
    for work, size in [(each, size) for each in works for size in each.sizes]:
        n, plain = (max(work.least, round(units * scale)) for units in (size, work.plain or size))
        with TemporaryDirectory() as name:
            _measured(work.prepare, work.threads, Path(name), n)
            if (work.reference, plain) not in references:
                found = _measured(work.reference, work.threads, Path(name), plain, device)
                references[work.reference, plain] = found
            reference, plain_memory = references[work.reference, plain]
            ours, memory = _measured(work.ours, work.threads, Path(name), n, device)
        if work.of_memory:
            values = (memory, plain_memory, plain_memory / memory)
        else:
            values = (n / ours, plain / reference, reference / plain / (ours / n))
        rows.append(row_of(work.name, device, work.unit, *values, memory, n))
        write_rows(out, WORK_COLUMNS, rows)
    return rows


def row_of(
    name: str, device: torch.device, unit: str, ours: float, reference: float, ratio: float, memory: float, n: int
) -> dict[str, Any]:
    """Return a row of results, and print it."""
    print(
        f"{name:<50} {n:>9,}  {ours:>11,.1f} {unit:<9} reference {reference:>11,.1f}  {ratio:>7.2f} x  "
        f"{memory:>6,.0f} MiB",
        flush=True,
    )
    numbers = (ours, reference, ratio, memory)
    return dict(
        zip(WORK_COLUMNS, [name, device_name(device), unit, *(f"{value:.4g}" for value in numbers), n], strict=True)
    )


def nothing(folder: Path, n: int) -> None:
    """Do nothing; for benchmarks without preparation."""


def timed(call: Callable[[], object], device: torch.device) -> float:
    """Return the seconds of a call, including its pending work on a GPU."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    start = time.perf_counter()
    call()
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter() - start


def _measured(part: Callable[..., Any], threads: int, *arguments: Any) -> tuple[Any, float]:
    """Call a function in a new process with this number of threads; return its result and the peak memory in MiB.

    On CUDA, the peak memory is that of the device, if it was used.
    """
    context = multiprocessing.get_context("forkserver")  # forks from a process that has only imported torch
    context.set_forkserver_preload(["ctxgcd.bench.training", "ctxgcd.bench.clusters"])
    with ProcessPoolExecutor(1, context) as pool:
        return pool.submit(_with_memory, part, threads, *arguments).result()


def _with_memory(part: Callable[..., Any], threads: int, *arguments: Any) -> tuple[Any, float]:
    torch.set_num_threads(threads)
    result = part(*arguments)
    if torch.cuda.is_available() and (used := torch.cuda.max_memory_allocated()):
        return result, used / 2**20
    return result, own_peak_memory()
