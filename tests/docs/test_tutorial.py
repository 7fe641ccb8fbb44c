"""The tutorial is executed line by line, with short trainings, and its output is compared."""

from __future__ import annotations

import doctest
from pathlib import Path

import pytest

from tests.helpers.discovery import short_trainings

TUTORIAL = Path(__file__).parents[2] / "docs" / "tutorial.md"


def test_the_output_in_the_tutorial_is_right(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with short_trainings():
        failed, tried = doctest.testfile(str(TUTORIAL), module_relative=False, encoding="utf-8")
    assert tried > 25
    assert failed == 0  # doctest has printed the differences
