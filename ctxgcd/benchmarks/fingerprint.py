"""What names the raw data of a benchmark in its identity: its contents, never its place or its time stamps."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from ctxgcd.benchmarks.own import OwnImages
from ctxgcd.benchmarks.places import place_of
from ctxgcd.benchmarks.registry import source_of
from ctxgcd.benchmarks.source import Source
from ctxgcd.errors import UserError
from ctxgcd.files import file_sha256, read_object, write_text

CACHE = Path("work/fingerprints")
ABSENT = "absent"


def data_fingerprint(benchmark: str, section: Mapping[str, Any]) -> str:
    """Return the fingerprint of the data on disk; where that cannot be read, the one recorded beside the split.

    Never raises for what lies on the disk: the data check says it better, as soon as a job needs the data. The result
    is kept in work/fingerprints under the sizes and times of the files, because it is asked for at every start.
    """
    source, folder = source_of(section), place_of(section)
    try:
        stamp = _stamp(source, folder)
        name = json.dumps([str(folder.absolute()), *(section.get(key) for key in ("reader", "listing", "labelled"))])
        kept = CACHE / f"{hashlib.sha256(name.encode()).hexdigest()[:16]}.json"
        known = _read(kept)
        if known.get("stamp") == stamp and isinstance(known.get("fingerprint"), str):
            return str(known["fingerprint"])
        found = fingerprint(source, folder)
    except (OSError, ValueError, UserError):
        return recorded(benchmark)
    with suppress(UserError):  # only kept to save time
        write_text(kept, json.dumps({"stamp": stamp, "fingerprint": found}))
    return found


def fingerprint(source: Source, folder: Path) -> str:
    """Return a sha256 over what the official files say of every image, and over every byte of a user's own images.

    Official images are known by their names, classes and counts; of one's own nothing else tells what they are.
    Raises UserError or OSError where the data cannot be read.
    """
    manifest = source.manifest(folder)
    digest = hashlib.sha256(manifest.to_csv(index=False).encode())
    if isinstance(source, OwnImages):
        class_list, labelled = source.divide(folder, manifest, "own")
        digest.update(json.dumps([class_list.old, sorted(labelled or ())]).encode())
        for path in manifest["path"]:
            digest.update(file_sha256(folder / path).encode())
    return digest.hexdigest()


def recorded(benchmark: str) -> str:
    """Return the fingerprint of the data that the recorded split was made from, or `absent`."""
    found = _read(record_file(benchmark)).get("fingerprint")
    return found if isinstance(found, str) else ABSENT


def record_file(benchmark: str) -> Path:
    return Path(f"results/splits/{benchmark}.source.json")


def _read(file: Path) -> dict[str, Any]:
    try:
        return read_object(file)
    except UserError:
        return {}


def _stamp(source: Source, folder: Path) -> str:
    """Return a hash that changes whenever a file of the data may have: places, sizes, times, and inodes."""
    digest = hashlib.sha256()
    for file in [folder, *source.stamped(folder)]:
        found = file.stat()
        digest.update(f"{file}\n{found.st_size} {found.st_mtime_ns} {found.st_ctime_ns} {found.st_ino}\n".encode())
    return digest.hexdigest()
