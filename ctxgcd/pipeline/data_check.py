"""The printed data check: data, weights and disk space of every requested benchmark."""

from __future__ import annotations

import shutil
import textwrap
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from ctxgcd.benchmarks.check import CheckResult, check_section
from ctxgcd.benchmarks.readers.reader import store_bytes
from ctxgcd.benchmarks.readers.registry import reader_of
from ctxgcd.models.pretrained import weights_state
from ctxgcd.names import PARTS
from ctxgcd.pipeline.paths import duplicates_file
from ctxgcd.utils.files import read_rows

WIDTH = 100  # columns of a terminal


def check_requested(sections: Sequence[Mapping[str, Any]]) -> str:
    """Check the benchmarks of the given sections (Jobs.check).

    Prints the table and returns what is not ready, as in `the data of cub is not ready`, or an empty string.
    """
    results = [check_section(section) for section in sections]
    results = [replace(result, remarks=[*result.remarks, *_duplicates(result.benchmark)]) for result in results]
    print(table(results, [_gigabytes(section) for section in sections]))
    weights = {section["backbone"]: _weights_state(section) for section in sections}
    print("\n" + "\n".join(_wrapped(f"weights of {name}: {state}", "") for name, (_, state) in weights.items()))
    print(_disk(sections), flush=True)
    return not_ready(results, [name for name, (ready, _) in weights.items() if not ready])


def problem_of(section: Mapping[str, Any]) -> str:
    """Return what a benchmark lacks before its runs can start, including weights, or an empty string."""
    result = check_section(section)
    ready, state = _weights_state(section)
    return result.problem or ("" if ready else f"weights: {state}")


def _weights_state(section: Mapping[str, Any]) -> tuple[bool, str]:
    return weights_state(section["model"], section["weights"], section["sha256"])


def not_ready(results: Iterable[CheckResult], weights: Sequence[str] = ()) -> str:
    """Return what is not ready in words, or an empty string."""
    data = ", ".join(result.benchmark for result in results if not result.ready)
    faults = [f"the data of {data}"] * bool(data) + [f"the weights of {', '.join(weights)}"] * bool(weights)
    are = "are" if len(faults) > 1 else "is"
    return f"{' and '.join(faults)} {are} not ready" if faults else ""


def table(results: Sequence[CheckResult], gigabytes: Sequence[tuple[float, float]] = ()) -> str:
    """Return a plain-text table of all benchmarks, followed by what is missing and how to get it.

    gigabytes: sizes of the official files and of the image store of each benchmark; 0 if unknown.
    """
    header = [
        "benchmark",
        "state",
        "train found / expected",
        "test found / expected",
        "classes",
        "GB data + store",
        "folder",
    ]
    sizes = gigabytes or [(0.0, 0.0)] * len(results)
    rows = [
        [
            item.benchmark,
            item.state,
            *(_count(item, what) for what in (*PARTS, "classes")),
            " + ".join(f"{size:.1f}" if size else "?" for size in size),
            str(item.folder),
        ]
        for item, size in zip(results, sizes, strict=True)
    ]
    widths = [max(len(row[column]) for row in (header, *rows)) for column in range(len(header))]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in (header, *rows)]
    lines.insert(1, "  ".join("-" * width for width in (*widths[:-1], len("folder"))))
    for item in results:
        notes = [f"{item.benchmark}: {item.problem}"] * bool(item.problem)
        if not item.ready:
            notes += [f"looked in: {item.folder}", f"how to get it: {item.how_to_get}"]
        if notes:
            lines += ["", *(_wrapped(note, "    " if place else "") for place, note in enumerate(notes))]
        lines += [_wrapped(f"{item.benchmark}: {remark}", "") for remark in item.remarks]
    return "\n".join(line.rstrip() for line in lines)


def _gigabytes(section: Mapping[str, Any]) -> tuple[float, float]:
    """Return the sizes of a benchmark's official files and of its packed images."""
    reader = reader_of(section)
    images = sum(section["images"].values()) if section["images"] != "any" else 0
    return reader.gigabytes, store_bytes(reader, images, section["resize"]) / 1e9


def _disk(sections: Sequence[Mapping[str, Any]]) -> str:
    needed = sum(_gigabytes(section)[1] for section in sections)
    free = shutil.disk_usage(".").free / 1e9
    short = "" if needed < free else "; this is not enough: move this folder to a larger disk"
    return f"disk: image stores need about {needed:.1f} GB below work/, {free:.0f} GB are free{short}"


def _count(item: CheckResult, what: str) -> str:
    expected = item.expected.get(what, 0)
    return f"{item.found[what]:,} / {f'{expected:,}' if expected else '-'}"


def _wrapped(note: str, indent: str) -> str:
    return textwrap.fill(
        note,
        WIDTH,
        initial_indent=indent,
        subsequent_indent="    ",
        break_long_words=False,
        break_on_hyphens=False,
    )


def _duplicates(benchmark: str) -> list[str]:
    """Return the result of the duplicate search if it exists; it runs after packing, because it needs the pixels."""
    file = Path(duplicates_file(benchmark))
    if not file.is_file():
        return []
    found = Counter(read_rows(file, usecols=["kind"])["kind"])
    return [
        f"{found['equal']} pairs of equal and {found['near']} of nearly equal images over D^l, D^u and test ({file})"
    ]
