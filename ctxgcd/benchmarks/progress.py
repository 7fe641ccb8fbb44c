"""What a long transfer needs: lines of progress, enough space, and words for what a disk refuses."""

from __future__ import annotations

import errno
import gzip
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ctxgcd.errors import UserError

MB = 1_000_000
EVERY = 2.0  # seconds between two lines of progress
FULL = (errno.ENOSPC, errno.EDQUOT)


class Progress:
    """Prints how far something is, at most one line every two seconds; all amounts in bytes."""

    def __init__(self, what: str, total: int | None, done: int = 0) -> None:
        self.what, self.total, self.done, self.first = what, total, done, done
        self.started = self.shown = time.monotonic()

    def add(self, amount: int) -> None:
        """Count `amount` more."""
        self.done += amount
        now = time.monotonic()
        if now - self.shown >= EVERY:
            self.shown = now
            print(f"  {self._line((self.done - self.first) / (now - self.started))}", flush=True)

    def _line(self, rate: float) -> str:
        line = f"{self.what}: {self.done / MB:,.0f}"
        if not self.total:
            return f"{line} MB, {rate / MB:.1f} MB/s"
        left = round((self.total - self.done) / max(rate, 1.0))
        return f"{line} / {self.total / MB:,.0f} MB, {rate / MB:.1f} MB/s, {left // 60}:{left % 60:02d} min left"


def require_space(folder: Path, needed: int, name: str) -> None:
    """Raise UserError where `folder` has less than `needed` bytes free."""
    free = shutil.disk_usage(folder).free
    if free < needed:
        raise UserError(
            f"{folder} has {free / MB:,.0f} MB free, but {name} needs {needed / MB:,.0f} MB more; "
            "free space there or name another folder"
        )


@contextmanager
def on_disk(path: Path) -> Iterator[None]:
    """Turn what the disk refuses into a UserError; what is written already stays."""
    try:
        yield
    except gzip.BadGzipFile:  # an OSError by its class, but of the archive that is read
        raise
    except OSError as error:
        advice = (
            "the disk is full: free space, then the same command goes on"
            if error.errno in FULL
            else "check the folder and its permissions"
        )
        raise UserError(f"{path} cannot be read or written ({error.strerror or error}); {advice}") from error
