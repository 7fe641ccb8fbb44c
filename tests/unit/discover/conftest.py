"""A discovery whose results are used by the tests of this folder."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from ctxgcd.cli.command import main
from tests.helpers.discovery import Place, make_place


@contextmanager
def one_core() -> Iterator[None]:
    """Small computations are faster with one thread, also in child processes."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(before)})
    yield
    os.sched_setaffinity(0, before)


@pytest.fixture(scope="module", autouse=True)
def _one_core() -> Iterator[None]:
    with one_core():
        yield


@pytest.fixture(scope="session")
def place(tmp_path_factory: pytest.TempPathFactory) -> Place:
    return make_place(tmp_path_factory.mktemp("own"))


@pytest.fixture(scope="session")
def found(place: Place) -> dict[str, Any]:
    """The return value of api.discover for a discovery in `out`, inside the folder of the images."""
    with one_core():  # this fixture is made before that of the module
        return place.discover("photos/out")


@pytest.fixture
def out(place: Place, found: dict[str, Any]) -> Path:
    return place.root / "photos/out"


@pytest.fixture
def mine(place: Place, out: Path) -> Iterator[Path]:
    """A copy of the results."""
    yield (copy := place.copied(out, "mine"))
    shutil.rmtree(copy)


@pytest.fixture
def refused_call(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[..., str]:
    """A function that calls ctxgcd with these words in `tmp_path` and returns what it prints when it refuses them."""

    def call(*words: str) -> str:
        monkeypatch.chdir(tmp_path)
        monkeypatch.setattr(sys, "argv", ["ctxgcd", *words])
        with pytest.raises(SystemExit, match=r"^2$"):
            main()
        return capsys.readouterr().err

    return call
