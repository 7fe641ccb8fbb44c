"""The plan and the available tables of a project in which one of a table's three benchmarks has data."""

from __future__ import annotations

import csv
import shutil
from pathlib import Path

import pytest
import yaml

from tests.helpers import forked
from tests.helpers.layouts import Painter
from tests.helpers.places import ROOT

TABLE = "main_three"
FILES = [f"results/available/{TABLE}.{suffix}" for suffix in ("csv", "md", "tex", "html")]

pytestmark = pytest.mark.xdist_group("available")


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the project with the table `main_three`: flowers, whose 48 images are available, cub and aircraft."""
    folder = tmp_path_factory.mktemp("available") / "project"
    for name in ("workflow", "profiles", "ctxgcd"):
        shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy2(ROOT / "Snakefile", folder)
    content = yaml.safe_load((ROOT / "params.yaml").read_text(encoding="utf-8"))
    content["benchmarks"]["flowers"] = {
        **{"reader": "folder", "path": "flowers", "listing": "", "labelled": "labelled.txt", "classes": 6},
        **{"images": {"train": 48, "test": 0}, "K": True, "protocol": "fashion"},
        **{"overrides": {"resize": 36, "crop": 32, "batch_size": 16}},
        **{"methods": content["benchmarks"]["fashion"]["methods"] | {"full": {"T_warm": 2, "neighbour_images": 48}}},
        **{"settings": {}},
    }
    content["rows"]["main"], content["seeds"] = ["kmeans"], [0]
    content["tables"][TABLE] = ["flowers", "cub", "aircraft"]
    content["all_tables"] = {"main": [TABLE, "main_generic"], "ablation": ["scars"], "sensitivity": []}
    (folder / "params.yaml").write_text(yaml.safe_dump(content, sort_keys=False))
    return folder


def snakemake(project: Path, *words: str) -> tuple[int, str]:
    """Return the exit status and both output streams of a call."""
    own = {"CTXGCD_DATA": str(project / "data"), "PYTHONPATH": str(project)}
    return forked.snakemake(project, own, *words, patience=300)


def test_without_any_benchmark_the_call_is_refused(project: Path) -> None:
    code, output = snakemake(project, "available_tables")
    assert code != 0
    assert "error: available_tables: no benchmark of all_tables has its data and weights, or finished runs" in output
    assert "Traceback" not in output
    assert "Building DAG" not in output


def test_a_plan_of_targets_makes_nothing(project: Path) -> None:
    code, output = snakemake(project, "plan", f"results/{TABLE}.csv", "results/runs/cub/simgcd/seed4/metrics.json")
    assert code == 0, output
    assert not (project / "results").exists()
    with (project / "work/plan.csv").open(encoding="utf-8", newline="") as file:
        rows = [(row["benchmark"], row["row"], row["seed"]) for row in csv.DictReader(file) if row["seed"]]
    assert rows == [
        ("flowers", "kmeans", "0"),
        ("cub", "kmeans", "0"),
        ("cub", "simgcd", "4"),
        ("aircraft", "kmeans", "0"),
    ]
    assert "scars" not in output
    code, output = snakemake(project, "plan", "results/main_three.cvs")
    assert code != 0
    assert output.splitlines()[-1] == (
        "error: plan: no rule makes 'results/main_three.cvs'; give the name of a rule or a file in results/"
    )
    again, everything = snakemake(project, "-n", "--cores", "2", "plan")
    assert again == 0
    assert "scars" in everything  # without targets, it is the plan of all_tables


def test_a_mistyped_rule_gets_a_suggestion(project: Path) -> None:
    code, output = snakemake(project, "availabel_tables", "-n")
    assert code != 0
    assert "unknown target 'availabel_tables'; did you mean 'available_tables'?" in output
    assert ", plan, why, together, status, " in output  # rules, which `snakemake --list` shows too


def test_available_tables(project: Path) -> None:
    painter = Painter(0)
    for class_id, name in enumerate(("aster", "daisy", "iris", "lily", "rose", "tulip")):
        for number in range(8):
            painter.save(project / "flowers" / name / f"{number}.jpg", class_id, 24, 40)
    (project / "flowers" / "labelled.txt").write_text("aster\ndaisy\nlily\n")
    code, output = snakemake(project, "available_tables", "--cores", "2")
    assert code == 0, output
    for benchmark in ("cub", "aircraft", "scars", "cifar10", "cifar100", "imagenet_100"):
        assert f"not available: {benchmark}: " in output
    assert "not available: flowers" not in output
    assert [file for file in FILES if not (project / file).is_file()] == []
    assert sorted(path.name for path in (project / "results").glob("*.csv")) == ["audit_published.csv"]

    with (project / FILES[0]).open(encoding="utf-8", newline="") as file:
        lines = [row for row in csv.DictReader(file) if (row["set"], row["metric"]) == ("unlabelled", "v2")]
    assert [(row["benchmark"], row["n"], row["note"]) for row in lines] == [
        ("flowers", "1", ""),
        ("cub", "0", "not run"),
        ("aircraft", "0", "not run"),
    ]
    for file in FILES[1:]:
        text = (project / file).read_text(encoding="utf-8")
        assert "Partial: " in text
        assert "there are no data and no finished runs of CUB, FGVC-Aircraft" in text

    # The complete table is still missing; existing results are not made again, even without their data.
    planned = snakemake(project, "-n", f"results/{TABLE}.csv")[1]
    assert "Training cub kmeans seed 0" in planned
    assert "Training flowers" not in planned
    (project / "flowers").rename(project / "away")
    code, output = snakemake(project, "available_tables")
    assert code == 0, output
    assert "not available: flowers" in output
    assert "Nothing to be done" in output
