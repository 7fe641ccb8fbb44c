"""Which benchmarks are there, complete and official, told before anything is trained."""

from __future__ import annotations

import hashlib
import json
import os
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from ctxgcd.benchmarks import folder_of
from ctxgcd.benchmarks.class_lists import ClassList, load
from ctxgcd.benchmarks.registry import SOURCES
from ctxgcd.benchmarks.source import MissingData, Source, missing
from ctxgcd.errors import UserError
from ctxgcd.names import PARTS

WIDTH = 100  # columns of a terminal


@dataclass(frozen=True)
class CheckResult:
    """One benchmark's state; `problem` of a found one is a remark (an absent optional test part) or empty."""

    benchmark: str
    state: Literal["found", "missing", "wrong"]
    folder: Path
    expected: Mapping[str, int]
    found: Mapping[str, int]
    problem: str
    how_to_get: str

    @property
    def ready(self) -> bool:
        """Whether runs of this benchmark can start."""
        return self.state == "found"


def check(
    benchmark: str, source: Source, folder: Path, class_list: ClassList, expected: Mapping[str, int]
) -> CheckResult:
    """Compare the files on disk with the official counts of images of listed classes; decodes nothing.

    `expected` has the counts of `train` and `test`; 0 means that none is known.
    """
    found = dict.fromkeys(PARTS, 0)

    def result(state: Literal["found", "missing", "wrong"], problem: str = "") -> CheckResult:
        return CheckResult(benchmark, state, folder, expected, found, problem, source.how_to_get)

    try:
        if not folder.is_dir():
            raise missing(folder)
        manifest = source.manifest(folder)
    except MissingData as error:
        return result("missing", str(error))
    except UserError as error:
        return result("wrong", str(error))

    listed = manifest[manifest["class_id"].isin(class_list.old + class_list.new)]
    found |= {part: int((listed["part"] == part).sum()) for part in PARTS}
    no_test = bool(source.test_files) and expected.get("test", 0) > 0 and "test" not in set(manifest["part"])
    differ = [
        f"{found[part]:,} {part} images found, {expected[part]:,} expected"
        for part in PARTS
        if expected.get(part, 0) not in (0, found[part]) and not (part == "test" and no_test)
    ]
    if differ:
        return result("wrong", f"{'; '.join(differ)}: not the complete official data")
    # The listing of class folders is the disk itself; official lists may name images that are not there.
    if source.list_files(folder) and (absent := _absent(folder, listed["path"])):
        return result("missing", f"{len(absent):,} listed images are not there, first {folder / absent[0]}")
    return result("found", f"no official test part (optional): no {source.test_files[0]}" if no_test else "")


def check_section(section: Mapping[str, Any]) -> CheckResult:
    """Check a benchmark by its section of params.yaml (benchmark, reader, folder, class_list, classes, images)."""
    source, listed = SOURCES[section["reader"]], load(section["class_list"], section["classes"])
    return check(section["benchmark"], source, folder_of(section["folder"]), listed, section["images"])


def check_requested() -> list[CheckResult]:
    """Check the benchmarks whose sections the workflow leaves in the environment variable CTXGCD_REQUESTED."""
    return [check_section(json.loads(section)) for section in json.loads(os.environ["CTXGCD_REQUESTED"])]


def not_ready(results: Iterable[CheckResult]) -> str:
    """Return the sentence that names the benchmarks that are not ready, or nothing."""
    names = ", ".join(result.benchmark for result in results if not result.ready)
    return f"the data of {names} is not ready, so nothing was trained; see the table above" if names else ""


def _absent(folder: Path, paths: Iterable[str]) -> list[str]:
    """Return listed files that are not on disk, with one listing a folder (packed images: none)."""
    listings: dict[str, set[str]] = {}
    absent = []
    for path in paths:
        if "#" in path:  # a row of a packed file, which the manifest has already read
            continue
        parent, name = os.path.split(path)
        if parent not in listings:
            listings[parent] = set(os.listdir(folder / parent)) if (folder / parent).is_dir() else set()
        if name not in listings[parent]:
            absent.append(path)
    return absent


def fingerprint(source: Source, folder: Path) -> str:
    """Return a sha256 over the official list files, or over the sorted image paths of class folders."""
    digest = hashlib.sha256()
    files = source.list_files(folder)
    for file in files:
        if not file.is_file():
            raise missing(file)
        digest.update(f"{file.name}\n{hashlib.sha256(file.read_bytes()).hexdigest()}\n".encode())
    if not files:
        digest.update("\n".join(sorted(source.manifest(folder)["path"])).encode())
    return digest.hexdigest()


def table(results: Sequence[CheckResult]) -> str:
    """Return one plain-text table of all benchmarks, then what is missing and how to get it."""
    header = ("benchmark", "state", "train found / expected", "test found / expected")
    rows = [(item.benchmark, item.state, *(_count(item, part) for part in PARTS)) for item in results]
    widths = [max(len(row[column]) for row in (header, *rows)) for column in range(len(header))]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in (header, *rows)]
    lines.insert(1, "  ".join("-" * width for width in widths))
    for item in results:
        if item.problem:
            notes = [f"{item.benchmark}: {item.problem}"]
            if not item.ready:
                notes += [f"looked in: {item.folder}", f"how to get it: {item.how_to_get}"]
            lines += ["", *(_wrapped(note, "    " if place else "") for place, note in enumerate(notes))]
    return "\n".join(line.rstrip() for line in lines)


def _count(item: CheckResult, part: str) -> str:
    expected = item.expected.get(part, 0)
    return f"{item.found[part]:,} / {f'{expected:,}' if expected else '-'}"


def _wrapped(note: str, indent: str) -> str:
    return textwrap.fill(
        note,
        WIDTH,
        initial_indent=indent,
        subsequent_indent="    ",
        break_long_words=False,
        break_on_hyphens=False,
    )
