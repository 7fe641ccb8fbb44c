"""Downloads of the official archives from a mirror."""

from __future__ import annotations

import hashlib
import os
import signal
import subprocess
import sys
import tarfile
import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest
from filelock import FileLock

from ctxgcd.benchmarks.fetching.archives import ARCHIVES, fetch
from ctxgcd.benchmarks.fetching.unpack import unpack
from ctxgcd.benchmarks.readers.registry import READERS
from ctxgcd.errors import UserError
from tests.helpers.layouts import write_fixture
from tests.helpers.places import ROOT
from tests.helpers.processes import wait_for
from tests.helpers.server import CONTENT, ELSEWHERE, Behaviour, sha256

# --- fetch


@pytest.fixture
def mirror(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a small CIFAR-10 archive, whose checksum replaces the official one."""
    write_fixture("cifar10", tmp_path / "made", train_per_class=2)
    archive = tmp_path / "my mirror" / ARCHIVES["cifar10"].name
    archive.parent.mkdir()
    with tarfile.open(archive, "w:gz") as tar:
        tar.add(tmp_path / "made" / "cifar10" / "cifar-10-batches-py", "cifar-10-batches-py")
    content = archive.read_bytes()
    known = replace(ARCHIVES["cifar10"], checksum=sha256(content), bytes=len(content))
    monkeypatch.setitem(ARCHIVES, "cifar10", known)
    return archive.parent


@pytest.mark.parametrize("scheme", ["http", "file"])
def test_fetch_from_a_mirror(
    server: Behaviour,
    mirror: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    scheme: str,
) -> None:
    server.content = (mirror / ARCHIVES["cifar10"].name).read_bytes()
    address = f"file://{mirror}" if scheme == "file" else f"{server.address}/my mirror"
    monkeypatch.setenv("CTXGCD_MIRROR", f"{address}/" if scheme == "file" else address)
    folder = tmp_path / "data" / "cifar10"
    fetch("cifar10", folder, ELSEWHERE)
    assert len(READERS["cifar10"].manifest(folder)) == 30
    assert {path.name for path in folder.iterdir()} <= {"cifar-10-batches-py", ".fetch.lock"}
    assert capsys.readouterr().out.splitlines()[-1] == f"cifar-10-python.tar.gz unpacked to {folder}"
    monkeypatch.setenv("CTXGCD_MIRROR", "http://no-such-host.invalid")
    fetch("cifar10", folder, ELSEWHERE)
    assert capsys.readouterr().out == f"{folder} already has the files of cifar-10-python.tar.gz; skipped\n"
    assert len(server.log) == (scheme == "http")


def test_incomplete_folder_is_fetched_again(mirror: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CTXGCD_MIRROR", f"file://{mirror}")
    (tmp_path / "cifar-10-batches-py").mkdir()
    (tmp_path / "cifar-10-batches-py" / "data_batch_1").write_bytes(b"half")
    fetch("cifar10", tmp_path, ELSEWHERE)
    assert len(READERS["cifar10"].manifest(tmp_path)) == 30


def test_second_fetch_waits_and_finds_the_files(
    mirror: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("CTXGCD_MIRROR", "http://no-such-host.invalid")
    folder = tmp_path / "data"
    folder.mkdir()
    with FileLock(folder / ".fetch.lock"):
        second = threading.Thread(target=fetch, args=("cifar10", folder, ELSEWHERE))
        second.start()
        time.sleep(0.3)
        assert second.is_alive()
        unpack(mirror / ARCHIVES["cifar10"].name, folder)
    second.join(timeout=5)
    assert not second.is_alive()
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == f"waiting for another download to {folder}"
    assert lines[-1].endswith("cifar-10-python.tar.gz; skipped")


def test_archive_without_its_files(mirror: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CTXGCD_MIRROR", f"file://{mirror}")
    monkeypatch.setitem(ARCHIVES, "cifar10", replace(ARCHIVES["cifar10"], unpacks_to=("absent",)))
    with pytest.raises(UserError, match="does not contain absent; how to get it: ask the librarian"):
        fetch("cifar10", tmp_path / "data", ELSEWHERE)


def test_wrong_requests(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(
        UserError, match=r"'scars' cannot be downloaded .*cifar10, cifar100, cub, aircraft.*ask the lib"
    ):
        fetch("scars", tmp_path, ELSEWHERE)
    with pytest.raises(UserError, match=r"the variable \$NOWHERE, which is not set"):
        fetch("cub", Path("$NOWHERE/cub"), ELSEWHERE)
    monkeypatch.setenv("CTXGCD_MIRROR", "/some/folder")
    with pytest.raises(UserError, match=r"CTXGCD_MIRROR is '/some/folder', but expected the URL"):
        fetch("cub", tmp_path, ELSEWHERE)
    monkeypatch.setenv("CTXGCD_MIRROR", f"file://{tmp_path}")
    with pytest.raises(
        UserError, match=r"No such file or directory.*ask the librarian \(or set CTXGCD_MIRROR to a mirror"
    ):
        fetch("cub", tmp_path / "cub", ELSEWHERE)


def test_archives_are_those_that_the_readers_know() -> None:
    for reader, archive in ARCHIVES.items():
        assert archive.address.endswith(f"/{archive.name}")
        assert archive.name in READERS[reader].how_to_get
        algorithm, _, digest = archive.checksum.partition(":")
        assert len(digest) == 2 * hashlib.new(algorithm).digest_size
        assert set(READERS[reader].files) <= set(archive.unpacks_to)
    assert ARCHIVES["cifar10"].checksum.removeprefix("md5:") in READERS["cifar10"].how_to_get


def test_an_interrupted_script_is_resumed(server: Behaviour, mirror: Path, tmp_path: Path) -> None:
    """Ctrl-C in the real script, which expects the official archive, so the checksum fails at the end."""
    server.content = CONTENT
    server.headers = {"Content-Length": str(ARCHIVES["cifar100"].bytes)}
    server.piece, server.delay = 10_000, 0.02
    environment = os.environ | {"CTXGCD_MIRROR": server.address, "CTXGCD_DATA": str(tmp_path), "PYTHONPATH": str(ROOT)}
    command = [sys.executable, str(ROOT / "workflow/scripts/fetch_data.py"), "--reader=cifar100", "--folder=c"]
    with subprocess.Popen(command, env=environment, text=True, stderr=subprocess.PIPE) as process:
        kept = tmp_path / "c" / "cifar-100-python.tar.gz.part"
        wait_for(lambda: kept.exists() and kept.stat().st_size > 50_000)
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=20)
    assert (process.returncode, errors) == (130, "\ninterrupted; run the same command again to resume\n")
    assert kept.stat().st_size > 50_000
