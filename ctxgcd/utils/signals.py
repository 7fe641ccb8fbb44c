"""Ending in order: what SIGTERM, Ctrl-C, and a Snakemake that is gone, do to its jobs."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import FrameType

SIGNALS = (signal.SIGINT, signal.SIGTERM)
STARTED_BY = "CTXGCD_STARTED_BY"  # the snakemake that started a job: its process id, and where that is known
STOPPED = "stopped; what was finished is kept, and the same command goes on from there"
Handler = Callable[[int, FrameType | None], object]
_stopped: list[int] = []  # the signals at which Snakemake's own process stops its jobs


@contextmanager
def stoppable() -> Iterator[None]:
    """Raise KeyboardInterrupt at the first SIGTERM or SIGINT, or when the snakemake that started this job is gone.

    So a job leaves its `with` blocks, which delete half-written files and free locks, and no orphan goes on computing
    where nobody waits for it. What was ignored at the start, as by `nohup`, stays ignored. An error that a library
    raises in place of the KeyboardInterrupt, as torch.save does, becomes it again.
    """

    stopping = False

    def stop(number: int, frame: FrameType | None) -> None:
        nonlocal stopping
        stopping = True
        for caught in before:
            signal.signal(caught, signal.SIG_IGN)  # what is being left in order is not to be interrupted again
        raise KeyboardInterrupt

    before = {number: was for number in SIGNALS if (was := signal.getsignal(number)) is not signal.SIG_IGN}
    for number in before:
        signal.signal(number, stop)
    starter, _, namespace = os.environ.get(STARTED_BY, "").partition(" ")
    if starter and namespace == _namespace():
        threading.Thread(target=_end_with, args=(int(starter),), daemon=True).start()
    try:
        yield
    except Exception as error:
        if stopping:
            raise KeyboardInterrupt from error
        raise
    finally:
        if not stopping:  # else it ends, and they stay ignored
            for number, was in before.items():
                signal.signal(number, was)


def sign() -> None:
    """In Snakemake's own process: tell its jobs which process they end with."""
    os.environ[STARTED_BY] = f"{os.getpid()} {_namespace()}"


def _namespace() -> str:
    """Which processes can be seen from here: a job in a container may not see the one that started it."""
    try:
        return os.readlink("/proc/self/ns/pid")
    except OSError:  # not Linux
        return ""


def _end_with(starter: int) -> None:
    """Send this process SIGTERM when the process `starter` has ended."""
    while _exists(starter):
        time.sleep(0.5)
    os.kill(os.getpid(), signal.SIGTERM)


def _exists(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def stop_after(minutes: float) -> None:
    """Send this process SIGTERM when its time is over, for want of a queue that would."""

    def stop() -> None:
        print(f"the time limit of {minutes:g} minutes is over", file=sys.stderr, flush=True)
        os.kill(os.getpid(), signal.SIGTERM)

    timer = threading.Timer(60 * minutes, stop)
    timer.daemon = True
    timer.start()


def stop_jobs_too() -> None:
    """In Snakemake's own process: let SIGTERM and SIGINT stop its jobs, and a second one kill them.

    By itself Snakemake waits at SIGTERM until its running jobs have ended, which may take a day, and at SIGINT too
    where the signal reached it alone and not its jobs, as from a supervisor.
    """
    import psutil  # Snakemake brings it

    def stop(number: int, frame: FrameType | None) -> None:
        for job in psutil.Process().children(recursive=True):
            with suppress(psutil.NoSuchProcess):  # it ended meanwhile
                if job.name().startswith("python"):  # its shell and `tee` end with it, and show its last words
                    (job.kill if _stopped else job.terminate)()
        if not _stopped:
            _stopped.append(number)
            raise KeyboardInterrupt

    for number in SIGNALS:
        signal.signal(number, stop)


def told_to_stop() -> bool:
    """Whether Snakemake's own process was stopped by a signal."""
    return bool(_stopped)
