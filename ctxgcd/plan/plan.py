"""The printed plan: rows with their costs, sums for each benchmark, and the sources of the numbers."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from ctxgcd.catalogue.entries import METHODS
from ctxgcd.config import Params
from ctxgcd.pipeline.resolve import protocol_of, resolve
from ctxgcd.pipeline.rows import parse_row
from ctxgcd.pipeline.runs import Run
from ctxgcd.plan.lines import KEPT, TO_TRAIN, Line, plan
from ctxgcd.plan.rates import VARIABLE, measured
from ctxgcd.plan.shared import Together, total, trained_together
from ctxgcd.plan.sizes import disk_of
from ctxgcd.plan.work import images_in
from ctxgcd.utils.files import write_rows

COLUMNS = ["benchmark", "row", "seed", "state", "views", "device_hours", "bound", "views_per_second", "rate_from"]
COLUMNS += ["peak_memory_mb", "peak_device_memory_mb", "memory_from"]
LISTED = ["benchmark", "row", "seeds", "done", "to train", "million views", "device hours", "views/s", "from"]
SUMMED = ["benchmark", "runs", "done", "to train", "million views", "device hours"]
SUMMED += ["store GB", "cached GB", "results GB", "scratch GB", "host MiB", "device MiB"]
SHARED = ["benchmark", "runs that share", "alone: million views", "device hours"]
SHARED += ["together: million views", "device hours", "share of alone"]
UNKNOWN, AT_LEAST = "?", ">="


def write_plan(params: Params, runs: Iterable[Run], out: Path) -> str:
    """Write every run with its cost to the CSV `out`, and return the plan as text."""
    runs = list(dict.fromkeys(runs))
    if not runs:
        return "These targets need no run."
    lines = plan(params, runs, measured(params))
    write_rows(out, COLUMNS, map(_row, lines))
    shared = trained_together(params, lines)
    parts = [_listed(lines), _summed(params, lines), *[_shared(shared)] * bool(shared), _notes(lines, out)]
    return "\n\n".join("\n".join(part) for part in parts)


def _row(line: Line) -> dict[str, Any]:
    rate = line.rate.of(line.work)
    return {
        **{"benchmark": line.benchmark, "row": line.row, "seed": line.seed, "state": line.state, "views": line.views},
        **{"device_hours": f"{line.hours:.6g}", "bound": "lower" if line.least else ""},
        **{"views_per_second": f"{rate:.6g}" if rate else ""},
        **{"rate_from": line.rate.source, "memory_from": line.memory.source},
        **{"peak_memory_mb": line.memory.host, "peak_device_memory_mb": line.memory.device},
    }


def _listed(lines: list[Line]) -> list[str]:
    """Return one line per row of each benchmark: seeds, number of finished runs, cost of the others."""
    sources, groups = _sources(lines), dict[tuple[str, str], list[Line]]()
    for line in lines:
        groups.setdefault((line.benchmark, line.row), []).append(line)
    table = []
    for (benchmark, row), own in groups.items():
        seeds = [line.seed for line in own if line.seed is not None]
        done, rate = sum(not line.costs for line in own), own[0].rate.of(own[0].work)
        counts = [str(done), str(len(own) - done)] if seeds else ["", ""]
        cost = [f"{sum(line.views for line in own) / 1e6:,.1f}", _hours(sum(line.hours for line in own))]
        cost = [f"{AT_LEAST} {text}" for text in cost] if any(line.least for line in own) else cost
        source = f"[{sources.index(own[0].rate.source) + 1}]"
        table.append([benchmark, row, _seeds(seeds), *counts, *cost, f"{rate:,.1f}" if rate else "", source])
    return _aligned(LISTED, table, texts=3)


def _summed(params: Params, lines: list[Line]) -> list[str]:
    """Return one line per benchmark and a total: runs, cost, disk and memory."""
    by_name = {name: [line for line in lines if line.benchmark == name] for name in (line.benchmark for line in lines)}
    sums = [_sum(params, name, own) for name, own in by_name.items()]
    names = list(by_name)
    if len(sums) > 1:
        *added, scratch, host, device = zip(*sums, strict=True)
        sums.append([*map(_added, added), *map(_largest, (scratch, host, device))])
        names.append("all")
    table = [[name, *map(_text, SUMMED[1:], values)] for name, values in zip(names, sums, strict=True)]
    return _aligned(SUMMED, table, texts=1)


def _sum(params: Params, benchmark: str, lines: list[Line]) -> list[float | None]:
    """Return the values of a benchmark for the columns SUMMED."""
    runs = [line for line in lines if line.seed is not None]
    to_train = [resolve(params, benchmark, line.row, line.seed or 0) for line in runs if line.state == TO_TRAIN]
    entry, resize = params.benchmarks[benchmark], protocol_of(params, benchmark).resize
    disk = disk_of(entry, images_in(entry), resize, to_train)
    sizes = [None if size is None else size / 1e9 for size in (disk.store, disk.kept, disk.results, disk.scratch)]
    views, hours = sum(line.views for line in lines) / 1e6, sum(line.hours for line in lines)
    host, device = _largest(line.memory.host for line in runs), _largest(line.memory.device for line in runs)
    return [len(runs), len(runs) - len(to_train), len(to_train), views, hours, *sizes, host, device]


def _shared(benchmarks: list[Together]) -> list[str]:
    """Return one line per benchmark with its cost if each run is trained alone, and with `snakemake together`."""
    table = []
    for one in [*benchmarks, total(benchmarks)] if len(benchmarks) > 1 else benchmarks:
        views = [f"{cost.views / 1e6:,.1f}" for cost in (one.alone, one.least, one.most)]
        hours = [_hours(cost.hours) for cost in (one.alone, one.least, one.most)]
        share = [f"{cost.views / one.alone.views:.0%}" for cost in (one.least, one.most)]
        spans = [" - ".join(pair) for pair in (views[1:], hours[1:], share)]
        table.append([one.benchmark, str(one.sharing), views[0], hours[0], *spans])
    return [
        "Runs with new views of the same backbone, seed and batches, trained by `snakemake together`:",
        *_aligned(SHARED, table, texts=1),
        "The costs are those of all runs of a benchmark; runs that do not share cost the same in both cases. Lower",
        "values: all rows of a step have the same neighbour images; upper values: no two rows have one in common. The",
        "tails and heads of all rows are not counted (`make bench` measures them).",
    ]


def _added(values: Iterable[float | None]) -> float | None:
    """Return the sum, or None if any value is None."""
    known = list(values)
    return None if None in known else sum(filter(None, known))


def _largest(values: Iterable[float | None]) -> float | None:
    """Return the largest known value, or None if all are None."""
    return max((value for value in values if value is not None), default=None)


def _sources(lines: Iterable[Line]) -> list[str]:
    """Return the notes: sources of rates and memory by number, and the meaning of the columns."""
    rates, memories = ([getattr(line, what).source for line in lines] for what in ("rate", "memory"))
    return [source for source in dict.fromkeys(rates + memories) if source]


def _notes(lines: list[Line], out: Path) -> list[str]:
    sources = _sources(lines)
    of_memory = sorted({sources.index(line.memory.source) + 1 for line in lines if line.memory.source})
    known = "".join(f"[{number}]" for number in of_memory)
    return [
        *(f"[{number}] {source}" for number, source in enumerate(sources, start=1)),
        f"{VARIABLE} sets the rate of your device, which takes precedence over all others.",
        *_float32(lines),
        *dict.fromkeys(
            f"{AT_LEAST}: a lower bound, and so is a sum with it: {line.least}." for line in lines if line.least
        ),
        *_whole(lines),
        f"Memory: the largest known peak of a run{f', from {known}' if known else ''}; {UNKNOWN}: unknown.",
        f"{KEPT}: test views and view banks, made once for all runs of a benchmark; work/ may already contain them.",
        "Disk: space of the runs to train if work/ is empty, including the copies in the run cache; scratch: temporary",
        "space of one training.",
        "Done: finished with the current parameters (`snakemake -n TARGET` shows whether changed code makes it again)",
        "or cached in work/runs, from where it is copied.",
        f"All runs: {out}.",
    ]


def _float32(lines: list[Line]) -> list[str]:
    """Return the cost in float32 of the runs to train in another precision, if it is known."""
    other = [line for line in lines if line.views and line.precision != "float32"]
    if not other:
        return []
    what = f"Precision {', '.join(sorted({line.precision for line in other}))}:"
    if any(line.float32 is None for line in other):
        return [
            f"{what} in float32, as the published numbers, cached features take twice the space. Device hours in",
            "float32 are unknown: no device has measured rates of both precisions (`make bench` measures them).",
        ]
    own = _hours(sum(line.hours for line in other))
    float32 = _hours(sum(line.float32.hours(line.work) for line in other if line.float32))
    return [f"{what} in float32, as the published numbers, {float32} device hours instead of {own}."]


def _whole(lines: list[Line]) -> list[str]:
    """Return what further devices bring to the runs to train whose gradients run through the whole backbone."""
    methods = [parse_row(line.row).method for line in lines if line.state == TO_TRAIN]
    names = ", ".join(name for name in dict.fromkeys(methods) if METHODS[name].whole)
    if not names:
        return []
    return [
        f"{names}: gradients run through the whole backbone and, in a second stage, a teacher, counted as the views of",
        "the other rows in the same time. More devices give almost no speed-up.",
    ]


def _text(name: str, value: float | None) -> str:
    if value is None:
        return UNKNOWN
    if name == "device hours":
        return _hours(value)
    digits = 2 if name.endswith("GB") else 1 if name == "million views" else 0
    return f"{value:,.{digits}f}"


def _hours(hours: float) -> str:
    return f"{hours:,.1f}" if hours >= 10 or not hours else f"{hours:.3f}"


def _seeds(seeds: list[int]) -> str:
    """Format seeds: `0-9` if they are consecutive, else as a list."""
    if len(seeds) > 2 and seeds == list(range(seeds[0], seeds[-1] + 1)):
        return f"{seeds[0]}-{seeds[-1]}"
    return ",".join(map(str, seeds))


def _aligned(head: Sequence[str], rows: Sequence[Sequence[str]], texts: int) -> list[str]:
    """Format lines under a head: the first `texts` columns are left-aligned, the others right-aligned."""
    widths = [max(len(row[column]) for row in (head, *rows)) for column in range(len(head))]
    return [
        "  ".join(
            cell.ljust(width) if column < texts else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in (head, *rows)
    ]
