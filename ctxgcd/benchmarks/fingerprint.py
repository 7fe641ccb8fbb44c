"""What names the raw data of a benchmark: its contents, never its place or its time stamps."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

from ctxgcd.benchmarks.readers.own_images import OwnImages
from ctxgcd.benchmarks.readers.reader import Reader
from ctxgcd.utils.files import file_sha256


def fingerprint(reader: Reader, folder: Path) -> str:
    """Return a sha256 over what the official files say of every image, and over every byte of a user's own images.

    Official images are known by their names, classes and counts; of one's own nothing else tells what they are.
    Raises UserError or OSError where the data cannot be read.
    """
    manifest = reader.manifest(folder)
    digest = hashlib.sha256(manifest.to_csv(index=False).encode())
    if isinstance(reader, OwnImages):
        class_list, labelled = reader.divide(folder, manifest, "own")
        digest.update(json.dumps([class_list.old, sorted(labelled or ())]).encode())
        for path in manifest["path"]:
            digest.update(file_sha256(folder / path).encode())
    return digest.hexdigest()


def stamp(reader: Reader, folder: Path) -> str:
    """Return a hash that changes whenever a file of the data may have: places, sizes, times, and inodes."""
    digest = hashlib.sha256()
    for file in [folder, *reader.stamped(folder)]:
        found = file.stat()
        digest.update(f"{file}\n{found.st_size} {found.st_mtime_ns} {found.st_ctime_ns} {found.st_ino}\n".encode())
    return digest.hexdigest()
