"""Atomic writing and reading of files, and error messages for file systems and damaged files."""

from __future__ import annotations

import csv
import errno
import gzip
import hashlib
import io
import json
import os
import shutil
import zlib
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any
from zipfile import BadZipFile

from ctxgcd.errors import UserError

if TYPE_CHECKING:
    import pandas as pd

FULL = (errno.ENOSPC, errno.EDQUOT)
# Errors of the file system that are reported to the user; any other OSError is a bug.
REFUSALS = (*FULL, errno.EACCES, errno.EPERM, errno.EROFS, errno.ENAMETOOLONG, errno.ELOOP, errno.EIO, errno.ESTALE)


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Yield a temporary path in the same folder (same suffix) to write to, and rename it to `path` at the end.

    A reader never sees an incomplete file, a failed write keeps the old file, and a link into DVC's cache is
    replaced instead of followed. Raises UserError for errors of the file system.
    """
    temporary = _temporary(path)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        yield temporary
        os.replace(temporary, path)
    except OSError as error:
        if error.filename in (None, *map(str, (temporary, path, path.parent))):
            raise _refused(path, error) from error
        raise  # the error of another file, read inside the block
    finally:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)


def require_writable(path: Path) -> None:
    """Raise UserError unless a file can be written at `path`; folders created for this test are removed again."""
    with on_disk(path):
        if path.is_dir():
            raise UserError(f"{path} is a folder; give the path of a file")
        there = next(place for place in (path, *path.parents) if os.path.lexists(place))
        if there.is_symlink() and not there.exists():
            raise UserError(
                f"{there} is a link to {there.readlink()}, which does not exist; delete the link or choose another path"
            )
        if there != path and not there.is_dir():
            raise UserError(f"{there} is a file, so no folder can be created below it; choose another path")
        absent = [folder for folder in path.parents if not folder.exists()]
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            _temporary(path).touch()
        finally:
            for undo in (_temporary(path).unlink, *(folder.rmdir for folder in absent)):
                with suppress(OSError):  # it was not created
                    undo()


def _temporary(path: Path) -> Path:
    """Return the temporary path of `replacing`; its name is short even if that of `path` is long."""
    return path.with_name(f".{path.stem[:40]}.{os.getpid()}.tmp{path.suffix}")


def clear_unfinished(folder: Path) -> None:
    """Delete temporary files of `replacing` whose process was killed. No other process may write to the folder."""
    for left in folder.glob(".*.[0-9]*.tmp*"):
        left.unlink(missing_ok=True)


def write_text(path: Path, text: str) -> None:
    """Write UTF-8 text atomically, without translating line breaks."""
    with replacing(path) as temporary:
        temporary.write_text(text, encoding="utf-8", newline="")


def write_rows(path: Path, columns: Sequence[str], rows: Iterable[dict[str, Any]]) -> None:
    """Write a CSV of `rows`; missing values stay empty."""
    with replacing(path) as temporary, open(temporary, "w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, columns, restval="", lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)


@contextmanager
def undamaged(file: Path, todo: str = "delete it and run the same command again") -> Iterator[None]:
    """Raise UserError, with advice, if reading a file fails because it is truncated, empty or replaced.

    Use it for files written by ctxgcd, around a block that only reads the file.
    """
    try:
        yield
    except OSError as error:
        raise _refused(file, error) from None
    except (ValueError, LookupError, TypeError, AttributeError, EOFError, BadZipFile, zlib.error):
        raise UserError(f"{file} is damaged; {todo}") from None


def read_object(file: Path, *keys: str) -> dict[str, Any]:
    """Read a JSON object written by ctxgcd. Raises UserError if it is damaged or lacks one of `keys`."""
    with undamaged(file):
        content: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
        if not content.keys() >= set(keys):
            raise KeyError
    return content


def read_or_empty(file: Path) -> dict[str, Any]:
    """Read a JSON object; return an empty one if the file is missing or damaged."""
    try:
        return read_object(file)
    except UserError:
        return {}


def read_rows(file: Path, **how: Any) -> pd.DataFrame:
    """Read a CSV written by ctxgcd with `pandas.read_csv(**how)`. Raises UserError if it is damaged."""
    import pandas as pd  # here, because most users of this module read no tables

    with undamaged(file):
        content = file.read_bytes()
        if not content.endswith(b"\n"):  # truncated, possibly within the last value
            raise ValueError
        return pd.read_csv(io.BytesIO(content), **how)


def require_space(folder: Path, needed: int, name: str) -> None:
    """Raise UserError if `folder` has less than `needed` bytes free."""
    free = shutil.disk_usage(folder).free
    if free < needed:
        raise UserError(
            f"{folder} has {free / 1e6:,.0f} MB free, but {name} needs {needed / 1e6:,.0f} MB more; "
            "free space there or choose another folder"
        )


def require_writable_folders(*folders: Path) -> None:
    """Raise UserError for a folder that is not writable, or that does not exist and cannot be created."""
    for folder in folders:
        there = next(path for path in (folder, *folder.absolute().parents) if path.exists())
        if not (there.is_dir() and os.access(there, os.W_OK | os.X_OK)):
            raise UserError(
                f"{folder.absolute()} is not writable; change its permissions or copy the project to a writable folder"
            )


def file_sha256(path: Path) -> str:
    """Return the SHA-256 of a file's content."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


@contextmanager
def on_disk(path: Path) -> Iterator[None]:
    """Raise UserError for errors of the file system; files already written are kept."""
    try:
        yield
    except gzip.BadGzipFile:  # a subclass of OSError, but an error of the archive
        raise
    except OSError as error:
        raise _refused(path, error) from error


@contextmanager
def refusals_named() -> Iterator[None]:
    """Raise UserError for errors of the file system (REFUSALS) that name a file."""
    try:
        yield
    except OSError as error:
        if error.filename is None or error.errno not in REFUSALS:
            raise
        raise _refused(Path(os.fsdecode(error.filename)), error) from error


def _refused(path: Path, error: OSError) -> UserError:
    if error.errno in FULL:
        advice = "the disk is full: free space and run the same command again to resume"
    elif error.errno == errno.ENAMETOOLONG:
        advice = "give a shorter name"
    else:
        advice = "check the folder, its permissions and the free space"
    return UserError(f"{path} cannot be read or written ({error.strerror or error}); {advice}")
