"""Checksums of data that is too large to copy: a text file with one SHA-256 per data file, for git or DVC."""

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

THREADS = 8  # hashing releases the interpreter's lock, and disks read several files at once


def write_pins(folder: Path, pins: Path) -> int:
    """Write `SHA256  PATH` for every file below `folder` except hidden ones; return the number of files.

    The format is that of `sha256sum`, sorted by path, so `sha256sum --check` can read it.
    """
    paths = sorted(_files(folder))
    if not paths:
        raise UserError(f"{folder} contains no files to pin; put the data there first")
    if wrong := [path for path in paths if "\n" in path or fault_of(path)]:
        raise UserError(
            f"{folder} contains names with a line break or with bytes that are not UTF-8: {listed(wrong)}; rename them"
        )
    write_text(pins, "".join(f"{digest}  {path}\n" for path, digest in _hashes(folder, paths)))
    return len(paths)


def check_pins(folder: Path, pins: Path) -> int:
    """Compare every pinned file with its hash; return the number of files. Raises UserError if any differs."""
    pinned = _read(pins)
    there = set(_files(folder))
    faults = {"missing": sorted(pinned.keys() - there), "not pinned": sorted(there - pinned.keys())}
    same = sorted(pinned.keys() & there)
    faults["changed"] = [path for path, digest in _hashes(folder, same) if digest != pinned[path]]
    differences = [f"{len(paths):,} {what} (first {paths[0]})" for what, paths in faults.items() if paths]
    if differences:
        raise UserError(
            f"{folder} does not match {pins}: {', '.join(differences)}; restore the pinned files or pin the data again"
        )
    return len(pinned)


def _read(pins: Path) -> dict[str, str]:
    if not pins.is_file():
        raise UserError(f"{pins} does not exist; write it first, or correct its path")
    pinned = {}
    for number, line in enumerate(pins.read_text(encoding="utf-8").splitlines(), start=1):
        digest, _, path = line.partition("  ")
        if len(digest) != 64 or not path:
            raise UserError(
                f"{pins} line {number} is {line!r}, but expected a SHA-256, two spaces and a path; restore the file"
            )
        pinned[path] = digest
    return pinned


def _files(folder: Path) -> Iterator[str]:
    if not folder.is_dir():
        raise UserError(f"{folder} does not exist; give the folder of the data")
    for parent, folders, files in os.walk(folder):
        folders[:] = [name for name in folders if not name.startswith(".")]
        for name in files:
            if not name.startswith("."):
                yield (Path(parent) / name).relative_to(folder).as_posix()


def _hashes(folder: Path, paths: Iterable[str]) -> Iterator[tuple[str, str]]:
    """Yield each path with its SHA-256, in order, and print the progress."""
    paths = list(paths)
    progress = Progress("hashed", len(paths), "files")
    with ThreadPoolExecutor(THREADS) as pool:
        for path, digest in zip(paths, pool.map(lambda path: file_sha256(folder / path), paths), strict=True):
            progress.add()
            yield path, digest
