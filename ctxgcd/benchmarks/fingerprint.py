"""What names the raw data of a benchmark in its identity: its contents, never its place or its time stamps."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from ctxgcd.benchmarks import place_of
from ctxgcd.benchmarks.own import OwnImages
from ctxgcd.benchmarks.registry import source_of
from ctxgcd.benchmarks.source import Source, missing
from ctxgcd.errors import UserError
from ctxgcd.files import file_sha256, write_text

CACHE = Path("work/fingerprints")
ABSENT = "absent"


def data_fingerprint(benchmark: str, section: Mapping[str, Any]) -> str:
    """Return the fingerprint of the data on disk; where it is away, the one recorded beside the split, or `absent`.

    Kept in work/fingerprints under the names, sizes and times of the files, so that it is computed once and not at
    every start; a wrong guess there costs a reading, never a wrong result.
    """
    source, folder = source_of(section), place_of(section)
    try:
        stamp = _stamp(source, folder)
    except OSError:
        return recorded(benchmark)
    kept = CACHE / f"{hashlib.sha256(str(folder.absolute()).encode()).hexdigest()[:16]}-{section['reader']}.json"
    try:
        known = json.loads(kept.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        known = {}
    if known.get("stamp") != stamp:
        try:
            known = {"stamp": stamp, "fingerprint": fingerprint(source, folder)}
        except UserError:  # the data check says it better, as soon as a job needs the data
            return recorded(benchmark)
        write_text(kept, json.dumps(known))
    return str(known["fingerprint"])


def fingerprint(source: Source, folder: Path) -> str:
    """Return a sha256 over the official list files, over the image paths of class folders, or over all own files.

    Official images are known by their lists, names and counts; a user's own by every byte, because nothing else tells.
    """
    digest = hashlib.sha256()
    files = source.list_files(folder)
    for file in files:
        if not file.is_file():
            raise missing(file)
        digest.update(f"{file.name}\n{file_sha256(file)}\n".encode())
    if isinstance(source, OwnImages):
        for path in source.manifest(folder)["path"]:
            if not (folder / path).is_file():
                raise missing(folder / path)
            digest.update(f"{path}\n{file_sha256(folder / path)}\n".encode())
    elif not files:
        digest.update("\n".join(sorted(source.manifest(folder)["path"])).encode())
    return digest.hexdigest()


def recorded(benchmark: str) -> str:
    """Return the fingerprint of the data that the recorded split was made from."""
    try:
        return str(json.loads(record_file(benchmark).read_text(encoding="utf-8"))["fingerprint"])
    except (OSError, ValueError, KeyError):
        return ABSENT


def record_file(benchmark: str) -> Path:
    return Path(f"results/splits/{benchmark}.source.json")


def _stamp(source: Source, folder: Path) -> str:
    """Return a hash over names, sizes and times: of the list files, of class folders, of all own files."""
    files: Iterable[Path] = source.list_files(folder)
    if isinstance(source, OwnImages):
        below = (Path(parent, name) for parent, _, names in sorted(os.walk(folder)) for name in sorted(names))
        files = [*files, *below]
    elif not files:
        # A folder's time changes with every file that comes or goes.
        files = [Path(entry) for part in os.scandir(folder) if part.is_dir() for entry in os.scandir(part)]
    digest = hashlib.sha256()
    for file in [folder, *files]:
        found = file.stat()
        digest.update(f"{file}\n{found.st_size}\n{found.st_mtime_ns}\n".encode())
    return digest.hexdigest()
