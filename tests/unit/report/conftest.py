"""Results with every kind of odd name, and their report."""

from __future__ import annotations

from contextlib import chdir
from pathlib import Path
from typing import Any

import pytest
import yaml

from ctxgcd.config import Params, parse
from ctxgcd.report.make import make_report
from tests.helpers.places import ROOT
from tests.helpers.results import write_results


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any], dict[str, str]]:
    content = yaml.safe_load((ROOT / "params.yaml").read_text(encoding="utf-8"))
    root = tmp_path_factory.mktemp("made") / "user name"
    return root, content, write_results(content, root)


@pytest.fixture
def at(made: tuple[Path, dict[str, Any], dict[str, str]], monkeypatch: pytest.MonkeyPatch) -> Params:
    monkeypatch.chdir(made[0])
    return parse(made[1])


@pytest.fixture(scope="module")
def page(made: tuple[Path, dict[str, Any], dict[str, str]]) -> str:
    with chdir(made[0]):
        make_report(parse(made[1]), made[2], Path("results/report.html"))
        return Path("results/report.html").read_text(encoding="utf-8")
