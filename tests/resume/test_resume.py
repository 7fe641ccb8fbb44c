"""A workflow that is killed and stopped many times gives the results of an uninterrupted one, bit for bit."""

from __future__ import annotations

import random
import shutil
import time
from pathlib import Path

import pytest
import yaml

from ctxgcd.utils.signals import STOPPED
from tests.helpers.forked import programs
from tests.resume.project import finish, fresh_copy, quiet, results, shrink, start, strike

TABLE = "results/main_fashion.csv"
LONG = {"epochs": 6, "view_bank": 2, "batch_size": 16}


@pytest.fixture(scope="module")
def clean(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A project with two runs trained without interruption by forked programs; killed processes are real programs."""
    folder = shrink(fresh_copy(tmp_path_factory.mktemp("clean") / "project"), **LONG)
    finish(folder, TABLE, "--cores", "2", programs=programs())
    return folder


@pytest.mark.parametrize(
    "strikes",
    [("snakemake", "ctrl-c"), pytest.param(("trainer", "term"), marks=pytest.mark.soak)],
    ids=" and ".join,
)
def test_the_results_are_those_of_an_uninterrupted_run(clean: Path, tmp_path: Path, strikes: tuple[str, str]) -> None:
    """With one core, then with two: neither kills nor the number of cores change a bit."""
    folder = tmp_path / "project"
    shutil.copytree(clean, folder)
    for made in [folder / "work/runs", folder / "results/runs", *folder.glob("results/main_fashion.*")]:
        shutil.rmtree(made) if made.is_dir() else made.unlink()
    log, chance = folder / "snakemake.log", random.Random(0)
    for how in strikes:
        begun = time.time()
        snakemake = start(folder, TABLE, "--cores", "1")
        while not any(file.stat().st_mtime > begun for file in folder.glob("work/runs/*/last.pt")):
            assert snakemake.poll() is None, log.read_text()[-3000:]
            time.sleep(0.05)
        time.sleep(chance.uniform(0, 0.3))  # in the middle of an epoch
        strike(folder, snakemake, how)
        assert snakemake.wait(timeout=20) != 0
        quiet(folder, patience=15)
        if how in ("term", "ctrl-c"):
            assert log.read_text().rstrip().endswith(STOPPED)  # under all that Snakemake says
        if how == "snakemake":
            finish(folder, "--unlock", programs=programs())
    output = log.read_text() + finish(folder, TABLE, "--cores", "2", programs=programs())
    assert "resumed after epoch" in output
    assert "interrupted; finished work is kept" in output
    assert "Traceback" not in output
    assert results(folder) == results(clean)
    assert "Nothing to be done" in finish(folder, "-n", TABLE, programs=programs())
    assert not list(folder.rglob("*.tmp*"))


def test_changing_a_value_back_reuses_its_runs(clean: Path) -> None:
    before, file = results(clean), clean / "params.yaml"
    text = file.read_text()
    params = yaml.safe_load(text)
    params["methods"]["full"]["tau"] = 2.0
    file.write_text(yaml.safe_dump(params, sort_keys=False))
    finish(clean, TABLE, "--cores", "2", programs=programs())
    assert results(clean) != before
    file.write_text(text)
    output = finish(clean, TABLE, "--cores", "2", programs=programs())
    assert output.count("this run is already finished; copied from work/runs/") == 1  # one of them does not read tau
    assert results(clean) == before
