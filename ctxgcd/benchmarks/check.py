"""Which benchmarks are there, complete and official, told before anything is trained."""

from __future__ import annotations

import json
import os
import shutil
import textwrap
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import pandas as pd

from ctxgcd.benchmarks.class_lists import ClassList, load
from ctxgcd.benchmarks.opening import MissingData, missing
from ctxgcd.benchmarks.own import OwnImages
from ctxgcd.benchmarks.places import place_of
from ctxgcd.benchmarks.registry import source_of
from ctxgcd.benchmarks.source import Source, store_bytes
from ctxgcd.benchmarks.split import make_split
from ctxgcd.benchmarks.weights import weights_state
from ctxgcd.errors import UserError
from ctxgcd.files import read_rows
from ctxgcd.names import PARTS

WIDTH = 100  # columns of a terminal
State = Literal["found", "missing", "wrong"]


@dataclass(frozen=True)
class CheckResult:
    """One benchmark's state. `expected` and `found` count train, test and classes; 0 or absent: not known.

    `problem` says why it cannot be used; `remarks` what else to know.
    """

    benchmark: str
    state: State
    folder: Path
    expected: Mapping[str, int]
    found: Mapping[str, int]
    problem: str
    how_to_get: str
    remarks: Sequence[str] = field(default_factory=list)

    @property
    def ready(self) -> bool:
        """Whether runs of this benchmark can start."""
        return self.state == "found"


def check(
    benchmark: str,
    source: Source,
    folder: Path,
    class_list: ClassList | None,
    expected: Mapping[str, int],
    draw: Mapping[str, Any] | None = None,
) -> CheckResult:
    """Compare the files on disk with the official counts of images of listed classes; decodes nothing.

    Args:
        class_list: the versioned list; None for own images, whose classes the folder tells.
        expected: counts of `train`, `test` and `classes`; 0 or absent means that none is known.
        draw: `seed` and `labelled_share` of the split, which is then tried too.
    """
    found = dict.fromkeys((*PARTS, "classes"), 0)
    if class_list:
        expected = {**expected, "classes": class_list.k}

    def result(state: State, problem: str = "", remarks: Sequence[str] = ()) -> CheckResult:
        return CheckResult(benchmark, state, folder, expected, found, problem, source.how_to_get, remarks)

    try:
        if not folder.is_dir():
            raise missing(folder)
        manifest = source.manifest(folder)
        labelled = None
        if class_list is None:
            assert isinstance(source, OwnImages)
            class_list, labelled = source.divide(folder, manifest, benchmark)
    except MissingData as error:
        return result("missing", str(error))
    except UserError as error:
        return result("wrong", str(error))
    except OSError as error:
        return result("wrong", f"{error.filename or folder} cannot be read ({error.strerror}); repair or replace it")

    listed = manifest[manifest["class_id"].isin(class_list.old + class_list.new)]
    found |= {part: int((listed["part"] == part).sum()) for part in PARTS}
    found["classes"] = int(listed.loc[listed["part"] == "train", "class_id"].nunique())
    no_test = bool(source.test_files) and expected.get("test", 0) > 0 and "test" not in set(manifest["part"])
    differ = [
        f"{found[what]:,} {name} found, {expected[what]:,} expected"
        for what, name in (("train", "train images"), ("test", "test images"), ("classes", "classes"))
        if expected.get(what, 0) not in (0, found[what]) and not (what == "test" and no_test)
    ]
    if differ:
        right = (
            "write the right ones in params.yaml" if isinstance(source, OwnImages) else "get the complete official data"
        )
        return result("wrong", f"{'; '.join(differ)}; {right}")
    if draw:
        try:
            order = source.drawn_order
            split = make_split(manifest, class_list, **draw, drawn_order=order, labelled_paths=labelled)
            unseen = sorted(set(split.loc[split["old"] == 1, "class_name"]) - _labelled_classes(split))
        except UserError as error:
            return result("wrong", str(error))
    # Class folders are the disk itself, and of packed files each row was read; other lists may name absent images.
    if source.list_files(folder) and not source.packed and (absent := _absent(folder, listed["path"])):
        return result("missing", f"{len(absent):,} listed images are not there, first {folder / absent[0]}")
    remarks = list(source.remarks(folder, manifest))
    if draw and unseen:
        remarks.append(f"{len(unseen)} labelled classes have no image in D^l, first {unseen[0]!r}: too few images")
    if no_test:
        remarks.append(f"no official test part (optional), so inductive columns stay empty: no {source.test_files[0]}")
    return result("found", remarks=remarks)


def check_section(section: Mapping[str, Any]) -> CheckResult:
    """Check a benchmark by its section of params.yaml."""
    own = section["reader"] == "folder"
    class_list = None if own else load(section["class_list"], section["classes"])
    counts = section["images"] if section["images"] != "any" else {}
    expected = {**counts, "classes": section["classes"]} if own else counts
    draw = {key: section[key] for key in ("seed", "labelled_share")}
    result = check(section["benchmark"], source_of(section), place_of(section), class_list, expected, draw)
    return replace(result, remarks=[*result.remarks, *_duplicates(section["benchmark"])])


def problem_of(section: Mapping[str, Any]) -> str:
    """Say in one line what a benchmark lacks before its runs could start, its weights included, or nothing."""
    result = check_section(section)
    ready, state = weights_state(section["weights"], section["sha256"])
    return result.problem or ("" if ready else f"weights: {state}")


def _duplicates(benchmark: str) -> list[str]:
    """Say what the search for equal images found, where it was made: after packing, because it needs their pixels."""
    file = Path(f"results/duplicates_{benchmark}.csv")
    if not file.is_file():
        return []
    found = Counter(read_rows(file, usecols=["kind"])["kind"])
    return [f"{found['equal']} pairs of images equal and {found['near']} nearly equal over D^l, D^u and test ({file})"]


def check_requested() -> str:
    """Check the benchmarks whose sections the workflow leaves in the environment variable CTXGCD_REQUESTED.

    Prints the table and returns the sentence that names what is not ready, or nothing.
    """
    sections = [json.loads(section) for section in json.loads(os.environ["CTXGCD_REQUESTED"])]
    results = [check_section(section) for section in sections]
    print(table(results, [_gigabytes(section) for section in sections]))
    weights = {section["backbone"]: weights_state(section["weights"], section["sha256"]) for section in sections}
    print("\n" + "\n".join(_wrapped(f"weights of {name}: {state}", "") for name, (_, state) in weights.items()))
    print(_disk(sections), flush=True)
    return not_ready(results, [name for name, (ready, _) in weights.items() if not ready])


def not_ready(results: Iterable[CheckResult], weights: Sequence[str] = ()) -> str:
    """Return the sentence that names what is not ready, or nothing."""
    data = ", ".join(result.benchmark for result in results if not result.ready)
    faults = [f"the data of {data}"] * bool(data) + [f"the weights of {', '.join(weights)}"] * bool(weights)
    are = "are" if len(faults) > 1 else "is"
    why = (
        f"{' and '.join(faults)} {are} not ready, so nothing was trained; `snakemake check_data` shows what is missing"
    )
    return why if faults else ""


def table(results: Sequence[CheckResult], gigabytes: Sequence[tuple[float, float]] = ()) -> str:
    """Return one plain-text table of all benchmarks, then what is missing and how to get it.

    gigabytes: of the official files and of the image store of each, 0 where not known.
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


def _labelled_classes(split: pd.DataFrame) -> set[str]:
    return set(split.loc[split["role"] == "labelled", "class_name"])


def _gigabytes(section: Mapping[str, Any]) -> tuple[float, float]:
    """Of a benchmark's official files, and of its packed images."""
    source = source_of(section)
    images = sum(section["images"].values()) if section["images"] != "any" else 0
    return source.gigabytes, store_bytes(source, images, section["resize"]) / 1e9


def _disk(sections: Sequence[Mapping[str, Any]]) -> str:
    needed = sum(_gigabytes(section)[1] for section in sections)
    free = shutil.disk_usage(".").free / 1e9
    short = "" if needed < free else "; not enough, so put this folder on a larger disk"
    return f"disk: image stores need about {needed:.1f} GB below work/, {free:.0f} GB are free{short}"


def _absent(folder: Path, paths: Iterable[str]) -> list[str]:
    """Return listed files that are not on disk, with one listing a folder."""
    listings: dict[str, set[str]] = {}
    absent = []
    for path in paths:
        parent, name = os.path.split(path)
        if parent not in listings:
            listings[parent] = _files_in(folder / parent)
        if name not in listings[parent]:
            absent.append(path)
    return absent


def _files_in(folder: Path) -> set[str]:
    """Return the names of plain files in a folder; none where it cannot be read."""
    try:
        with os.scandir(folder) as entries:
            return {entry.name for entry in entries if entry.is_file()}
    except (OSError, ValueError):
        return set()


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
