"""Each device has one owner: real processes, simulated lists of devices, kills at random moments."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

from ctxgcd.training.device_locks import borrowed
from tests.helpers.places import ROOT

# Each owner creates a file with the name of its device, which must not exist, and deletes it at the end. After a kill,
# the next owner finds the file of a process that no longer exists.
JOB = """
import os, random, sys, time
from pathlib import Path
from ctxgcd.training.device_locks import borrowed

def works(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"  # killed, not yet waited for
    except OSError:
        return False

folder, names, count, seconds = Path(sys.argv[1]), sys.argv[2].split(","), int(sys.argv[3]), float(sys.argv[4])
with borrowed(names, count, folder / "locks", wait=0.02) as held:
    for place in held:
        owner = folder / f"owner-{names[place]}"
        if owner.exists() and works(owner.read_text()):
            (folder / "two-owners").write_text(names[place])
        owner.write_text(str(os.getpid()))
    (folder / f"{os.getpid()}.got").write_text(",".join(names[place] for place in held))
    time.sleep(seconds)
    for place in held:
        (folder / f"owner-{names[place]}").unlink()
(folder / f"{os.getpid()}.done").touch()
"""


def job(folder: Path, names: str, count: int = 1, seconds: float = 0.3) -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, "-c", JOB, str(folder), names, str(count), str(seconds)], cwd=ROOT)


@pytest.mark.slow
def test_two_devices_eight_jobs_and_kills(tmp_path: Path) -> None:
    """Half of the jobs see both devices, the others one each; every second job is killed while it works or waits."""
    chance = random.Random(0)
    jobs = [job(tmp_path, ("a,b", "a", "a,b", "b")[number % 4]) for number in range(8)]
    for killed in jobs[::2]:
        time.sleep(chance.uniform(0.05, 0.5))
        killed.send_signal(signal.SIGKILL)
    assert [survivor.wait(timeout=30) for survivor in jobs[1::2]] == [0] * 4
    for killed in jobs[::2]:
        killed.wait()
    assert not (tmp_path / "two-owners").exists()
    with borrowed(["a", "b"], 2, tmp_path / "locks", wait=0.02) as held:  # all are free again
        assert held == [0, 1]


def test_a_job_of_several_devices_is_not_starved(tmp_path: Path) -> None:
    """A job that requests all devices gets them between jobs of one device, without deadlocks."""
    singles = [job(tmp_path, "a,b", seconds=0.4) for _ in range(2)]
    while len(list(tmp_path.glob("*.got"))) < 2:
        time.sleep(0.02)
    both = [job(tmp_path, "a,b", count=2), job(tmp_path, "a,b", count=2)]
    deadline = time.monotonic() + 30
    while any(process.poll() is None for process in both):
        singles = [job(tmp_path, "a,b", seconds=0.4) if s.poll() is not None else s for s in singles]
        assert time.monotonic() < deadline
        time.sleep(0.02)
    assert [process.returncode for process in both] == [0, 0]
    for process in singles:
        assert process.wait(timeout=30) == 0
    assert not (tmp_path / "two-owners").exists()


def test_only_visible_devices_are_taken(tmp_path: Path) -> None:
    with borrowed(["b"], 1, tmp_path), borrowed(["a", "b", "c"], 2, tmp_path) as held:
        assert held == [0, 2]


# One after another, as users of the host who create the folder and a lock in it, and lock both devices.
USERS = """
import os, sys
from pathlib import Path
from ctxgcd.training.device_locks import borrowed

for user, names in ((1001, ["a"]), (1002, ["b"]), (1001, ["b"]), (1003, ["a", "b"]), (0, ["a", "b"])):
    child = os.fork()
    if not child:
        os.setresuid(user, user, user)
        os.umask(0o077)
        with borrowed(names, len(names), Path(sys.argv[1]), wait=0.1):
            os._exit(0)
    assert os.waitpid(child, 0)[1] == 0, user
"""


@pytest.mark.skipif(os.getuid() != 0, reason="only root can work as several users")
def test_other_users_of_the_host_can_use_the_locks() -> None:
    with tempfile.TemporaryDirectory() as folder:  # pytest's own are closed to others
        os.chmod(folder, 0o777)
        subprocess.run([sys.executable, "-c", USERS, f"{folder}/locks"], cwd=ROOT, check=True, timeout=60)
