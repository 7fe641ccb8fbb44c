"""Cached runs: copied, damaged, or not deletable."""

from __future__ import annotations

import subprocess
from contextlib import suppress
from pathlib import Path

import pytest

from ctxgcd.errors import UserError
from ctxgcd.pipeline import run_cache


def kept(state: Path) -> None:
    made = run_cache.draft(state)
    for name in run_cache.FILES:
        (made / name).write_text(f"content of {name}")
    run_cache.keep(state)


def test_a_finished_run_is_copied_from_the_cache(tmp_path: Path) -> None:
    out = tmp_path / "out"
    assert not run_cache.give(tmp_path / "state", out)
    run_cache.draft(tmp_path / "state")
    assert not run_cache.give(tmp_path / "state", out)  # killed while the files were written
    kept(tmp_path / "state")
    (out / "run.json").parent.mkdir()
    (out / "run.json").write_text("of another run")
    assert run_cache.give(tmp_path / "state", out)
    assert {path.name: path.read_text() for path in out.iterdir()} == {n: f"content of {n}" for n in run_cache.FILES}
    (out / "final.pt").write_text("changed by a reader")
    assert run_cache.give(tmp_path / "state", out)
    assert (out / "final.pt").read_text() == "content of final.pt"


@pytest.mark.parametrize("name", [*run_cache.FILES, run_cache.SUMS])
def test_a_damaged_finished_run_is_trained_again(tmp_path: Path, name: str, capsys: pytest.CaptureFixture[str]) -> None:
    kept(tmp_path)
    file = tmp_path / "finished" / name
    file.write_text(file.read_text()[:-1])
    assert not run_cache.give(tmp_path, tmp_path / "out")
    assert "is damaged; it is trained again" in capsys.readouterr().out
    assert not (tmp_path / "out").exists()
    assert not (tmp_path / "finished").exists()


def test_a_cached_run_that_is_not_a_folder_is_trained_again(tmp_path: Path) -> None:
    (tmp_path / "finished").write_text("")
    assert not run_cache.give(tmp_path, tmp_path / "out")
    assert not (tmp_path / "finished").exists()


def test_a_cached_run_that_cannot_be_deleted_or_copied_is_named(full_disk: Path) -> None:
    state = full_disk / "state"
    kept(state)
    with suppress(OSError):
        (full_disk / "big").write_bytes(bytes(2**21))
    with pytest.raises(UserError, match=r"run\.json cannot be read or written .*; the disk is full"):
        run_cache.give(state, full_disk / "out")
    (state / "finished" / run_cache.SUMS).write_text("{")
    subprocess.run(["mount", "-o", "remount,ro", str(full_disk)], check=True)
    with pytest.raises(UserError, match=r"finished cannot be read or written \(Read-only file system\); check"):
        run_cache.give(state, full_disk / "out")
