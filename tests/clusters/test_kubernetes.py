"""The Job for Kubernetes: what it asks for, and that its command is one that this workflow understands."""

from __future__ import annotations

import re
import shlex
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.workflow.test_workflow import PROGRAMS, ROOT, fresh


@pytest.fixture
def pod() -> dict[str, Any]:
    job = yaml.safe_load((ROOT / "profiles" / "kubernetes" / "job.yaml").read_text())
    assert (job["apiVersion"], job["kind"], job["spec"]["backoffLimit"]) == ("batch/v1", "Job", 3)
    spec: dict[str, Any] = job["spec"]["template"]["spec"]
    return spec


def test_it_asks_for_eight_gpus_and_the_volume(pod: dict[str, Any]) -> None:
    (container,) = pod["containers"]
    assert pod["restartPolicy"] == "Never"
    assert container["resources"] == {
        "requests": {"cpu": 32, "memory": "256Gi", "nvidia.com/gpu": 8},
        "limits": {"memory": "256Gi", "nvidia.com/gpu": 8},
    }
    mounted = {mount["name"]: mount["mountPath"] for mount in container["volumeMounts"]}
    assert mounted == {"project": container["workingDir"], "shm": "/dev/shm"}
    assert mounted.keys() == {volume["name"] for volume in pod["volumes"]}
    assert pod["volumes"][0]["persistentVolumeClaim"] == {"claimName": "ctxgcd"}


def test_its_command_gives_imagenet_all_gpus(pod: dict[str, Any], tmp_path: Path) -> None:
    """Its own words, run with two trainings in place of all tables, and dry."""
    project = fresh(tmp_path / "project", tmp_path / "nothing")
    (command,) = pod["containers"][0]["args"]
    runs = [f"results/runs/{name}/simgcd/seed5/run.json" for name in ("imagenet_1k", "cub")]
    unlock, run = command.replace("exec snakemake", "exec snakemake -n -p").split("&&")
    words = f"{unlock} && {run.replace('all_tables', ' '.join(runs))}"
    done = subprocess.run(
        [*pod["containers"][0]["command"], f"export PATH={shlex.quote(str(PROGRAMS))}:$PATH && {words}"],
        cwd=project.folder,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    assert done.returncode == 0, done.stdout
    asked = dict(re.findall(r'"benchmark": "(\w+)".*? --devices (\d)', done.stdout))
    assert asked == {"imagenet_1k": "8", "cub": "1"}
