"""Scripts and calls of Snakemake and DVC as forks of a process that has imported their libraries.

These imports take most of the time of a short job, and the tests start hundreds. The programs `python`, `snakemake` and
`dvc` in the folder `programs()` replace those of the environment; Snakemake's jobs also call the `python` next to it.
Tests of processes, signals, imports and start times use the real programs, in places.PROGRAMS.
"""

from __future__ import annotations

import atexit
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from functools import cache
from pathlib import Path

from tests.helpers.places import PROGRAMS


@cache
def programs() -> Path:
    """Return the folder of the forked programs; their server starts at the first call and ends with this process."""
    folder = Path(tempfile.mkdtemp(prefix="forked"))
    atexit.register(shutil.rmtree, folder)
    client = Path(__file__).with_name("fork_client.py").read_text()
    for name in ("python", "snakemake", "dvc"):
        (folder / name).write_text(f"#!{sys.executable} -SI\n{client}")
        (folder / name).chmod(0o755)
    # The libraries of numpy start their threads when they are imported, and a fork has none of them.
    environment = {name: text for name, text in os.environ.items() if name != "PYTHONPATH"} | {"OMP_NUM_THREADS": "1"}
    server = subprocess.Popen(
        [sys.executable, Path(__file__).with_name("fork_server.py"), folder],
        env=environment | {"MPLBACKEND": "Agg"},
        stdin=subprocess.PIPE,  # whose end ends the server
        stdout=subprocess.PIPE,
        start_new_session=True,
    )
    assert server.stdout
    assert server.stdout.readline() == b"ready\n"
    atexit.register(server.communicate)
    return folder


def snakemake(
    folder: Path, environment: Mapping[str, str], *words: str, patience: float = 1200, forked: bool = True
) -> tuple[int, str]:
    """Call Snakemake in a folder, with changes of the environment; return its status and both streams.

    Without `forked`, it and its jobs are the real programs. A call of more than `patience` seconds is killed, and the
    test fails.
    """
    with tempfile.NamedTemporaryFile() as output:
        code = subprocess.run(
            [(programs() if forked else PROGRAMS) / "snakemake", *words],
            cwd=folder,
            env=os.environ | environment,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            timeout=patience,
        ).returncode
        text = Path(output.name).read_text(errors="replace")
    assert code >= 0, f"killed by signal {-code}: {text[-4000:]}"
    return code, text
