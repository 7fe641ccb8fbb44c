"""The recorded runs that `make restore` finds, and which of them cannot be kept."""

from __future__ import annotations

from pathlib import Path

import pytest

from ctxgcd.config import Params
from ctxgcd.pipeline import run_cache
from ctxgcd.pipeline.restore import difference, made_runs
from ctxgcd.pipeline.runs import Run


def test_runs_are_folders_of_a_seed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("seed0", "seed12", "seed01", "seed", "seedling", "seed4294967296"):
        Path("results/runs/fashion/kmeans", name).mkdir(parents=True)
    Path("results/runs/fashion/kmeans/seed2").write_text("")
    assert made_runs() == [Run("fashion", "kmeans", 0), Run("fashion", "kmeans", 12)]


def test_a_run_without_one_of_its_files_differs(
    params: Params, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    run = Run("fashion", "kmeans", 0)
    Path(run.folder).mkdir(parents=True)
    for name in run_cache.FILES:
        Path(run.file(name)).write_text("{}")
    assert difference(params, run) == "its run.json is missing or damaged"
    Path(run.file("run.json")).write_text('{"parameters": {}}')
    assert difference(params, run).startswith("other parameters")
    Path(run.file("final.pt")).unlink()
    assert difference(params, run) == "it lacks final.pt"
