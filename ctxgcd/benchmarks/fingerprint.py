"""Fingerprints of a benchmark's raw data, which depend on its contents, not on its location or time stamps."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

from ctxgcd.benchmarks.readers.own_images import OwnImages
from ctxgcd.benchmarks.readers.reader import Reader
from ctxgcd.utils.files import file_sha256


def fingerprint(reader: Reader, folder: Path) -> str:
    """Return a SHA-256 of the list of official images, or of the list and all bytes of a user's own images.

    The names, classes and numbers identify official images; a user's own images are identified by their content.
    Raises UserError or OSError if the data cannot be read.
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
    """Return a hash of the paths, sizes, times and inodes of the data, which changes if a file may have changed."""
    digest = hashlib.sha256()
    for file in [folder, *reader.stamped(folder)]:
        found = file.stat()
        digest.update(f"{file}\n{found.st_size} {found.st_mtime_ns} {found.st_ctime_ns} {found.st_ino}\n".encode())
    return digest.hexdigest()
