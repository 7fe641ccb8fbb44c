"""DVC's stages: they fit params.yaml, own what Snakemake makes, and record without training again."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from ruamel.yaml import YAML

from tests.fixtures import Painter

ROOT = Path(__file__).resolve().parents[2]
PROJECT = ("Snakefile", "params.yaml", "profiles", "workflow", "ctxgcd", "dvc.yaml", ".dvc", ".dvcignore", ".gitignore")
WRITE = "workflow/scripts/write_dvc_stages.py"
NOTHING = "Nothing to be done"  # Snakemake's words


def run(folder: Path, command: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run a command of this environment in a project; stdout holds both streams."""
    commands = Path(sys.executable).parent
    own = {
        "PATH": f"{commands}{os.pathsep}{os.environ['PATH']}",
        "PYTHONPATH": str(folder),
        "CTXGCD_DATA": str(folder / "data" / "raw"),  # empty
        "DVC_SITE_CACHE_DIR": str(folder / ".dvc" / "tmp" / "site"),
    }
    return subprocess.run(
        [str(commands / command), *arguments],
        cwd=folder,
        env=os.environ | own,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )


def succeed(folder: Path, command: str, *arguments: str) -> str:
    done = run(folder, command, *arguments)
    assert done.returncode == 0, done.stdout
    return done.stdout


def fresh_copy(folder: Path) -> Path:
    """The working tree without anything made, as a git repository of its own."""
    folder.mkdir()
    for name in PROJECT:
        if (ROOT / name).is_dir():
            made = shutil.ignore_patterns("__pycache__", "cache", "tmp", "config.local")
            shutil.copytree(ROOT / name, folder / name, ignore=made)
        else:
            shutil.copy(ROOT / name, folder / name)
    subprocess.run(["git", "init", "--quiet"], cwd=folder, check=True)
    return folder


def change_params(folder: Path, **sections: dict[str, Any]) -> None:
    """Replace values in sections of params.yaml."""
    file = folder / "params.yaml"
    params = yaml.safe_load(file.read_text())
    for name, values in sections.items():
        params[name].update(values)
    file.write_text(yaml.safe_dump(params, sort_keys=False))


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return fresh_copy(tmp_path_factory.mktemp("dvc") / "project")


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A project whose demo has two trainings of two epochs on the 500 labelled images."""
    folder = fresh_copy(tmp_path_factory.mktemp("dvc") / "small")
    params = yaml.safe_load((folder / "params.yaml").read_text())
    quick = {"resize": 32, "crop": 32, "view_bank": 0, "projector_width": 64, "epochs": 2, "T_warm": 1}
    params["seeds"] = [0]
    params["rows"] = {
        "main": ["full-paper"],
        "ablation": ["full-paper"],
        "unknowns": {"full-paper+tau=1.0": "full-paper"},
        "speed": {"full-paper+precision=bf16": "full-paper"},
    }
    params["sensitivity"] = {"lambda_n": [0.3], "lambda_c": [0.3], "k": [10]}
    params["protocols"]["fashion"] |= quick | {"teacher_warmup_epochs": 1}
    params["benchmarks"]["fashion"]["trial"] = True
    (folder / "params.yaml").write_text(yaml.safe_dump(params, sort_keys=False))
    succeed(folder, "python", WRITE)
    return folder


def outs_of(folder: Path) -> dict[str, str]:
    """The stage of each out; fails where two stages share one."""
    content = yaml.safe_load((folder / "dvc.yaml").read_text())["stages"]
    pairs = [(path, name) for name, stage in content.items() for out in stage["outs"] for path in out]
    assert len(dict(pairs)) == len(pairs)
    return dict(pairs)


def test_dvc_yaml_fits_params() -> None:
    assert run(ROOT, "python", WRITE, "--check").returncode == 0


def test_a_stale_dvc_yaml_is_told_in_one_sentence(project: Path, tmp_path: Path) -> None:
    shutil.copy(project / "params.yaml", tmp_path / "params.yaml")
    change_params(tmp_path, tables={"main_cub": ["cub"]})
    done = run(project, "python", WRITE, "--check", "--params", str(tmp_path / "params.yaml"))
    assert done.returncode == 2
    assert done.stdout.endswith("; run `make dvc.yaml`\n")
    assert done.stdout.count("\n") == 1


def test_both_readers_of_params_see_the_same() -> None:
    text = (ROOT / "params.yaml").read_text()
    assert json.dumps(yaml.safe_load(text)) == json.dumps(YAML(typ="safe", pure=True).load(text))  # YAML 1.1 and 1.2


def test_each_result_has_one_owner(project: Path) -> None:
    outs = outs_of(project)
    benchmarks = set(outs.values()) - {"check_data", "tables", "demo"}
    targets = ["all_tables", "benchmark_fashion", *(f"benchmark_{name}" for name in benchmarks)]
    table = succeed(project, "snakemake", *targets, "--summary")
    results = {path for line in table.splitlines() if (path := line.split("\t")[0]).startswith("results/")}
    for path in results:
        owners = [out for out in outs if path == out or path.startswith(f"{out}/")]
        assert len(owners) == 1, f"{path} is owned by {owners}"
    # And nothing else is owned: a run's folder holds its runs, and check_data's file is no declared output.
    files = {path for path in results if not path.startswith("results/runs/")}
    folders = {"/".join(path.split("/")[:3]) for path in results - files}
    assert outs.keys() - {"results/data_check.txt"} == files | folders


def test_missing_data_is_told_before_any_training(project: Path) -> None:
    done = run(project, "dvc", "repro")
    assert done.returncode != 0
    asked = yaml.safe_load((project / "params.yaml").read_text())["all_tables"]["ablation"]
    assert f"error: the data of {', '.join(asked)} is not ready" in done.stdout
    assert "failed to reproduce 'check_data'" in done.stdout
    assert not (project / "results").exists()
    assert not (project / "work" / "runs").exists()


def test_demo_is_made_recorded_and_left_alone(small: Path) -> None:
    succeed(small, "dvc", "repro", "demo")
    assert all((small / out).exists() for out, stage in outs_of(small).items() if stage == "demo")
    assert "up to date" in succeed(small, "dvc", "status", "demo")
    assert "didn't change, skipping" in succeed(small, "dvc", "repro", "demo")
    assert NOTHING in succeed(small, "snakemake", "--dry-run", "demo")

    # A changed table, made by Snakemake alone, then recorded; what DVC keeps of the first time stays as it was.
    kept = {file: file.read_bytes() for file in (small / ".dvc" / "cache").rglob("*") if file.is_file()}
    change_params(small, sensitivity={"lambda_n": [0.1, 0.3]})
    assert "params.yaml" in succeed(small, "dvc", "status", "demo")
    succeed(small, "snakemake", "demo")
    assert NOTHING in succeed(small, "dvc", "repro", "demo")
    assert "up to date" in succeed(small, "dvc", "status", "demo")
    assert NOTHING in succeed(small, "snakemake", "--dry-run", "demo")
    assert all(file.read_bytes() == content for file, content in kept.items())


def test_raw_data_travel_through_a_remote(tmp_path: Path) -> None:
    """`dvc add`, push, a fresh clone, pull: the split is the same, byte by byte."""
    folder = fresh_copy(tmp_path / "project")
    painter = Painter(0)
    for class_id, name in enumerate(("ant", "bee", "cat")):
        for number in range(8):
            painter.save(folder / "data" / "raw" / "mine" / name / f"{number}.png", class_id, 20, 30)
    (folder / "data" / "raw" / "mine" / "labelled.txt").write_text("bee\n")
    entry = {"reader": "folder", "path": "data/raw/mine", "listing": "", "labelled": "labelled.txt", "classes": 3}
    entry |= {"images": "any", "K": True, "protocol": "fashion", "entropy_weight": 1.0, "overrides": {}, "settings": {}}
    change_params(folder, benchmarks={"mine": entry}, protocols={})
    succeed(folder, "dvc", "add", "--quiet", "data/raw/mine")
    succeed(folder, "dvc", "remote", "add", "--default", "near", str(tmp_path / "remote"))
    succeed(folder, "dvc", "push", "data/raw/mine.dvc")
    author = ["-c", "user.name=a", "-c", "user.email=a@example.org"]
    subprocess.run(["git", "add", "--all"], cwd=folder, check=True)
    subprocess.run(["git", *author, "commit", "--quiet", "--message", "data"], cwd=folder, check=True)
    clone = tmp_path / "clone"
    subprocess.run(["git", "clone", "--quiet", str(folder), str(clone)], check=True)
    assert (clone / "data" / "raw" / "mine.dvc").is_file()
    assert not (clone / "data" / "raw" / "mine").exists()
    succeed(clone, "dvc", "pull", "data/raw/mine.dvc")
    splits = []
    for place in (folder, clone):
        succeed(place, "snakemake", "results/splits/mine.csv")
        splits.append([(place / f"results/splits/mine.{suffix}").read_bytes() for suffix in ("csv", "sha256")])
    assert splits[0] == splits[1]
