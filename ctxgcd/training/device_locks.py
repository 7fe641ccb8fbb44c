"""Locks that give each device of a host to one process at a time; the kernel releases them when a process ends."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from filelock import FileLock, Timeout

from ctxgcd.utils.files import on_disk

LOCKS = Path("/tmp/ctxgcd-devices")  # not TMPDIR, which may differ between jobs
WAIT = 2.0  # seconds between two attempts
ANYONE = 0o666  # other users of the host share the locks


@contextmanager
def borrowed(names: Sequence[str], count: int, folder: Path = LOCKS, wait: float = WAIT) -> Iterator[list[int]]:
    """Lock `count` of the named devices, waiting until enough are free; yield their positions in `names`.

    A name must refer to the same device in every process of the host. A process that needs several devices locks each
    one as it becomes free, so that it is not starved; only one process does so at a time, which prevents deadlocks.
    """
    with ExitStack() as locks:
        with on_disk(folder):
            folder.mkdir(parents=True, exist_ok=True)
            with suppress(PermissionError):  # owned by another user, who has made it writable for all
                folder.chmod(0o777)  # without the sticky bit, for which filelock refuses another user's locks
        with ExitStack() as turn:
            while count > 1 and not _locked(folder / "several.lock", turn):
                time.sleep(wait)
            held: list[int] = []
            while True:
                for place, name in enumerate(names):
                    if len(held) < count and place not in held and _locked(folder / f"{name}.lock", locks):
                        held.append(place)
                if len(held) == count:
                    break
                time.sleep(wait)
        yield sorted(held)


def _locked(file: Path, locks: ExitStack) -> bool:
    """Return whether this process acquired a lock, which is held until `locks` ends."""
    lock = FileLock(file, mode=ANYONE)
    with on_disk(file):
        try:
            lock.acquire(timeout=0)
        except Timeout:
            return False
        with suppress(PermissionError):  # owned by another user; otherwise this overrides the umask
            os.chmod(file, ANYONE)
    locks.callback(lock.release)
    return True
