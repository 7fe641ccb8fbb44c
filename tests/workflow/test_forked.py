"""The forked `python` behaves as the real one for the workflow's jobs."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from tests.helpers.forked import programs
from tests.helpers.processes import wait_for

TOLD = """
import atexit, os, sys
print(sys.argv[1:], os.getcwd(), os.environ["MARK"], sys.stdin.read(), "MARK_AT_START" in os.environ, sys.path[:2])
print([name for name in sys.modules if name.startswith("ctxgcd")], __name__, end="")
print("to stderr", file=sys.stderr)
atexit.register(print, "; atexit")
"""
ENDS = {
    "the end": "",
    "a status": "raise SystemExit(3)",
    "a sentence": "raise SystemExit('error: no')",
    "an error": "1 / 0",
    "a signal": "import os; os.kill(os.getpid(), 9)",
    "threads": "import os, torch; print(torch.get_num_threads(), os.environ['OMP_NUM_THREADS'])",
}


def both(script: Path) -> list[tuple[int, str, list[str]]]:
    """Return the exit status and streams of the real and of the forked program."""
    environment = os.environ | {"PYTHONPATH": str(script.parent), "MARK": "é", "OMP_NUM_THREADS": "2"}
    calls = [
        subprocess.run(
            [python, script, "a b", "--c"],
            cwd=script.parent,
            env=environment,
            text=True,
            input="in",
            capture_output=True,
        )
        for python in (sys.executable, programs() / "python")
    ]
    return [(call.returncode, call.stdout, call.stderr.splitlines()[-1:]) for call in calls]


@pytest.mark.parametrize("end", ENDS)
def test_it_ends_as_the_real_one(tmp_path: Path, end: str) -> None:
    (tmp_path / "sitecustomize.py").write_text("import os\nos.environ['MARK_AT_START'] = ''\n")
    script = tmp_path / "script.py"
    script.write_text(TOLD + ENDS[end])
    real, forked = both(script)
    assert forked == real


WAITS = """
import pathlib, os, signal, sys, time
signal.signal(signal.SIGTERM, lambda *_: sys.exit(5))
pathlib.Path("pid").write_text(str(os.getpid()))
time.sleep(60)
"""


@pytest.mark.parametrize(("sent", "status"), [(signal.SIGTERM, 5), (signal.SIGKILL, -9)])
def test_a_signal_ends_both_the_client_and_its_fork(tmp_path: Path, sent: signal.Signals, status: int) -> None:
    (tmp_path / "script.py").write_text(WAITS)
    client = subprocess.Popen([programs() / "python", "script.py"], cwd=tmp_path)
    file = tmp_path / "pid"
    wait_for(lambda: file.exists() and file.read_text())
    client.send_signal(sent)
    assert client.wait(timeout=10) == status
    wait_for(lambda: not psutil.pid_exists(int(file.read_text())))
