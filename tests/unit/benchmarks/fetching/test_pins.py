"""Checksums of data that is too large to copy."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from ctxgcd.benchmarks.fetching.pins import check_pins, write_pins
from ctxgcd.errors import UserError


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name in ("a/1.jpg", "a/2 ö.jpg", "b/c/3.jpg", ".hidden/4.jpg", "a/._1.jpg"):
        (tmp_path / "data" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "data" / name).write_text(name)
    return tmp_path / "data"


def test_written_pins_hold_and_are_read_by_sha256sum(folder: Path, tmp_path: Path) -> None:
    pins = tmp_path / "pins" / "data.sha256"
    assert write_pins(folder, pins) == check_pins(folder, pins) == 3
    subprocess.run(["sha256sum", "--check", "--quiet", str(pins)], cwd=folder, check=True)
    before = pins.read_bytes()
    write_pins(folder, pins)
    assert pins.read_bytes() == before


def test_every_difference_is_counted(folder: Path, tmp_path: Path) -> None:
    pins = tmp_path / "data.sha256"
    write_pins(folder, pins)
    (folder / "a/1.jpg").write_text("a/1.jpG")
    (folder / "b/c/3.jpg").rename(folder / "b/3.jpg")
    with pytest.raises(UserError, match=r"1 missing \(first b/c/3.jpg\), 1 not pinned \(first b/3.jpg\), 1 changed"):
        check_pins(folder, pins)


def test_all_names_that_cannot_be_pinned_are_listed(folder: Path, tmp_path: Path) -> None:
    for name in (b"k\xe4fer.jpg", b"a\nb.jpg", b"a\rb.jpg"):
        Path(os.fsdecode(os.fsencode(folder) + b"/" + name)).touch()
    with pytest.raises(UserError, match=r"not UTF-8: 'a\\nb.jpg', 'a\\rb.jpg', 'k\\xe4fer.jpg'; rename them"):
        write_pins(folder, tmp_path / "pins")


def test_mistakes(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="does not exist; write it first"):
        check_pins(folder, tmp_path / "none")
    (tmp_path / "none").write_text("no pins\n")
    with pytest.raises(UserError, match=r"line 1 is 'no pins', but expected a SHA-256"):
        check_pins(folder, tmp_path / "none")
    with pytest.raises(UserError, match="does not exist; give the folder"):
        write_pins(tmp_path / "away", tmp_path / "none")
    (tmp_path / "empty").mkdir()
    with pytest.raises(UserError, match="contains no files to pin"):
        write_pins(tmp_path / "empty", tmp_path / "none")
