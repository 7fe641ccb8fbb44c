"""Files after an interrupted job or a full disk."""

from __future__ import annotations

import io
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch

from ctxgcd.errors import UserError
from ctxgcd.models import weights
from ctxgcd.models.weights import build, prepare
from ctxgcd.training import checkpoint
from ctxgcd.utils.files import clear_unfinished, replacing, require_writable_folders, write_text
from tests.helpers.places import ROOT

JOB = """
import sys, time
from pathlib import Path
from ctxgcd.utils.reporting import reported
from ctxgcd.utils.files import replacing

with reported(), replacing(Path(sys.argv[1])) as temporary:
    temporary.write_text("half")
    print("ready", flush=True)
    for _ in range(600):
        time.sleep(0.1)
"""


def started(out: Path, **environment: str) -> subprocess.Popen[str]:
    """Start a job that is writing `out`."""
    process = subprocess.Popen(
        [sys.executable, "-c", JOB, str(out)],
        cwd=ROOT,
        env=os.environ | environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout
    assert process.stdout.readline() == "ready\n"
    return process


def test_incomplete_files_of_a_killed_job_are_deleted(tmp_path: Path) -> None:
    for name in ("last.pt", "history.csv"):
        process = started(tmp_path / name)
        process.kill()
        process.communicate()
    kept = [tmp_path / "last.pt", tmp_path / ".own.tmp"]
    for file in kept:
        file.write_text("as it was")
    assert len(list(tmp_path.iterdir())) == 4
    clear_unfinished(tmp_path)
    assert sorted(tmp_path.iterdir()) == sorted(kept)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_an_interrupted_job_leaves_no_incomplete_file(tmp_path: Path, number: signal.Signals) -> None:
    out = tmp_path / "out.txt"
    out.write_text("as it was")
    process = started(out)
    process.send_signal(number)
    process.send_signal(number)
    _, errors = process.communicate(timeout=10)
    assert process.returncode == 130
    assert errors == "interrupted; finished work is kept, and running the same command again resumes from there\n"
    assert [path.name for path in tmp_path.iterdir()] == ["out.txt"]
    assert out.read_text() == "as it was"


SAVING = """
import io, os, signal
import torch
from ctxgcd.utils.reporting import reported

class File(io.BytesIO):
    def write(self, data):
        if self.tell():
            os.kill(os.getpid(), signal.SIGINT)
        return super().write(data)

with reported():
    torch.save(torch.zeros(100_000), File())
"""


def test_a_job_interrupted_in_torch_save_prints_only_the_interruption() -> None:
    """torch.save raises another error instead of the KeyboardInterrupt."""
    done = subprocess.run([sys.executable, "-c", SAVING], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 130
    assert done.stderr == "interrupted; finished work is kept, and running the same command again resumes from there\n"


def test_an_interrupted_save_is_an_interruption(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class File(io.FileIO):
        def write(self, data: Any) -> int:
            if self.tell():
                raise KeyboardInterrupt
            return super().write(data)

    monkeypatch.setattr(Path, "open", lambda path, mode: File(path, mode))
    with pytest.raises(KeyboardInterrupt):
        weights.save(tmp_path / "last.pt", torch.zeros(100_000))
    assert not list(tmp_path.iterdir())


def test_a_job_ends_with_the_snakemake_that_started_it(tmp_path: Path) -> None:
    starter = subprocess.Popen(["sleep", "60"])
    namespace = os.readlink("/proc/self/ns/pid") if sys.platform == "linux" else ""
    job = started(tmp_path / "out.txt", CTXGCD_STARTED_BY=f"{starter.pid} {namespace}")
    stranger = started(tmp_path / "other.txt", CTXGCD_STARTED_BY=f"{starter.pid} elsewhere")
    time.sleep(1)
    assert job.poll() is None
    starter.kill()
    starter.wait()
    assert job.wait(timeout=10) == 130
    assert stranger.poll() is None  # from a container or host where that process is not visible
    stranger.kill()
    stranger.communicate()


def test_a_job_stops_itself_at_its_time_limit(tmp_path: Path) -> None:
    limited = JOB.replace("print(", "stop_after(0.0001)\n    print(")
    call = [sys.executable, "-c", f"from ctxgcd.utils.signals import stop_after\n{limited}", str(tmp_path / "out")]
    done = subprocess.run(call, cwd=ROOT, text=True, capture_output=True, timeout=30)
    assert done.returncode == 130
    assert done.stderr.startswith("the time limit of 0.0001 minutes is reached\ninterrupted; finished work is kept")
    assert not list(tmp_path.iterdir())


def test_signals_ignored_by_nohup_stay_ignored(tmp_path: Path) -> None:
    call = f"import signal; signal.signal(signal.SIGINT, signal.SIG_IGN)\n{JOB}"
    with subprocess.Popen([sys.executable, "-c", call, str(tmp_path / "out")], cwd=ROOT, stdout=subprocess.PIPE) as job:
        assert job.stdout
        job.stdout.readline()
        job.send_signal(signal.SIGINT)
        time.sleep(0.5)
        assert job.poll() is None
        job.kill()


def test_a_full_disk_keeps_the_earlier_state(full_disk: Path, tmp_path: Path) -> None:
    weights = tmp_path / "tiny.pth"
    torch.save(build("vit_tiny_patch16_224", 32).state_dict(), weights)
    state = full_disk / "run" / "last.pt"
    checkpoint.save(state, "ctxgcd-state", {"epoch": 1})
    with pytest.raises(
        UserError, match=r"last\.pt cannot be read or written \(No space left on device\); the disk is full"
    ):
        checkpoint.save(state, "ctxgcd-state", {"epoch": 2, "network": torch.zeros(2**20)})
    assert checkpoint.load(state, "ctxgcd-state")["epoch"] == 1
    with pytest.raises(UserError, match=r"tiny\.pt cannot be read or written .*; the disk is full"):
        prepare("vit_tiny_patch16_224", str(weights), 32, full_disk / "run" / "tiny.pt")
    text = full_disk / "text"
    with pytest.raises(
        UserError, match=r"text cannot be read or written \(No space left on device\); the disk is full"
    ):
        write_text(text, "x" * 2**21)
    assert [path.name for path in full_disk.iterdir()] == ["run"]
    assert [path.name for path in state.parent.iterdir()] == ["last.pt"]


def test_a_read_only_folder_is_named(full_disk: Path) -> None:
    subprocess.run(["mount", "-o", "remount,ro", str(full_disk)], check=True)
    refused = r"cannot be read or written \(Read-only file system\); check the folder"
    with pytest.raises(UserError, match=f"state {refused}"), checkpoint.owned(full_disk / "state"):
        pass
    with pytest.raises(UserError, match=f"text {refused}"):
        write_text(full_disk / "text", "x")


def test_a_folder_that_is_not_writable_is_reported_first(full_disk: Path) -> None:
    (full_disk / "results").mkdir()
    (full_disk / "file").touch()
    wanted = [full_disk / "results", full_disk / "work/deep"]
    require_writable_folders(*wanted)
    assert not wanted[1].parent.exists()
    with pytest.raises(UserError, match="/file is not writable; change"):
        require_writable_folders(full_disk / "file")
    subprocess.run(["mount", "-o", "remount,ro", str(full_disk)], check=True)
    for folder in wanted:
        with pytest.raises(UserError, match=f"{folder} is not writable; change"):
            require_writable_folders(folder)


def test_errors_of_other_files_are_not_blamed_on_the_written_one(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError), replacing(tmp_path / "out"):
        (tmp_path / "absent").read_text()
