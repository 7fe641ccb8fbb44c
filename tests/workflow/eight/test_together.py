"""Runs trained in one job: equal to single trainings, cached, and copied by the normal call."""

from __future__ import annotations

import json
import os
import platform
import re
import shutil
from collections import Counter
from pathlib import Path

from ctxgcd.training.checkpoint import owned
from tests.helpers.workflow import BESIDE, EIGHT, OWN, PLANNED_ROWS, SPEED, UNKNOWNS, Project, folder_of, fresh, refused
from tests.resume.project import results

OF_CIFAR = [*BESIDE, ("cifar10", "full-paper", 0)]
RUNS = [*((OWN, row, 0) for row in ("full-paper", *UNKNOWNS, *SPEED)), *OF_CIFAR]
TARGETS = [f"{folder_of(run)}/metrics.json" for run in RUNS]


def test_demo_has_a_job_for_some_runs_of_each_seed(tmp_path: Path) -> None:
    project = fresh(tmp_path / "project", tmp_path / "nothing")
    result = project.call("-n", "-p", "--cores", "2", "together", "demo", "--set-resources", "train_together:gpu=2")
    assert result.code == 0, result.output
    made = {"weights": 1, "manifest": 1, "split": 1, "image_store": 1, "features": 2}
    assert {rule: count for rule, count in result.jobs.items() if rule != "total"} == made | {"train_together": 5}
    assert result.output.count(" --devices 2 ") == 5
    assert not (project.folder / "results").exists()


def test_targets_without_runs_are_refused(tiny: Project) -> None:
    refused(tiny.call("-n", "together", "check_data"), "error: together: no run is behind 'check_data'; leave it out")
    refused(tiny.call("-n", "together", "demmo"), "unknown target 'demmo'; did you mean 'demo'?")
    refused(tiny.call("-n", "together", "results/x.csv"), "error: together: no rule makes 'results/x.csv'; give")


def test_the_default_is_all_tables(tiny: Project) -> None:
    result = tiny.dry("together")
    assert "train" not in result.jobs
    of = Counter[str]()
    for number, benchmark in re.findall(r"Training (\d+) runs? of (\S+), seed 0, in one job", result.output):
        of[benchmark] += int(number)
    assert of == dict.fromkeys(EIGHT, len(PLANNED_ROWS))


def test_runs_trained_in_one_job_are_those_of_single_trainings(done: Project, another: Project) -> None:
    """Together with a run that diverges, which is named, and one that another process trains, which is skipped."""
    held = another.folder / folder_of(BESIDE[1])
    state = another.folder / f"work/runs/{json.loads((held / 'run.json').read_text())['identity']}-gcd"
    shutil.rmtree(another.folder / "work/runs")
    for run in RUNS:
        shutil.rmtree(another.folder / folder_of(run))
    diverges = f"{folder_of((OWN, 'simgcd+lr=1e30', 0))}/metrics.json"
    with owned(state):
        first = another.call("--cores", "1", "--keep-going", "together", diverges, *TARGETS)
    sentence = f"error: 1 run of {OWN}, seed 0, failed: simgcd+lr=1e30; finished runs are kept"
    refused(first, f"skipped gcd: process {os.getpid()} on {platform.node()} (", sentence)
    assert first.jobs["train_together"] == 3  # two runs of cifar10 share the trunk
    assert {path.parent.name.partition("-")[2] for path in another.folder.glob("work/runs/*/finished")} == {
        row for _, row, _ in RUNS
    } - {"gcd"}
    assert not list(another.folder.glob(f"results/runs/{OWN}/*/seed0"))

    shutil.rmtree(another.folder / "work/imports")
    second = another.call("--cores", "1", "-p", *TARGETS)
    assert second.code == 0, second.output
    assert second.output.count("this run is already finished; copied from work/runs/") == len(RUNS) - 1
    assert second.output.count("--devices 0") == len(RUNS) - 1  # copying needs no GPU
    alone, together = results(done.folder), results(another.folder)
    own = [name for name in alone if name.startswith(tuple(f"{folder_of(run)}/" for run in RUNS))]
    assert len(own) == 9 * len(RUNS)
    assert [name for name in own if alone[name] != together.get(name)] == []
    found = [json.loads(file.read_text()) for file in another.folder.glob("work/imports/*")]
    trained = ["ctxgcd.training.train" in modules for words, modules in found if "train_run" in words[0]]
    assert (len(trained), sum(trained)) == (len(RUNS), 1)  # copying does not import the libraries of a training

    third = another.call("--cores", "1", "together", *TARGETS)
    assert (third.code, third.jobs) == (0, {})
    assert "together: every run is already finished" in third.output
    shutil.rmtree(another.folder / "work/runs")
    assert "together: every run is already finished" in another.call("--cores", "1", "together", *TARGETS).output
