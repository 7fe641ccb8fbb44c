"""DVC's stages match params.yaml and the outputs of Snakemake; raw data is shared; an archive without git works."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import yaml
from ruamel.yaml import YAML

from tests.dvc.project import ROOT, WRITE, change_params, commit, fresh_copy, git, run, succeed
from tests.helpers.layouts import Painter


@pytest.fixture(scope="module")
def unmade(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The project with one seed, because the outputs of dvc.yaml do not depend on the number of seeds."""
    folder = fresh_copy(tmp_path_factory.mktemp("dvc") / "project")
    file = folder / "params.yaml"
    file.write_text(yaml.safe_dump(yaml.safe_load(file.read_text()) | {"seeds": [0], "seeds_of": {}}, sort_keys=False))
    git(folder, "init", "--quiet")
    return folder


def outs_of(folder: Path) -> dict[str, str]:
    """Return the stage of each output; fails if two stages share one."""
    content = yaml.safe_load((folder / "dvc.yaml").read_text())["stages"]
    kinds = ("outs", "metrics")
    pairs = [(path, name) for name, stage in content.items() for k in kinds for out in stage.get(k, ()) for path in out]
    assert len(dict(pairs)) == len(pairs)
    return dict(pairs)


def test_dvc_yaml_fits_params() -> None:
    assert run(ROOT, "python", WRITE, "--check").returncode == 0


def test_an_outdated_dvc_yaml_is_refused_in_one_line(unmade: Path, tmp_path: Path) -> None:
    shutil.copy(unmade / "params.yaml", tmp_path / "params.yaml")
    change_params(tmp_path, tables={"main_cub": ["cub"]})
    done = run(unmade, "python", WRITE, "--check", "--params", str(tmp_path / "params.yaml"))
    assert done.returncode == 2
    assert done.stdout.endswith("; run `make dvc.yaml`\n")
    assert done.stdout.count("\n") == 1


def test_both_readers_of_params_see_the_same() -> None:
    text = (ROOT / "params.yaml").read_text()
    assert json.dumps(yaml.safe_load(text)) == json.dumps(YAML(typ="safe", pure=True).load(text))  # YAML 1.1 and 1.2


def test_each_result_has_one_owner(unmade: Path) -> None:
    outs = outs_of(unmade)
    benchmarks = set(outs.values()) - {"check_data", "tables", "demo"}
    targets = ["all_tables", "benchmark_fashion", *(f"benchmark_{name}" for name in benchmarks)]
    table = succeed(unmade, "snakemake", *targets, "--summary")
    results = {path for line in table.splitlines() if (path := line.split("\t")[0]).startswith("results/")}
    for path in results:
        owners = [out for out in outs if path == out or path.startswith(f"{out}/")]
        assert len(owners) == 1, f"{path} is owned by {owners}"
    # No other outputs exist; the file of check_data is not a declared output.
    files = {path for path in results if not path.startswith("results/runs/")}
    folders = {"/".join(path.split("/")[:3]) for path in results - files}
    assert outs.keys() - {"results/data_check.txt"} == files | folders


def test_missing_data_is_reported_before_any_training(unmade: Path) -> None:
    done = run(unmade, "dvc", "repro")
    assert done.returncode != 0
    benchmarks = yaml.safe_load((unmade / "params.yaml").read_text())["all_tables"]["ablation"]
    assert f"error: the data of {', '.join(benchmarks)} is not ready" in done.stdout
    assert "failed to reproduce 'check_data'" in done.stdout
    assert not (unmade / "results").exists()
    assert not (unmade / "work" / "runs").exists()


def test_raw_data_can_be_shared_through_a_remote(tmp_path: Path) -> None:
    """`dvc add`, push, a fresh clone, pull: the split is the same, byte by byte."""
    folder = fresh_copy(tmp_path / "project")
    git(folder, "init", "--quiet")
    painter = Painter(0)
    for class_id, name in enumerate(("ant", "bee", "cat")):
        for number in range(8):
            painter.save(folder / "data" / "raw" / "mine" / name / f"{number}.png", class_id, 20, 30)
    (folder / "data" / "raw" / "mine" / "labelled.txt").write_text("bee\n")
    entry = {"reader": "folder", "path": "data/raw/mine", "listing": "", "labelled": "labelled.txt", "classes": 3}
    entry |= {"images": "any", "K": True, "protocol": "fashion", "overrides": {}, "methods": {}, "settings": {}}
    change_params(folder, benchmarks={"mine": entry}, protocols={})
    succeed(folder, "dvc", "add", "--quiet", "data/raw/mine")
    succeed(folder, "dvc", "remote", "add", "--default", "near", str(tmp_path / "remote"))
    succeed(folder, "dvc", "push", "data/raw/mine.dvc")
    commit(folder)
    clone = tmp_path / "clone"
    git(tmp_path, "clone", "--quiet", str(folder), str(clone))
    assert (clone / "data" / "raw" / "mine.dvc").is_file()
    assert not (clone / "data" / "raw" / "mine").exists()
    succeed(clone, "dvc", "pull", "data/raw/mine.dvc")
    splits = []
    for place in (folder, clone):
        succeed(place, "snakemake", "results/splits/mine.csv")
        splits.append([(place / f"results/splits/mine.{suffix}").read_bytes() for suffix in ("csv", "sha256")])
    assert splits[0] == splits[1]


def test_an_archive_without_git(tmp_path: Path) -> None:
    """Snakemake does not need git; DVC reports in one line that it does, and a documented command disables that."""
    folder = fresh_copy(tmp_path / "project")
    succeed(folder, "snakemake", "results/splits/fashion.csv")
    assert (folder / "results/splits/fashion.sha256").is_file()
    done = run(folder, "dvc", "repro", "demo")
    assert done.returncode != 0
    assert done.stdout == f"ERROR: {folder} is not a git repository\n"
    commands = [
        line for line in (ROOT / "docs/dvc.md").read_text().splitlines() if line.startswith("dvc config --local")
    ]
    for line in commands:
        succeed(folder, *line.partition("#")[0].split())
    assert "deleted:            results/main_fashion.csv" in succeed(folder, "dvc", "status", "demo")
