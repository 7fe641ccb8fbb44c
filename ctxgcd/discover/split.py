"""The labels of a discovery, and the split of its images for training."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Collection, Mapping, Sequence
from itertools import takewhile
from pathlib import Path, PureWindowsPath

import pandas as pd

from ctxgcd.benchmarks.readers.own_images import left_out_of
from ctxgcd.benchmarks.readers.reader import as_manifest
from ctxgcd.discover.classes import is_number
from ctxgcd.errors import UserError, closest, shown
from ctxgcd.names import counted
from ctxgcd.utils.user_tables import (
    BLANK,
    CLASS,
    NAME,
    PATH,
    Table,
    in_one_form,
    listed,
    nfc,
    note_unicode_forms,
    read_table,
    spelled,
)

SUGGESTED = 5000  # maximum number of paths that are searched for a suggestion
LISTED = 3  # missing images in one message
FOLDERS = "folders"  # instead of a file of labels: the names of folders
UNLABELLED = re.compile(r"unlabell?ed", re.IGNORECASE)  # a folder


def stamp(folder: Path, paths: Sequence[str]) -> str:
    """Return a hash of names, sizes and times, which changes when an image is added, removed or overwritten."""
    digest = hashlib.sha256()
    for path in paths:
        try:
            found = (folder / path).stat()
            of = f"{found.st_size}\0{found.st_mtime_ns}"
        except OSError:  # a broken link, which is reported when images are packed
            of = "absent"
        digest.update(f"{path}\0{of}\0".encode(errors="surrogateescape"))
    return digest.hexdigest()[:16]


def read_labels(file: Path, folder: Path, paths: Sequence[str]) -> tuple[dict[str, str], list[str]]:
    """Return path -> class name of the labelled images, and notes on the file.

    Raises:
        UserError: the file cannot be read, has several class columns, has different rows for an image or lists a
            missing image; or no image has a label.
    """
    table = read_table(file, "path,class")
    kinds = ("predictions.csv", ("confidence", "nearest", "score")), ("corrections.csv", ("action", "target"))
    if kind := next((kind for kind, columns in kinds if len(table.has(*columns)) > 1), None):
        raise UserError(
            f"{file} is a {kind}, not a file of labels; take your changes of it in with `ctxgcd label OUT {file}`"
        )
    if len(named := table.has(*CLASS, NAME)) > 1:
        raise UserError(
            f"{file} has several columns that may contain class names: {' and '.join(named)}; keep only one and rename "
            "it to class (in predictions.csv, name has the names and class has numbers)"
        )
    of = {"path": table.rows[table.column(*PATH)], "class": table.rows[table.column(*CLASS)]}
    rows = pd.DataFrame(of, table.rows.index)
    _refuse_swapped(table, rows, folder, paths)
    without = rows["class"].str.lower().isin(BLANK) | rows["path"].eq("")
    notes = [f"{file.name}: {counted(int(without.sum()), 'line')} without a class skipped"] if without.any() else []
    notes += note_unicode_forms(paths)
    given = rows[~without]
    given = given.assign(path=below(folder, given["path"]))
    one, forms = in_one_form(given["class"].unique().tolist())
    notes += [f"{file.name}: {line}" for line in forms]
    if number := next(filter(is_number, one.values()), None):
        raise UserError(
            f"{file} has the class {shown(number)}, which is the number of a new class; to correct the results of a "
            f"discovery, run `ctxgcd label OUT {file}`; for a class of your own, give it another name"
        )
    own = spelled(given["path"], paths, str(folder))
    given = given.assign(path=given["path"].map(lambda path: own.get(path, path)), **{"class": given["class"].map(one)})
    once = Table(table.name, given).once("path").rows
    if repeated := len(given) - len(once):
        notes.append(f"{file.name}: {counted(repeated, 'repeated line')} skipped")
    labels = dict(zip(once["path"], once["class"], strict=True))
    there = set(paths)
    absent = [path for path in labels if path not in there]
    if left_out := left_out_of(folder, absent):
        lost = {labels.pop(path) for path in left_out} - set(labels.values())
        why = f"that are hidden or have an unsupported format: {listed(left_out)}; save them as JPEG"
        if not labels:
            raise UserError(f"{file} labels only files {why} and label these")
        notes.append(f"{file.name}: ignored the labels of files {why} to include them")
        if lost:
            names = shown(", ".join(sorted(lost)))
            notes.append(f"no labelled image of {names} can be read, so it is not a known class")
    notes += _cases(labels.values(), file.name)
    if not labels:
        raise UserError(f"{file} labels no image; label some images of at least one known class")
    stray = once.loc[once["path"].isin(set(labels) - there), "path"]
    if not stray.empty:
        lines = [f"line {line} {path!r}{_meant(path, paths)}" for line, path in stray.iloc[:LISTED].items()]
        more = f" and {len(stray) - LISTED:,} more" if len(stray) > LISTED else ""
        raise UserError(
            f"{file} labels {counted(len(stray), 'image')} that {'is' if len(stray) == 1 else 'are'} not in "
            f"{folder}: {', '.join(lines)}{more}; write paths relative to that folder, or delete the lines"
        )
    return labels, notes


def labels_of_folders(folder: Path, paths: Sequence[str]) -> tuple[dict[str, str], list[str]]:
    """Return path -> class name by the folders directly in `folder`, and notes.

    Images directly in `folder`, in a folder UNLABELLED, or in one with the number of a new class have no label. Raises
    UserError if no image has one.
    """
    tops = {path: path.partition("/")[0] for path in paths if "/" in path}
    without = sorted({top for top in tops.values() if UNLABELLED.fullmatch(top) or is_number(top)})
    one, notes = in_one_form(sorted(set(tops.values()) - set(without)))
    labels = {path: one[top] for path, top in tops.items() if top in one}
    if not labels:
        raise UserError(
            f"{folder} contains no folder with images{f' except {listed(without)}' if without else ''}; put the "
            "labelled images of each class into a folder with its name, or give a CSV with --labels"
        )
    left = counted(len(paths) - len(labels), "image")
    places = " or ".join([f"directly in {folder.name}", *([f"in {listed(without)}"] if without else [])])
    classes = counted(len(set(labels.values())), "class")
    notes.append(f"labels by folders: {counted(len(labels), 'image')} of {classes}; {left} {places} without a label")
    return labels, notes + _cases(labels.values(), folder.name)


def _cases(names: Collection[str], where: str) -> list[str]:
    """Return a note on two class names that differ only in case."""
    by_folded = {name.casefold(): name for name in names}
    other = next((name for name in names if name != by_folded[name.casefold()]), None)
    return [f"{where}: {other!r} and {by_folded[other.casefold()]!r} count as two classes"] if other else []


def _refuse_swapped(table: Table, rows: pd.DataFrame, folder: Path, paths: Sequence[str]) -> None:
    """Raise UserError if the class column contains paths of images and the path column does not."""
    found = [spelled(below(folder, rows[column]), paths, str(folder)) for column in ("path", "class")]
    if found[1] and not found[0]:
        names = table.column(*PATH), table.column(*CLASS)
        whole = rows[(rows != "").all(axis="columns")]
        example = " and ".join(f"the {name} {cell!r}" for name, cell in zip(names, whole.iloc[0], strict=True))
        raise UserError(
            f"the columns {' and '.join(names)} of {table.name} look swapped: line {whole.index[0]} has {example}; "
            "swap their names in the first line"
        )


def _meant(path: str, paths: Sequence[str]) -> str:
    """Suggest the image with the same file name and the most common folders, else one with a similar path."""
    meant: str | None = max(paths, key=lambda known: _shared(path, known))
    if not _shared(path, str(meant)):
        full = path.startswith("/") or PureWindowsPath(path).is_absolute()
        meant = None if full or len(paths) > SUGGESTED else closest(path, paths)
    return f" (did you mean {meant!r}?)" if meant else ""


def _shared(path: str, known: str) -> int:
    """Return the number of common trailing path components, ignoring case and Unicode form."""
    ends = zip(*(nfc(each).casefold().split("/")[::-1] for each in (path, known)), strict=False)
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], ends))


def below(folder: Path, paths: pd.Series) -> pd.Series:
    """Return paths as they are below the folder: relative, and without `.` and backslashes."""
    whole = folder.resolve()
    given = Table("", pd.DataFrame({"path": [_relative(path, whole) for path in paths]}, paths.index))
    return given.plain().rows["path"]


def _relative(path: str, folder: Path) -> str:
    """Return a path relative to the resolved folder, even if it is absolute."""
    for full, parent in ((Path(path), folder), (Path(nfc(path)), nfc(str(folder)))):
        if full.is_relative_to(parent):
            return full.relative_to(parent).as_posix()
    return path


def make_split(paths: Sequence[str], labels: Mapping[str, str], order: Sequence[str] | None = None) -> pd.DataFrame:
    """Return the split of all images: one part, class ids by sorted names of known classes, -1 for unlabelled images.

    order: the classes by id, if their names are not sorted.

    A class without labelled images in `paths`, because none can be read, is not known. Without labels, all images are
    unlabelled.
    """
    of = [labels.get(path, "") for path in paths]
    ids = {name: number for number, name in enumerate(sorted(set(of) - {""}) if order is None else order)}
    split = as_manifest(paths, [ids.get(name, -1) for name in of], of, ["train"] * len(paths))
    split["role"] = ["labelled" if name else "unlabelled" for name in of]
    labelled = int((split["role"] == "labelled").sum())
    if labels and not labelled:
        raise UserError("no labelled image can be read; replace some of them or label others")
    if labelled == len(split):
        raise UserError(f"all {labelled:,} images have a label, so there is nothing to discover; add unlabelled images")
    return split


def check_classes(classes: int | None, names: Collection[str], unlabelled: int) -> None:
    """Raise UserError for an impossible number of classes (None: estimated); names: the known classes."""
    known = len(names)
    if classes is None:
        if not known:
            raise UserError(
                "--classes auto needs labels; give the number of classes with --classes K, or the labels of some "
                "images with --labels"
            )
        if known < 2:
            raise UserError(
                "--classes auto needs labelled images of at least 2 classes, but there is only one; label images of "
                "another class, or give the number of classes"
            )
    elif not known and classes < 2:
        raise UserError(f"--classes is {classes}; give at least 2 classes")
    elif classes < max(2, known):
        raise UserError(
            f"--classes is {classes}, but the labels name {counted(known, 'class')} ({listed(sorted(names))}); give "
            f"the number of known and new classes together, at least {max(2, known)}"
        )
    elif classes - known > unlabelled:
        raise UserError(
            f"--classes is {classes}: {counted(classes - known, 'class', 'new')} cannot be found among "
            f"{counted(unlabelled, 'image', 'unlabelled')}; give a smaller number"
        )
