"""The plan of some runs: every one with its cost, sums a benchmark, and where each number comes from."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ctxgcd.config import Params
from ctxgcd.files import write_rows
from ctxgcd.plan.rates import ASSUMED, VARIABLE, Measured, Memory, Rate, measured
from ctxgcd.plan.sizes import disk_of
from ctxgcd.plan.work import Work, classes_of, images_in, kept_views, work_of
from ctxgcd.runs import Run, protocol_of, resolve
from ctxgcd.targets import existing_metrics

COLUMNS = ["benchmark", "row", "seed", "state", "views", "device_hours", "views_per_second", "rate_from"]
COLUMNS += ["peak_memory_mb", "peak_device_memory_mb", "memory_from"]
DONE, TO_TRAIN, TO_MAKE = "done", "to train", "to make"
KEPT = "(kept features)"  # stands for a row: what the runs of a benchmark share
UNKNOWN = "?"


@dataclass(frozen=True)
class Line:
    """A run (or what runs share: seed None) with its cost; one that is done costs nothing."""

    benchmark: str
    row: str
    seed: int | None
    state: str
    work: Work
    rate: Rate
    memory: Memory

    @property
    def hours(self) -> float:
        return self.rate.hours(self.work) if self.state != DONE else 0.0

    @property
    def views(self) -> int:
        return self.work.views if self.state != DONE else 0


def write_plan(params: Params, runs: Iterable[Run], out: Path) -> str:
    """Write every run with its cost to the CSV `out`, and return the plan for reading."""
    past, runs = measured(params), list(dict.fromkeys(runs))
    if not runs:
        return "These targets need no run."
    lines = plan(params, runs, past)
    write_rows(out, COLUMNS, map(_row, lines))
    benchmarks = list(dict.fromkeys(line.benchmark for line in lines))
    sums = [_sum(params, name, [line for line in lines if line.benchmark == name]) for name in benchmarks]
    return "\n".join([*_listed(lines), "", *_summed(sums), "", *_notes(lines, out)])


def plan(params: Params, runs: Iterable[Run], past: Measured) -> list[Line]:
    """One line a run, benchmark by benchmark; after those of each the features that they share, if any is to train."""
    asked = sorted(runs, key=lambda run: run.benchmark)
    order = list(dict.fromkeys(run.benchmark for run in runs))
    planned = [{"benchmark": run.benchmark, "row": run.row, "seeds": [run.seed]} for run in asked]
    done = {Run(one["benchmark"], one["row"], one["seed"]) for one in existing_metrics(params, planned)}
    lines = []
    for benchmark in order:
        entry = params.benchmarks[benchmark]
        images, resolved = images_in(entry), []
        for run in (run for run in runs if run.benchmark == benchmark):
            p = resolve(params, benchmark, run.row, run.seed)
            work, rate = work_of(images, classes_of(entry, p), p), past.rate(benchmark, p)
            memory = past.memory(benchmark, p)
            lines.append(Line(benchmark, run.row, run.seed, DONE if run in done else TO_TRAIN, work, rate, memory))
            resolved += [p] * (run not in done)
        if shared := sum(kept_views(images, resolved).values()):
            whole = resolve(params, benchmark, "simgcd+view_bank=0", params.seeds[0])
            rate, memory = past.rate(benchmark, whole), past.memory(benchmark, whole)
            lines.append(Line(benchmark, KEPT, None, TO_MAKE, Work(test=shared), rate, memory))
    return lines


def _row(line: Line) -> dict[str, Any]:
    rate = line.rate.of(line.work)
    return {
        **{"benchmark": line.benchmark, "row": line.row, "seed": line.seed, "state": line.state, "views": line.views},
        **{"device_hours": f"{line.hours:.6g}", "views_per_second": f"{rate:.6g}" if rate else ""},
        **{"rate_from": line.rate.source, "memory_from": line.memory.source},
        **{"peak_memory_mb": line.memory.host, "peak_device_memory_mb": line.memory.device},
    }


def _sources(lines: Iterable[Line]) -> list[str]:
    return list(dict.fromkeys(line.rate.source for line in lines))


def _listed(lines: list[Line]) -> list[str]:
    """A line for each row of each benchmark: its seeds, how many are done, the cost of the others."""
    sources = _sources(lines)
    groups: dict[tuple[str, str], list[Line]] = {}
    for line in lines:
        groups.setdefault((line.benchmark, line.row), []).append(line)
    head = ["benchmark", "row", "seeds", "done", "to train", "million views", "device hours", "views/s", "from"]
    table = []
    for (benchmark, row), own in groups.items():
        done, rate = sum(line.state == DONE for line in own), own[0].rate.of(own[0].work)
        seeds = [line.seed for line in own if line.seed is not None]
        cost = [f"{sum(line.views for line in own) / 1e6:,.1f}", _hours(sum(line.hours for line in own))]
        counts = [str(done), str(len(own) - done)] if seeds else ["", ""]
        source = f"[{sources.index(own[0].rate.source) + 1}]"
        table.append([benchmark, row, _seeds(seeds), *counts, *cost, f"{rate:,.1f}" if rate else "", source])
    return _aligned(head, table, texts=3)


def _sum(params: Params, benchmark: str, lines: list[Line]) -> list[float | None]:
    """Of a benchmark: runs, done, to train, million views, hours, GB of store, kept, results and scratch, peak MiB."""
    runs = [line for line in lines if line.seed is not None]
    asked = [line for line in runs if line.state != DONE]
    sizes: list[float | None] = [0.0] * 4
    if asked:
        resolved = [resolve(params, benchmark, line.row, line.seed or 0) for line in asked]
        entry = params.benchmarks[benchmark]
        disk = disk_of(entry, images_in(entry), protocol_of(params, benchmark).resize, resolved)
        sizes = [None if b is None else b / 1e9 for b in (disk.store, disk.kept, disk.results, disk.scratch)]
    peaks = [
        max((peak for peak in found if peak is not None), default=None)
        for found in ([line.memory.host for line in runs], [line.memory.device for line in runs])
    ]
    counts = [len(runs), len(runs) - len(asked), len(asked), sum(line.views for line in lines) / 1e6]
    return [benchmark, *counts, sum(line.hours for line in lines), *sizes, *peaks]  # type: ignore[list-item]


def _summed(sums: list[list[Any]]) -> list[str]:
    head = ["benchmark", "runs", "done", "to train", "million views", "device hours"]
    head += ["store GB", "kept GB", "results GB", "scratch GB", "host MiB", "device MiB"]
    if len(sums) > 1:
        columns = list(zip(*sums, strict=True))[1:]
        added = [sum(filter(None, column)) for column in columns[:8]]
        largest = [max(filter(None, column), default=None) for column in columns[8:]]
        sums = [*sums, ["all", *added, *largest]]
    digits = [0, 0, 0, 1, None, 2, 2, 2, 2, 0, 0]
    table = [
        [
            row[0],
            *(
                UNKNOWN if value is None else _hours(value) if places is None else f"{value:,.{places}f}"
                for value, places in zip(row[1:], digits, strict=True)
            ),
        ]
        for row in sums
    ]
    return _aligned(head, table, texts=1)


def _notes(lines: list[Line], out: Path) -> list[str]:
    said = [f"[{number}] {source}" for number, source in enumerate(_sources(lines), start=1)]
    memory = dict.fromkeys(line.memory.source for line in lines if line.seed is not None)
    notes = [
        *said,
        f"Memory: {'; '.join(memory)}. A run's peak; of a benchmark the largest that is known ({UNKNOWN}: not known).",
        f"{KEPT}: test views and view banks that are made once for all runs of a benchmark; none, where work/ holds "
        "them.",
        "Disk: of the runs to train, as if work/ were empty; scratch: what one training takes while it runs.",
        "Done: made with the parameters asked for now; a change of the code may ask for them again "
        "(snakemake -n TARGET tells).",
        f"Each run: {out}.",
    ]
    if any(line.rate.source.startswith("assumed") for line in lines if line.state != DONE):
        notes.append(f"{ASSUMED:g} views a second are assumed; {VARIABLE} sets your device's rate.")
    return notes


def _hours(hours: float) -> str:
    return f"{hours:,.1f}" if hours >= 10 or not hours else f"{hours:.3f}"


def _seeds(seeds: list[int]) -> str:
    """`0-9` of consecutive ones, else each."""
    if len(seeds) > 2 and seeds == list(range(seeds[0], seeds[-1] + 1)):
        return f"{seeds[0]}-{seeds[-1]}"
    return ",".join(map(str, seeds))


def _aligned(head: Sequence[str], rows: Sequence[Sequence[str]], texts: int) -> list[str]:
    """Columns under a head: the first `texts` of them to the left, numbers to the right."""
    widths = [max(len(row[column]) for row in (head, *rows)) for column in range(len(head))]
    return [
        "  ".join(
            cell.ljust(width) if column < texts else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in (head, *rows)
    ]
