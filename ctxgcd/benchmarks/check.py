"""The data check: tests whether a benchmark's data is available, complete and official."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import pandas as pd

from ctxgcd.benchmarks.class_lists import ClassList, load
from ctxgcd.benchmarks.places import place_of
from ctxgcd.benchmarks.readers.decoding import MissingData, missing
from ctxgcd.benchmarks.readers.own_images import OwnImages
from ctxgcd.benchmarks.readers.reader import Reader
from ctxgcd.benchmarks.readers.registry import reader_of
from ctxgcd.benchmarks.split import make_split
from ctxgcd.errors import UserError
from ctxgcd.names import PARTS

State = Literal["found", "missing", "wrong"]


@dataclass(frozen=True)
class CheckResult:
    """The state of one benchmark.

    Attributes:
        expected, found: numbers of train images, test images and classes; 0 or absent if unknown.
        problem: why the data cannot be used, or an empty string.
        remarks: further notes for the user.
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
        """Return whether runs of this benchmark can start."""
        return self.state == "found"


def check(
    benchmark: str,
    reader: Reader,
    folder: Path,
    class_list: ClassList | None,
    expected: Mapping[str, int],
    draw: Mapping[str, Any] | None = None,
) -> CheckResult:
    """Compare the files on disk with the expected numbers of images and classes, without decoding images.

    Args:
        class_list: the versioned list; None for own images, whose folder defines the classes.
        expected: numbers of `train`, `test` and `classes`; 0 or absent if unknown.
        draw: `seed` and `labelled_share` of the split; if given, the split is checked too.
    """
    found = dict.fromkeys((*PARTS, "classes"), 0)
    if class_list:
        expected = {**expected, "classes": class_list.num_classes}

    def result(state: State, problem: str = "", remarks: Sequence[str] = ()) -> CheckResult:
        return CheckResult(benchmark, state, folder, expected, found, problem, reader.how_to_get, remarks)

    try:
        if not folder.is_dir():
            raise missing(folder)
        manifest = reader.manifest(folder)
        labelled = None
        if class_list is None:
            assert isinstance(reader, OwnImages)
            class_list, labelled = reader.divide(folder, manifest, benchmark)
    except MissingData as error:
        return result("missing", str(error))
    except UserError as error:
        return result("wrong", str(error))
    except OSError as error:
        return result("wrong", f"{error.filename or folder} cannot be read ({error.strerror}); repair or replace it")

    listed = class_list.used(manifest)
    found |= {part: int((listed["part"] == part).sum()) for part in PARTS}
    found["classes"] = int(listed.loc[listed["part"] == "train", "class_id"].nunique())
    no_test = bool(reader.test_files) and expected.get("test", 0) > 0 and "test" not in set(manifest["part"])
    differ = [
        f"{found[what]:,} {name} found, {expected[what]:,} expected"
        for what, name in (("train", "train images"), ("test", "test images"), ("classes", "classes"))
        if expected.get(what, 0) not in (0, found[what]) and not (what == "test" and no_test)
    ]
    if differ:
        right = (
            "correct the numbers in params.yaml" if isinstance(reader, OwnImages) else "get the complete official data"
        )
        return result("wrong", f"{'; '.join(differ)}; {right}")
    if draw:
        try:
            order = reader.drawn_order
            split = make_split(manifest, class_list, **draw, drawn_order=order, labelled_paths=labelled)
            unseen = sorted(set(split.loc[split["old"] == 1, "class_name"]) - _labelled_classes(split))
        except UserError as error:
            return result("wrong", str(error))
    # Class folders and packed files were read from disk; other lists may name missing images.
    if reader.list_files(folder) and not reader.packed and (absent := _absent(folder, listed["path"])):
        return result("missing", f"{len(absent):,} listed images are missing, first {folder / absent[0]}")
    remarks = list(reader.remarks(folder, manifest))
    if draw and unseen:
        remarks.append(f"{len(unseen)} labelled classes have no image in D^l (too few images), first {unseen[0]!r}")
    if no_test:
        remarks.append(f"the optional test part {reader.test_files[0]} is missing, so inductive columns stay empty")
    return result("found", remarks=remarks)


def check_section(section: Mapping[str, Any]) -> CheckResult:
    """Check a benchmark by its section of params.yaml."""
    own = section["reader"] == "folder"
    class_list = None if own else load(section["class_list"], section["classes"])
    counts = section["images"] if section["images"] != "any" else {}
    expected = {**counts, "classes": section["classes"]} if own else counts
    draw = {key: section[key] for key in ("seed", "labelled_share")}
    return check(section["benchmark"], reader_of(section), place_of(section), class_list, expected, draw)


def _labelled_classes(split: pd.DataFrame) -> set[str]:
    return set(split.loc[split["role"] == "labelled", "class_name"])


def _absent(folder: Path, paths: Iterable[str]) -> list[str]:
    """Return the listed files that are missing on disk; each folder is listed once."""
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
    """Return the names of regular files in a folder; none if it cannot be read."""
    try:
        with os.scandir(folder) as entries:
            return {entry.name for entry in entries if entry.is_file()}
    except (OSError, ValueError):
        return set()
