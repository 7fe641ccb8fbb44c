"""What tests of several rooms share: the committed params.yaml, as a dict of one's own or validated."""

from __future__ import annotations

import copy
import signal
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml

from ctxgcd.config import Params, parse

# Where the tests run in the background their children would ignore Ctrl-C, as what `nohup` starts does.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

ROOT = Path(__file__).resolve().parents[1]
LONGEST = ("workflow", "dvc", "resume", "clusters")  # folders, in the order in which they begin


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put whole workflows first, so that the two processes of `make test` end at about the same time."""
    items.sort(key=lambda item: LONGEST.index(room) if (room := item.path.parent.name) in LONGEST else len(LONGEST))


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
