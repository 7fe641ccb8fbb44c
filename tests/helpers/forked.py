"""Calls of Snakemake, each a process of its own that is forked from one which has imported Snakemake already.

That import is most of a dry run's time, and the tests make a hundred. Nothing of ctxgcd is imported before the fork: a
call takes the package of the folder in which it runs, as PYTHONPATH says.
"""

from __future__ import annotations

import atexit
import multiprocessing
import os
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

FORKS = multiprocessing.get_context("forkserver")
FORKS.set_forkserver_preload(["snakemake.cli"])


def snakemake(folder: Path, environment: Mapping[str, str], *words: str, patience: float = 1200) -> tuple[int, str]:
    """Call Snakemake in a folder, with this process's environment but for what is named; its status and both streams.

    A call that takes longer than `patience` seconds is killed, and fails the test.
    """
    with tempfile.NamedTemporaryFile() as output:
        process = FORKS.Process(target=_call, args=(folder, os.environ | environment, words, output.name))
        process.start()
        process.join(patience)
        if process.exitcode is None:
            process.kill()  # so its status is a signal's
            process.join()
        told = output.read().decode(errors="replace")
    code = process.exitcode
    assert code is not None, told[-4000:]
    assert code >= 0, f"killed by signal {-code}: {told[-4000:]}"
    return code, told


def _call(folder: Path, environment: dict[str, str], words: tuple[str, ...], output: str) -> None:
    """What a forked process does: become what a shell would have started."""
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    sys.path[:0] = environment.get("PYTHONPATH", "").split(os.pathsep)
    sys.argv = [str(Path(sys.executable).with_name("snakemake")), *words]
    with open(output, "wb") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    from snakemake.cli import main

    try:
        sys.exit(main())
    finally:
        atexit._run_exitfuncs()  # which multiprocessing leaves out
