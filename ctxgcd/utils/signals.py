"""Graceful shutdown of jobs at SIGTERM, Ctrl-C or the end of their Snakemake process."""

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
STARTED_BY = "CTXGCD_STARTED_BY"  # the snakemake process that started a job: its id, and the namespace of the id
STOPPED = "interrupted; finished work is kept, and running the same command again resumes from there"
Handler = Callable[[int, FrameType | None], object]
_stopped: list[int] = []  # signals at which the Snakemake process stopped its jobs


@contextmanager
def stoppable() -> Iterator[None]:
    """Raise KeyboardInterrupt at the first SIGTERM or SIGINT, or when the snakemake that started this job has ended.

    The job leaves its `with` blocks, which delete incomplete files and release locks, and no orphan keeps computing.
    Signals ignored at the start, as by `nohup`, stay ignored. If a library replaces the KeyboardInterrupt with an
    error of its own, as torch.save does, the KeyboardInterrupt is raised again.
    """

    stopping = False

    def stop(number: int, frame: FrameType | None) -> None:
        nonlocal stopping
        stopping = True
        for caught in before:
            signal.signal(caught, signal.SIG_IGN)  # a second signal does not interrupt the cleanup
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
        if not stopping:  # otherwise the process ends, and signals stay ignored
            for number, was in before.items():
                signal.signal(number, was)


def pass_process_id() -> None:
    """In the Snakemake process: pass its process id to its jobs, which end with it."""
    os.environ[STARTED_BY] = f"{os.getpid()} {_namespace()}"


def _namespace() -> str:
    """Return the PID namespace: a job in a container may not see the process that started it."""
    try:
        return os.readlink("/proc/self/ns/pid")
    except OSError:  # not Linux
        return ""


def _end_with(starter: int) -> None:
    """Send this process SIGTERM when the process `starter` has ended."""
    while exists(starter):
        time.sleep(0.5)
    os.kill(os.getpid(), signal.SIGTERM)


def exists(process: int) -> bool:
    """Return whether there is a process with this number on this host."""
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def stop_after(minutes: float) -> None:
    """Send SIGTERM to this process after a time limit, for executors that do not enforce one."""

    def stop() -> None:
        print(f"the time limit of {minutes:g} minutes is reached", file=sys.stderr, flush=True)
        os.kill(os.getpid(), signal.SIGTERM)

    timer = threading.Timer(60 * minutes, stop)
    timer.daemon = True
    timer.start()


def stop_jobs_on_signals() -> None:
    """In the Snakemake process: SIGTERM and SIGINT stop its jobs, and a second signal kills them.

    By default, Snakemake waits at SIGTERM until its running jobs have ended, which may take a day. It also waits at
    SIGINT if only Snakemake and not its jobs receive the signal, as from a supervisor.
    """
    import psutil  # a dependency of Snakemake

    def stop(number: int, frame: FrameType | None) -> None:
        for job in psutil.Process().children(recursive=True):
            with suppress(psutil.NoSuchProcess):  # the process has already ended
                if job.name().startswith("python"):  # its shell and `tee` end with it and print its last lines
                    (job.kill if _stopped else job.terminate)()
        if not _stopped:
            _stopped.append(number)
            raise KeyboardInterrupt

    for number in SIGNALS:
        signal.signal(number, stop)


def stop_requested() -> bool:
    """Return whether a signal stopped the Snakemake process."""
    return bool(_stopped)
