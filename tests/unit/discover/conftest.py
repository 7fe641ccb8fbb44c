"""One discovery, of which the tests of this folder look at results."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.helpers.discovery import Place, make_place


@contextmanager
def one_core() -> Iterator[None]:
    """Such small work is faster on one thread, also in processes that are started."""
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
    """A discovery in `out`, inside the folder of the images: what api.discover returned."""
    with one_core():  # this fixture is made before that of the module
        return place.discover("photos/out")


@pytest.fixture
def out(place: Place, found: dict[str, Any]) -> Path:
    return place.root / "photos/out"
