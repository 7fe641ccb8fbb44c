"""Images of a discovery in one folder for each class: copies or links, listed in a file, so that they can be undone."""

from __future__ import annotations

import csv
import io
import os
import re
import shutil
from collections.abc import Collection, Mapping
from contextlib import suppress
from dataclasses import asdict, astuple, dataclass, fields
from itertools import chain, count
from pathlib import Path, PurePosixPath
from typing import Any

import pandas as pd

from ctxgcd.discover.classes import spelling
from ctxgcd.discover.results import Results
from ctxgcd.errors import UserError
from ctxgcd.utils.files import (
    file_sha256,
    on_disk,
    replacing,
    require_space,
    require_writable,
    undamaged,
    write_rows,
    write_text,
)

LIST = "sorted.csv"  # in FOLDER
LONGEST = 150  # bytes of the name of a file or folder, which leaves room for a number
# Not allowed in names on Windows or macOS, or read as something else by shells and file managers.
UNSAFE = re.compile(r'[\0-\x1f\x7f<>:"/\\|?*]')
RESERVED = re.compile(r"(con|prn|aux|nul|com[0-9¹²³]|lpt[0-9¹²³])(\..*)?", re.IGNORECASE)


@dataclass(frozen=True)
class Written:
    """A line of the list: a file below FOLDER, its image, and the size and hash of its content."""

    file: str
    image: str
    size: int
    sha256: str


COLUMNS = tuple(field.name for field in fields(Written))


def sort(out: Path, folder: Path, *, link: bool) -> dict[str, Any]:
    """Copy or link the images of the results in OUT; see api.sort."""
    results = Results.of(out)
    results.refuse_edited()
    photos = results.photos
    _check(out, folder, photos)
    of = _classes(results)
    there = {path: name for path, name in of.items() if (photos / path).is_file()}
    if not there:
        raise UserError(
            f"{photos}, where the images of {out} are expected, contains none of them; move the images or {out} back, "
            f"or run `ctxgcd discover FOLDER --out {out}` with their folder"
        )
    listed = _read(folder)
    places = _places(there, folder, {line.file for line in listed.values()})
    if other := next((line for path, line in listed.items() if line.file != places.get(path)), None):
        raise UserError(
            f"{folder} was sorted before with other classes, such as {other.file}; run `ctxgcd sort {out} {folder} "
            "--undo` first, or give another folder"
        )
    todo = [path for path in there if not (path in listed and os.path.lexists(folder / places[path]))]
    if not link:
        size = sum((photos / path).stat().st_size for path in todo)
        require_space(next(place for place in (folder, *folder.absolute().parents) if place.exists()), size, "copying")
    with on_disk(folder):
        folder.mkdir(parents=True, exist_ok=True)
        if todo and (folder / LIST).exists():
            write_text(folder / LIST, _whole_lines(folder / LIST))
        with open(folder / LIST, "a", encoding="utf-8", newline="") as file:
            writer = csv.writer(file, lineterminator="\n")
            if not file.tell():
                writer.writerow(COLUMNS)
            for path in todo:
                source, target = photos / path, folder / places[path]
                line = Written(places[path], path, source.stat().st_size, file_sha256(source))
                writer.writerow(astuple(line))  # before the file, so that every file is in the list
                file.flush()
                _write(source, target, link)
    folders = {place.partition("/")[0] for place in places.values()}
    absent = sorted(of.keys() - there.keys())
    return {"images": len(there), "written": len(todo), "classes": len(folders), "kept": [], "absent": absent}


def undone(folder: Path) -> dict[str, Any]:
    """Delete the files of the list in a folder that are as they were written; see api.sort."""
    listed = _read(folder)
    if not listed:
        raise UserError(f"{folder} contains no {LIST} with files; give a folder of `ctxgcd sort`")
    there = sum(os.path.lexists(folder / line.file) for line in listed.values())
    kept = {path: line for path, line in listed.items() if not _removed(folder, line)}
    with on_disk(folder):
        for name in {line.file.partition("/")[0] for line in listed.values()}:
            with suppress(OSError):  # it contains other files
                (folder / name).rmdir()
        if kept:
            write_rows(folder / LIST, COLUMNS, map(asdict, kept.values()))
        else:
            (folder / LIST).unlink()
            with suppress(OSError):
                folder.rmdir()
    files = sorted(line.file for line in kept.values())
    return {"images": there - len(kept), "written": 0, "classes": 0, "kept": files, "absent": []}


def _classes(results: Results) -> dict[str, str]:
    """Return path -> class name of all images, labelled ones too, without those that were thrown out."""
    state = results.state
    given = {path: name for path, name in results.asked["labels"].items() if path not in state.out}
    return given | {path: state.names[key] for path, key in results.shown.items()}


def _check(out: Path, folder: Path, photos: Path) -> None:
    """Raise UserError for a folder that cannot be sorted into."""
    own = folder.resolve()
    for other, what in ((photos.resolve(), "the folder of the images"), (out.resolve(), "the folder of the results")):
        if own.is_relative_to(other) or other.is_relative_to(own):
            raise UserError(f"{folder} is in {what}, {other}, or contains it; give a folder elsewhere")
    require_writable(folder / LIST)


def _read(folder: Path) -> dict[str, Written]:
    """Return the list of a folder by image; empty if there is none. Raises UserError for another file of this name."""
    if not (file := folder / LIST).exists():
        return {}
    with undamaged(file, "choose another folder"):
        rows = pd.read_csv(io.StringIO(_whole_lines(file)), dtype=str, keep_default_na=False)
    files = [PurePosixPath(name) for name in rows.get("file", [])]
    if tuple(rows.columns) != COLUMNS or any(name.is_absolute() or ".." in name.parts for name in files):
        raise UserError(f"{file} is not a list of `ctxgcd sort`; choose another folder")
    lines = rows.itertuples(index=False)
    return {image: Written(name, image, int(size), sha256) for name, image, size, sha256 in lines}


def _whole_lines(file: Path) -> str:
    """Return the list without a last line that is not complete: its image was not written yet."""
    text = file.read_bytes().decode()
    return text[: text.rfind("\n") + 1]


def _places(of: Mapping[str, str], folder: Path, own: Collection[str]) -> dict[str, str]:
    """Return the path below the folder for each image, where two names never differ only in case or Unicode form.

    of: path -> class name; own: files of the list, which do not count as taken.
    """
    files = [path.name for path in folder.iterdir() if not path.is_dir()] if folder.is_dir() else []
    used = {spelling(name) for name in (LIST, *files)}
    names = {name: _unused(_safe(name), used) for name in sorted(set(of.values()))}
    taken: dict[str, set[str]] = {}
    found = {}
    for path in sorted(of):
        name = names[of[path]]
        if name not in taken:
            there = os.listdir(folder / name) if (folder / name).is_dir() else []
            taken[name] = {spelling(other) for other in there if f"{name}/{other}" not in own}
        found[path] = f"{name}/{_unused(_safe(PurePosixPath(path).name), taken[name])}"
    return found


def _safe(name: str) -> str:
    """Return a name that every file system accepts, also Windows: of one part, not reserved, and not hidden."""
    stem, suffix = os.path.splitext(UNSAFE.sub("_", name))
    while len(f"{stem}{suffix}".encode()) > LONGEST and stem:
        stem = stem[:-1]
    safe = f"{stem}{suffix}"[:LONGEST].strip().rstrip(". ")
    return f"_{safe}" if not safe or safe.startswith(".") or RESERVED.fullmatch(safe) else safe


def _unused(name: str, taken: set[str]) -> str:
    """Return the name, or with a number if it is taken in any spelling, and add it to the taken ones."""
    stem, suffix = os.path.splitext(name)
    names = chain([name], (f"{stem} ({number}){suffix}" for number in count(2)))
    free = next(one for one in names if spelling(one) not in taken)
    taken.add(spelling(free))
    return free


def _write(source: Path, target: Path, link: bool) -> None:
    target.parent.mkdir(exist_ok=True)
    if os.path.lexists(target):
        raise UserError(f"{target} exists meanwhile; run the same command again")
    with replacing(target) as temporary:
        if link:
            temporary.symlink_to(os.path.relpath(source, target.parent.resolve()))
        else:
            shutil.copy2(source, temporary)


def _removed(folder: Path, line: Written) -> bool:
    """Delete a file if it has the size and hash of its line; return whether it is gone."""
    file = folder / line.file
    if not os.path.lexists(file):
        return True
    if file.is_file() and file.stat().st_size == line.size and file_sha256(file) == line.sha256:
        file.unlink()
        return True
    return False
