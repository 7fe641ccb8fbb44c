"""Writing a file whole or not at all, reading it back, and words for what a disk refuses or has damaged."""

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
# What a file system refuses to a correct program; an OSError of another kind is a bug.
REFUSALS = (*FULL, errno.EACCES, errno.EPERM, errno.EROFS, errno.ENAMETOOLONG, errno.ELOOP, errno.EIO, errno.ESTALE)


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Give a temporary name beside `path` (same suffix) to write to, and move it into place at the end.

    A reader never sees half a file, a failed write leaves the old one, and a link into DVC's cache is
    replaced rather than written through. What the disk refuses is a UserError.
    """
    temporary = _temporary(path)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        yield temporary
        os.replace(temporary, path)
    except OSError as error:
        if error.filename in (None, *map(str, (temporary, path, path.parent))):
            raise _refused(path, error) from error
        raise  # of a file that is read meanwhile
    finally:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)


def require_writable(path: Path) -> None:
    """Raise UserError unless a file can be written at `path`; folders made to try it are removed again."""
    with on_disk(path):
        if path.is_dir():
            raise UserError(f"{path} is a folder; name a file")
        there = next(place for place in (path, *path.parents) if os.path.lexists(place))
        if there.is_symlink() and not there.exists():
            raise UserError(
                f"{there} is a link to {there.readlink()}, which does not exist; delete the link or name another place"
            )
        if there != path and not there.is_dir():
            raise UserError(f"{there} is a file, so no folder can be made below it; name another place")
        absent = [folder for folder in path.parents if not folder.exists()]
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            _temporary(path).touch()
        finally:
            for undo in (_temporary(path).unlink, *(folder.rmdir for folder in absent)):
                with suppress(OSError):  # not made, because of what is told
                    undo()


def _temporary(path: Path) -> Path:
    """The name of `replacing`, which a long name of `path` does not make too long."""
    return path.with_name(f".{path.stem[:40]}.{os.getpid()}.tmp{path.suffix}")


def clear_unfinished(folder: Path) -> None:
    """Delete what `replacing` left in a folder where its process was killed; no other one may be writing there."""
    for left in folder.glob(".*.[0-9]*.tmp*"):
        left.unlink(missing_ok=True)


def write_text(path: Path, text: str) -> None:
    """Write UTF-8 text whole, its line ends as they are."""
    with replacing(path) as temporary:
        temporary.write_text(text, encoding="utf-8", newline="")


def write_rows(path: Path, columns: Sequence[str], rows: Iterable[dict[str, Any]]) -> None:
    """Write a CSV of `rows`; a column that a row lacks stays empty."""
    with replacing(path) as temporary, open(temporary, "w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, columns, restval="", lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)


@contextmanager
def undamaged(file: Path, todo: str = "delete it and run the same command again") -> Iterator[None]:
    """Turn what reading a file raises that was cut, emptied or replaced into a UserError that says what to do.

    For a file that we wrote, in a block that reads it and does nothing else.
    """
    try:
        yield
    except OSError as error:
        raise _refused(file, error) from None
    except (ValueError, LookupError, TypeError, AttributeError, EOFError, BadZipFile, zlib.error):
        raise UserError(f"{file} is damaged; {todo}") from None


def read_object(file: Path, *keys: str) -> dict[str, Any]:
    """Read a JSON object that we wrote. Raises UserError for a damaged one, or one without some of `keys`."""
    with undamaged(file):
        content: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
        if not content.keys() >= set(keys):
            raise KeyError
    return content


def read_or_empty(file: Path) -> dict[str, Any]:
    """Read a JSON object; an empty one where there is none."""
    try:
        return read_object(file)
    except UserError:
        return {}


def read_rows(file: Path, **how: Any) -> pd.DataFrame:
    """Read a CSV that we wrote as `pandas.read_csv` does with `how`. Raises UserError for a damaged one."""
    import pandas as pd  # here, because not all who write files read tables

    with undamaged(file):
        content = file.read_bytes()
        if not content.endswith(b"\n"):  # cut within the last value, it would be read as a shorter one
            raise ValueError
        return pd.read_csv(io.BytesIO(content), **how)


def require_space(folder: Path, needed: int, name: str) -> None:
    """Raise UserError where `folder` has less than `needed` bytes free."""
    free = shutil.disk_usage(folder).free
    if free < needed:
        raise UserError(
            f"{folder} has {free / 1e6:,.0f} MB free, but {name} needs {needed / 1e6:,.0f} MB more; "
            "free space there or name another folder"
        )


def require_writable_folders(*folders: Path) -> None:
    """Raise UserError for a folder that cannot be written, or that is not there and cannot be made."""
    for folder in folders:
        there = next(path for path in (folder, *folder.absolute().parents) if path.exists())
        if not (there.is_dir() and os.access(there, os.W_OK | os.X_OK)):
            raise UserError(
                f"{folder.absolute()} cannot be written, but files are made there; change the permissions or copy the "
                "project to a folder where you may write"
            )


def file_sha256(path: Path) -> str:
    """Return the sha256 of a file's bytes."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


@contextmanager
def on_disk(path: Path) -> Iterator[None]:
    """Turn what the disk refuses into a UserError; what is written already stays."""
    try:
        yield
    except gzip.BadGzipFile:  # an OSError by its class, but of the archive that is read
        raise
    except OSError as error:
        raise _refused(path, error) from error


@contextmanager
def refusals_named() -> Iterator[None]:
    """Turn what the file system refuses (REFUSALS) of a file that the error names into a UserError."""
    try:
        yield
    except OSError as error:
        if error.filename is None or error.errno not in REFUSALS:
            raise
        raise _refused(Path(os.fsdecode(error.filename)), error) from error


def _refused(path: Path, error: OSError) -> UserError:
    if error.errno in FULL:
        advice = "the disk is full: free space, then the same command goes on"
    elif error.errno == errno.ENAMETOOLONG:
        advice = "give a shorter name"
    else:
        advice = "check the folder, its permissions and the free space"
    return UserError(f"{path} cannot be read or written ({error.strerror or error}); {advice}")
