"""Jobs through SLURM's executor plugin: the requested resources, and resuming after a time limit.

The plugin and Snakemake are real; the queue is simulated by tests/clusters/queue_program.py.
"""

from __future__ import annotations

import json
import os
import re
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from ctxgcd.config import Params
from ctxgcd.pipeline.resolve import resolve
from ctxgcd.pipeline.tables import all_tables, table_runs
from ctxgcd.plan.rates import ASSUMED
from ctxgcd.plan.work import classes_of, images_in, work_of
from tests.helpers.forked import programs
from tests.helpers.layouts import Painter
from tests.helpers.places import ROOT
from tests.helpers.workflow import Project, Result, fresh, one_job_of_each_kind, short_trainings

pytest.importorskip("snakemake_executor_plugin_slurm")
PROFILE = ROOT / "profiles" / "slurm" / "config.yaml"
RUN = "results/runs/fashion/simgcd/seed0"
ATTEMPTS = 4

# Added to the sitecustomize of a project: the plugin waits ten seconds more after each check in which jobs only fail.
EVERY_SECOND = """
import asyncio
from snakemake_interface_executor_plugins.executors.remote import RemoteExecutor

async def sleep(self):
    await asyncio.sleep(1)

RemoteExecutor.sleep = sleep
"""


@dataclass(frozen=True)
class Queue:
    """The queue's folder, which contains its commands."""

    folder: Path

    def jobs(self, rule: str, wildcards: str = "") -> list[dict[str, Any]]:
        """Return the submissions of a rule's jobs, in order."""
        begin = f"rule_{rule}_wildcards_{wildcards}"
        files = sorted(self.folder.glob("*.json"), key=lambda file: int(file.stem))
        return [job for file in files if (job := json.loads(file.read_text()))["comment"].startswith(begin)]

    def call(self, project: Project, profile: str, *words: str) -> Result:
        """Call Snakemake with the queue's commands in PATH, polling every second."""
        with (project.folder / "sitecustomize.py").open("a") as file:
            file.write(EVERY_SECOND)
        own = {"QUEUE": str(self.folder), "PATH": f"{self.folder}{os.pathsep}{os.environ['PATH']}"}
        own["FORKED"] = str(programs())
        often = ("--slurm-init-seconds-before-status-checks", "1", "--latency-wait", "5")
        with pytest.MonkeyPatch.context() as patch:
            for name, value in own.items():
                patch.setenv(name, value)
            return project.call("--workflow-profile", profile, *words, *often)


def queue_in(folder: Path) -> Queue:
    """A queue whose commands call the program; after a failure the plugin requests ten reasons, which do not exist."""
    folder.mkdir()
    program = ROOT / "tests" / "clusters" / "queue_program.py"
    script = '#!/bin/sh\ncase "$*" in *--format=Reason*) exit;; esac\nexec {} {} {} "$@"\n'
    for name in ("sbatch", "sacct", "srun", "sinfo", "sacctmgr", "scancel", "scontrol"):
        (folder / name).write_text(script.format(sys.executable, program, name))
        (folder / name).chmod(0o755)
    return Queue(folder)


@pytest.fixture(scope="module")
def submitted(tmp_path_factory: pytest.TempPathFactory) -> tuple[Queue, Result]:
    """Jobs of each kind, submitted to a queue that runs none, with a filled-in copy of the profile."""
    folder = tmp_path_factory.mktemp("slurm")
    project, queue = fresh(folder / "project", folder / "nothing"), queue_in(folder / "queue")
    profile = project.folder / "profiles" / "mine" / "config.yaml"
    profile.parent.mkdir()
    filled = PROFILE.read_text().replace("# site: ", "").replace("ACCOUNT", "birds").replace("GPU_MODEL", "a100")
    profile.write_text(filled.replace("GPU_PARTITION", "many_gpus").replace("PARTITION", "common"))
    (queue.folder / "closed").touch()
    wanted = one_job_of_each_kind(project, project.folder)
    # One more attempt instead of three, because each takes a second.
    result = queue.call(project, "profiles/mine", "--keep-going", *wanted, "--preemptible-retries", "1")
    return queue, result


def test_a_training_requests_one_gpu(submitted: tuple[Queue, Result]) -> None:
    job = submitted[0].jobs("train", "cub_simgcd_0")[0]
    assert " ".join(job["options"]) == (
        "--parsable --export=ALL -A birds -p many_gpus -t 240 --mem 32000 --nodes=1 --cpus-per-gpu=4 --gpus=a100:1"
    )


def test_a_training_of_eight_processes_is_one_task(submitted: tuple[Queue, Result]) -> None:
    """Neither `--ntasks` nor `--ntasks-per-gpu`: a single task starts the processes, all on one host."""
    job = submitted[0].jobs("train", "imagenet_1k_simgcd_0")[0]
    assert " ".join(job["options"]) == (
        "--parsable --export=ALL -A birds -p many_gpus -t 1440 --mem 128000 --nodes=1 --cpus-per-gpu=4 --gpus=a100:8"
    )


def test_jobs_without_gpu_request_none(submitted: tuple[Queue, Result]) -> None:
    (job,) = submitted[0].jobs("score", "aircraft_simgcd_0")
    assert " ".join(job["options"]) == (
        "--parsable --export=ALL -A birds -p common -t 60 --mem 8000 --nodes=1 --ntasks=1 --cpus-per-task=1"
    )
    (job,) = submitted[0].jobs("image_store")
    assert " ".join(job["options"]) == (
        "--parsable --export=ALL -A birds -p common -t 480 --mem 32000 --nodes=1 --ntasks=1 --cpus-per-task=4"
    )


def test_only_trainings_are_submitted_again(submitted: tuple[Queue, Result]) -> None:
    queue, result = submitted
    assert result.code != 0
    assert len(queue.jobs("train", "cub_simgcd_0")) == 2
    assert len(queue.jobs("score", "aircraft_simgcd_0")) == 1


def test_the_time_limit_of_a_training_is_sufficient(params: Params) -> None:
    """Twice the longest training of each benchmark at the rate assumed by `plan`, over all attempts."""
    profile = yaml.safe_load(PROFILE.read_text())
    assert profile["preemptible-retries"] + 1 == ATTEMPTS
    train = profile["set-resources"]["train"]
    for run in dict.fromkeys(run for table in all_tables(params) for run in table_runs(params, table)):
        p = resolve(params, run.benchmark, run.row, run.seed)
        if p["method"] == "kmeans":
            continue
        minutes, gpus = (eval(train[key], {"wildcards": run}) for key in ("runtime", "gpu"))
        entry = params.benchmarks[run.benchmark]
        hours = work_of(images_in(entry), classes_of(entry, p), p).views / ASSUMED / 3600 / gpus
        assert minutes <= 24 * 60
        assert minutes / 60 * (ATTEMPTS if minutes == 24 * 60 else 1) >= 2 * hours, run


@pytest.fixture(scope="module")
def failed(tmp_path_factory: pytest.TempPathFactory) -> tuple[Queue, Result]:
    """The real packing of a broken image, and a training whose split is empty."""
    folder = tmp_path_factory.mktemp("slurm")
    project, queue = fresh(folder / "project", folder / "nothing"), queue_in(folder / "queue")
    painter = Painter(0)
    for class_id, name in enumerate(("ant", "bee", "cat")):
        for number in range(4):
            painter.save(folder / "mine" / name / f"{number}.jpg", class_id, 24, 40)
    broken = folder / "mine" / "bee" / "2.jpg"
    broken.write_bytes(broken.read_bytes()[:200])
    (folder / "mine" / "labelled.txt").write_text("bee\n")

    def with_own(content: dict[str, Any]) -> None:
        content["benchmarks"]["mine"] = {
            **{"reader": "folder", "path": str(folder / "mine"), "listing": "", "labelled": "labelled.txt"},
            **{"classes": 3, "images": "any", "K": True, "protocol": "fashion"},
            **{"methods": content["benchmarks"]["fashion"]["methods"]},
            **{"overrides": {"batch_size": 8}, "settings": {}},
        }

    project.change(with_own)
    wanted = [*one_job_of_each_kind(project, project.folder)[:1], "results/duplicates_mine.csv"]
    before = project.call("--cores", "2", "results/splits/mine.csv")
    assert before.code == 0, before.output
    return queue, queue.call(project, "profiles/slurm", "--keep-going", *wanted, "--preemptible-retries", "0")


def test_the_step_of_a_training_is_one_task(failed: tuple[Queue, Result]) -> None:
    steps = [json.loads(line) for line in (failed[0].folder / "steps").read_text().splitlines()]
    assert ["-n1", "--cpu-bind=q", "--cpus-per-gpu=4", "--gpus=1", "--nodes=1"] in steps


def test_an_error_message_is_printed_once(failed: tuple[Queue, Result]) -> None:
    queue, result = failed
    assert result.code != 0
    assert re.search(
        r"^error: \S+/bee/2.jpg cannot be decoded .*; replace or remove it", result.output, re.MULTILINE
    ), result.output
    assert "Traceback" not in result.output
    for job in (queue.jobs("image_store", "mine"), queue.jobs("train", "cub_simgcd_0")):
        assert [attempt["state"] for attempt in job] == ["FAILED"]


@pytest.mark.soak
def test_a_training_resumes_after_its_time_limit(tmp_path: Path) -> None:
    """A real training that reaches its time limit after an epoch; a call without the queue finds the run finished."""
    project, queue = fresh(tmp_path / "project", tmp_path / "nothing"), queue_in(tmp_path / "queue")
    project.change(short_trainings)
    before = project.call("--cores", "2", f"{RUN}/run.json", "--until", "image_store", "weights")
    assert before.code == 0, before.output
    (queue.folder / "interrupt").write_text("work/runs/*/last.pt")
    result = queue.call(project, "profiles/slurm", f"{RUN}/metrics.json")
    assert [job["state"] for job in queue.jobs("train", "fashion_simgcd_0")] == ["TIMEOUT", "COMPLETED"], result.output
    log = (project.folder / "work/logs/train/fashion/simgcd/seed0.log").read_text()
    assert re.search(r"resumed after epoch [123]$", log, re.MULTILINE), log
    assert json.loads((project.folder / RUN / "metrics.json").read_text())["epoch"] == 3
    assert "SLURM status is: 'TIMEOUT'" in result.output
    assert "Nothing to be done" in project.dry(f"{RUN}/metrics.json").output
