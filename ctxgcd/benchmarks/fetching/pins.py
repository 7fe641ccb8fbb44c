"""Pin data that is too large to copy: one sha256 a file, in a text file that git or DVC can keep."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from ctxgcd.benchmarks.readers.reader import fault_of
from ctxgcd.errors import UserError
from ctxgcd.utils.files import file_sha256, write_text
from ctxgcd.utils.progress import Progress
from ctxgcd.utils.user_tables import listed

THREADS = 8  # hashing leaves the interpreter's lock, and disks read several files at once


def write_pins(folder: Path, pins: Path) -> int:
    """Write `SHA256  PATH` for every file below `folder`, hidden ones left out; return how many.

    The format is that of `sha256sum`, sorted by path, so `sha256sum --check` reads it too.
    """
    paths = sorted(_files(folder))
    if not paths:
        raise UserError(f"{folder} holds no file to pin; put the data there first")
    if odd := [path for path in paths if "\n" in path or fault_of(path)]:
        raise UserError(
            f"{folder} holds names with a line break or with bytes that are not UTF-8: {listed(odd)}; rename them"
        )
    write_text(pins, "".join(f"{digest}  {path}\n" for path, digest in _hashes(folder, paths)))
    return len(paths)


def check_pins(folder: Path, pins: Path) -> int:
    """Compare every pinned file with its hash; return how many. Raises UserError with the counts and first names."""
    pinned = _read(pins)
    there = set(_files(folder))
    faults = {"missing": sorted(pinned.keys() - there), "not pinned": sorted(there - pinned.keys())}
    same = sorted(pinned.keys() & there)
    faults["changed"] = [path for path, digest in _hashes(folder, same) if digest != pinned[path]]
    said = [f"{len(paths):,} {what} (first {paths[0]})" for what, paths in faults.items() if paths]
    if said:
        raise UserError(
            f"{folder} is not what {pins} pins: {', '.join(said)}; restore the pinned files, or pin the data again"
        )
    return len(pinned)


def _read(pins: Path) -> dict[str, str]:
    if not pins.is_file():
        raise UserError(f"{pins} does not exist; write it first, or name the right file")
    pinned = {}
    for number, line in enumerate(pins.read_text(encoding="utf-8").splitlines(), start=1):
        digest, _, path = line.partition("  ")
        if len(digest) != 64 or not path:
            raise UserError(f"{pins} line {number} is {line!r}, expected a sha256, two blanks and a path; restore it")
        pinned[path] = digest
    return pinned


def _files(folder: Path) -> Iterator[str]:
    if not folder.is_dir():
        raise UserError(f"{folder} does not exist; name the folder of the data")
    for parent, folders, files in os.walk(folder):
        folders[:] = [name for name in folders if not name.startswith(".")]
        for name in files:
            if not name.startswith("."):
                yield (Path(parent) / name).relative_to(folder).as_posix()


def _hashes(folder: Path, paths: Iterable[str]) -> Iterator[tuple[str, str]]:
    """Yield each path with its sha256, in order, saying every few seconds how far it is."""
    paths = list(paths)
    progress = Progress("hashed", len(paths), "files")
    with ThreadPoolExecutor(THREADS) as pool:
        for path, digest in zip(paths, pool.map(lambda path: file_sha256(folder / path), paths), strict=True):
            progress.add()
            yield path, digest
