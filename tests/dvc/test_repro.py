"""`dvc repro`, `dvc exp run` and comparisons, on a project finished by Snakemake."""

from __future__ import annotations

import csv
import io
import json
import os
import shutil
import signal
import time
from pathlib import Path

import pytest

from tests.dvc.project import NOTHING, change_params, start, succeed, trainings

RUN = Path("results/runs/fashion/full-paper/seed0")


def cached(folder: Path) -> dict[Path, bytes]:
    """Return the files of DVC's cache of results and their contents."""
    return {file: file.read_bytes() for file in (folder / ".dvc" / "cache" / "files").rglob("*") if file.is_file()}


def test_after_snakemake_it_only_records(project: Path) -> None:
    assert NOTHING in succeed(project, "dvc", "repro", "demo")
    assert "up to date" in succeed(project, "dvc", "status", "demo")
    assert "didn't change, skipping" in succeed(project, "dvc", "repro", "demo")

    # A changed table, made by Snakemake and then recorded; the first version in DVC's cache does not change.
    kept = cached(project)
    change_params(project, sensitivity={"lambda_n": [0.1, 0.3]})
    assert "params.yaml" in succeed(project, "dvc", "status", "demo")
    succeed(project, "snakemake", "demo")
    assert NOTHING in succeed(project, "dvc", "repro", "demo")
    assert "up to date" in succeed(project, "dvc", "status", "demo")
    assert NOTHING in succeed(project, "snakemake", "--dry-run", "demo")
    assert all(file.read_bytes() == content for file, content in kept.items())


@pytest.mark.parametrize("link", ["symlink", "copy"])
def test_a_new_training_leaves_the_cache_as_it_was(project: Path, link: str) -> None:
    """Every file of results/ replaces a read-only file or a link into DVC's cache."""
    succeed(project, "dvc", "config", "--local", "cache.type", link)
    succeed(project, "dvc", "repro", "demo")
    before = {path: path.read_bytes() for path in (project / "results").rglob("*") if path.is_file()}
    assert all(path.is_symlink() == (link == "symlink") for path in before)
    kept = cached(project)
    change_params(project, protocols={"fashion": {"lr": 0.05}})
    again = ["results/main_fashion.csv"]
    if link == "symlink":  # also files written by other jobs; an overwritten link would change the cache
        again += ["results/figures/embedding_fashion.png", "results/duplicates_fashion.csv", "--forceall"]
    succeed(project, "snakemake", *again)
    assert cached(project) == kept
    assert not any(path.is_symlink() for path in (project / RUN).iterdir())
    assert (project / RUN / "history.csv").read_bytes() != before[project / RUN / "history.csv"]


@pytest.mark.soak
def test_a_killed_and_an_interrupted_call_are_resumed(made: Path, project: Path) -> None:
    """A call killed after the first epoch and interrupted in a later one gives the numbers of an uninterrupted one."""
    shutil.rmtree(project / RUN.parent)
    shutil.rmtree(project / "work" / "runs", ignore_errors=True)
    (project / "results/metrics_fashion.json").unlink()
    for how in (signal.SIGKILL, signal.SIGINT):
        begun = states(project)
        process = start(project, "dvc", "repro", "demo")
        while not states(project) - begun:
            assert process.poll() is None, process.communicate()[0]
            time.sleep(0.01)
        os.killpg(process.pid, how)
        output, _ = process.communicate()
        assert process.returncode != 0, output
        assert not (project / "dvc.lock").exists()
        if how is signal.SIGKILL:  # Snakemake's lock remains and is reported
            refused = start(project, "dvc", "repro", "demo", forked=True)
            assert "--unlock" in refused.communicate()[0]
            succeed(project, "snakemake", "--unlock", "demo")
    output = succeed(project, "dvc", "repro", "demo")
    assert "up to date" in succeed(project, "dvc", "status", "demo")
    for file in sorted((made / "results").rglob("*.csv")):
        assert (project / file.relative_to(made)).read_bytes() == file.read_bytes(), file


def states(folder: Path) -> set[tuple[Path, int]]:
    """Return the checkpoints of the trainings, and when each was written."""
    found = set()
    for path in (folder / "work" / "runs").glob("*/last.pt"):
        try:
            found.add((path, path.stat().st_mtime_ns))
        except FileNotFoundError:  # finished just now
            continue
    return found


def test_an_experiment_is_compared(published: Path, tmp_path: Path) -> None:
    project = shutil.copytree(published, tmp_path / "project", symlinks=True)
    before = json.loads((project / "results/metrics_fashion.json").read_text())
    # A value of the sensitivity grids, and the lr, because the former changes no prediction on so few images.
    values = ("methods.full.lambda_n=10.0", "protocols.fashion.lr=0.5")
    succeed(project, "dvc", "exp", "run", "demo", "--name", "stronger", *(f"--set-param={value}" for value in values))
    assert trainings(project) == set()
    after = json.loads((project / "results/metrics_fashion.json").read_text())
    assert before.keys() == after.keys() == {"full-paper", "full-paper+lambda_n=0.3", "simgcd"}
    changed = {
        f"{row}.{key}" for row, values in before.items() for key, value in values.items() if after[row][key] != value
    }
    assert changed
    metrics = json.loads(succeed(project, "dvc", "metrics", "diff", "--json").splitlines()[-1])
    metrics = metrics["results/metrics_fashion.json"]
    assert metrics.keys() == changed
    params = json.loads(succeed(project, "dvc", "params", "diff", "--json").splitlines()[-1])["params.yaml"]
    assert params.keys() == {"methods.full.lambda_n", "protocols.fashion.lr"}
    shown = list(csv.DictReader(io.StringIO(succeed(project, "dvc", "exp", "show", "--csv"))))
    assert shown
    succeed(project, "dvc", "plots", "diff", "--out", "plots")
    assert "loss of full-paper on fashion" in (project / "plots" / "index.html").read_text()
