"""Fixtures shared by the tests of several subpackages: the committed params.yaml, as a separate dict or validated."""

from __future__ import annotations

import copy
import gc
import signal
from functools import cache
from typing import Any

import pytest
import yaml

from ctxgcd.config import Params, parse
from tests.helpers.places import ROOT

# If the tests run in the background, their child processes would ignore Ctrl-C, as processes started by `nohup` do.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

gc.disable()  # until all modules are imported, whose objects stay

TESTS = ROOT / "tests"
LONGEST = ("workflow/", "dvc/", "resume/", "clusters/", "unit/discover/", "unit/training/")  # begin in this order
# Folders whose files share what is made once.
TOGETHER = ("tests/workflow/eight/", "tests/unit/discover/", "tests/unit/benchmarks/")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put whole workflows first, so that the processes of `make test` end at about the same time."""

    def place(item: pytest.Item) -> int:
        file = item.path.relative_to(TESTS).as_posix()
        return next((number for number, folder in enumerate(LONGEST) if file.startswith(folder)), len(LONGEST))

    items.sort(key=place)


def pytest_collection_finish() -> None:
    gc.freeze()
    gc.enable()


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Give each file to one process, and each folder of TOGETHER, so that its session's fixtures are made once."""
    from xdist.scheduler import LoadFileScheduling

    class ByFolder(LoadFileScheduling):
        def _split_scope(self, nodeid: str) -> str:
            return next((folder for folder in TOGETHER if nodeid.startswith(folder)), super()._split_scope(nodeid))

    return ByFolder(config, log) if config.getvalue("dist") == "loadfile" else None


@cache
def _read() -> dict[str, Any]:
    content: dict[str, Any] = yaml.safe_load((ROOT / "params.yaml").read_text(encoding="utf-8"))
    return content


@pytest.fixture
def committed() -> dict[str, Any]:
    """The committed params.yaml as plain types; a test may change its own copy."""
    return copy.deepcopy(_read())


@pytest.fixture
def params(committed: dict[str, Any]) -> Params:
    """The committed params.yaml, validated."""
    return parse(committed)
