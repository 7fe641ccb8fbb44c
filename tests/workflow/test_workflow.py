"""The whole workflow on made-up folders in the official layouts, in a copy of the project of its own."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
import yaml

from ctxgcd.models.precision import has_bf16
from ctxgcd.models.weights import build
from ctxgcd.pipeline import code
from ctxgcd.pipeline.digest import content_digest
from tests.fixtures import Painter, write_fixture
from tests.forked import snakemake

ROOT = Path(__file__).resolve().parents[2]
PROGRAMS = Path(sys.executable).parent

EIGHT = ("cub", "scars", "aircraft", "cifar10", "cifar100", "imagenet_100", "herbarium_19", "imagenet_1k")
TRAIN_PER_CLASS = {"cifar10": 20}  # of the others 2
# What the one real call makes: the three main tables with all eight, and one ablation.
REAL = {
    "main_ssb": ["cub", "scars", "aircraft"],
    "main_generic": ["cifar10", "cifar100", "imagenet_100"],
    "main_challenging": ["herbarium_19", "imagenet_1k"],
    "main_flowers": ["flowers"],
}
OWN = "flowers"  # a user's own folder
NO_TEST = ("scars", OWN)  # Cars' labelled test annotations are rare, so the fixture has none
BANKED = ("cifar10",)  # trained from a view bank, the others from fresh views
MAIN_ROWS = ["full-paper"]
ABLATION_ROWS = ["simgcd", "full-paper-without-n", "full-paper", "full-released"]
UNKNOWNS = {"full-paper+K=estimated": "full-paper"}
SPEED = {"full-paper+precision=bf16+view_bank=2": "full-paper"}
CURVES = "results/figures/curves_cub.png"
BESIDE = [("cifar10", "kmeans", 0), ("cifar10", "gcd", 0)]  # runs that the real call makes beside its tables
TRAINED = {(b, row, 0) for of in REAL.values() for b in of for row in MAIN_ROWS}
TRAINED |= {("cub", row, 0) for row in ABLATION_ROWS}  # by all_tables
MADE = TRAINED | {(OWN, row, 0) for row in (*UNKNOWNS, *SPEED)} | set(BESIDE)

# One process runs this file, so that its real runs happen once.
pytestmark = pytest.mark.xdist_group("workflow")


@dataclass(frozen=True)
class Result:
    """How a call ended, with both output streams in one text."""

    code: int
    output: str

    @property
    def trainings(self) -> set[tuple[str, str, int]]:
        """(benchmark, row, seed) of every training job that was planned or begun."""
        found = re.findall(r"Training (\S+) (\S+) seed (\d+)", self.output)
        return {(benchmark, row, int(seed)) for benchmark, row, seed in found}

    @property
    def jobs(self) -> dict[str, int]:
        """Rule -> number of jobs, from the table that Snakemake prints first."""
        return {rule: int(count) for rule, count in re.findall(r"^(\w+) +(\d+)$", self.output, re.MULTILINE)}


@dataclass(frozen=True)
class Project:
    """A folder with the project's workflow files, the package and a params.yaml of its own.

    The package is copied too: an edit of the sources during the tests would rightly train everything again.
    """

    folder: Path
    data: Path

    def call(self, *words: str) -> Result:
        return Result(*snakemake(self.folder, {"CTXGCD_DATA": str(self.data), "PYTHONPATH": str(self.folder)}, *words))

    def dry(self, *words: str) -> Result:
        result = self.call("-n", "--cores", "8", *words)
        assert result.code == 0, result.output
        return result

    def copy(self, to: Path) -> Project:
        shutil.copytree(self.folder, to, symlinks=True)
        return replace(self, folder=to)

    def change(self, edit: Callable[[dict[str, Any]], None]) -> None:
        path = self.folder / "params.yaml"
        content = yaml.safe_load(path.read_text())
        edit(content)
        path.write_text(yaml.safe_dump(content, sort_keys=False))


def fresh(folder: Path, data: Path) -> Project:
    """A copy of what a run reads of the project, outside git, with the committed params.yaml."""
    folder.mkdir(parents=True)
    for name in ("workflow", "profiles", "ctxgcd"):
        shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("Snakefile", "params.yaml"):
        shutil.copy2(ROOT / name, folder)
    # Without the project's own declarations: a test that declares knows all that is declared.
    (folder / "ctxgcd/pipeline/equal_code.csv").write_text("module,old,new,reason\n")
    (folder / "sitecustomize.py").write_text(RECORD)
    return Project(folder, data)


# Run by every Python that starts in a project: it writes down what each script had imported when it ended.
RECORD = """import atexit, json, os, sys

def record():
    found = sorted(name for name in sys.modules if name.partition(".")[0] == "ctxgcd")
    words = getattr(sys, "argv", [""])
    if found and words[0].startswith("workflow/scripts/"):
        os.makedirs("work/imports", exist_ok=True)
        with open(f"work/imports/{os.getpid()}.json", "w") as file:
            json.dump([words, found], file)

atexit.register(record)
"""


def made_before(folder: Path, *files: str) -> None:
    """Stand for what earlier jobs made: nothing reads these files here."""
    for name in files:
        file = folder / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.touch()


def one_job_of_each_kind(project: Project, folder: Path) -> list[str]:
    """Targets that ask for a training on one GPU and on eight, a score and a packing, with what lies before them."""
    trainings = [f"results/runs/{name}/simgcd/seed0/run.json" for name in ("cub", "imagenet_1k")]
    scored = "results/runs/aircraft/simgcd/seed0"
    planned = project.call("--summary", *trainings).output
    caches = re.findall(r"^(work/(?:stores|weights)/\S+)", planned, re.MULTILINE)
    split = ("cub", "imagenet_1k", "aircraft", "scars")
    splits = [f"results/splits/{name}.{suffix}" for name in split for suffix in ("csv", "sha256")]
    made_before(folder, *splits, *caches, f"{scored}/run.json", f"{scored}/assignments.csv")
    return [*trainings, f"{scored}/metrics.json", "results/duplicates_scars.csv"]


def shrink(content: dict[str, Any], images: dict[str, dict[str, int]]) -> None:
    """Make the committed parameters tiny: a random ViT, 32 pixels, 4 epochs, one seed, few rows."""
    content |= {"seeds": [0], "seeds_of": {}, "estimate": {"seed": 0, "restarts": 1, "most": 204}}
    content["rows"] = {
        "main": ["kmeans", "gcd", *MAIN_ROWS],
        "ablation": ABLATION_ROWS,
        "open_choices": UNKNOWNS,
        "faster_settings": SPEED,
    }
    content["sensitivity"] = {"lambda_n": [0.1, 0.3], "lambda_c": [0.3], "k": [4, 8]}
    content["backbones"]["tiny"] = {
        **{"model": "test_vit", "weights": "tiny.pth", "sha256": "", "note": ""},
        **{"mean": [0.5, 0.5, 0.5], "std": [0.5, 0.5, 0.5]},
    }
    content["protocols"]["official"] |= {
        **{"backbone": "tiny", "resize": 36, "crop": 32, "tail_blocks": 1, "view_bank": 0},
        **{"precision": "float32", "epochs": 4, "batch_size": 32, "threads": 1},
    }
    content["protocols"]["bank"] = {**content["protocols"]["official"], "view_bank": 2}
    head = {"projector_width": 32, "projection_dim": 16}
    content["methods"]["kmeans"] |= {"restarts": 2}
    content["methods"]["gcd"] |= head | {"head_dim": 64, "semi_kmeans_restarts": 2}
    content["methods"]["simgcd"] |= head | {"teacher_warmup_epochs": 2}
    content["methods"]["full"] |= {"T_warm": 1, "k": 4, "neighbour_images": 16}
    for benchmark in EIGHT:
        entry = content["benchmarks"][benchmark]
        entry |= {"images": images[benchmark], "protocol": "bank" if benchmark in BANKED else "official"}
    content["benchmarks"]["imagenet_1k"]["overrides"] = {"batch_size": 64, "lr": 0.2}
    content["benchmarks"]["imagenet_1k"]["methods"] = {"full": {"neighbour_images": 64}}


def write_weights(folder: Path) -> None:
    """Write the random weights that the tiny parameters name: timm's least ViT, 6 blocks of 64 features."""
    torch.manual_seed(0)
    torch.save(build("test_vit", 32).state_dict(), folder / "tiny.pth")


def add_own(content: dict[str, Any], folder: Path) -> None:
    """What a user writes to make a benchmark of a folder."""
    content["benchmarks"][OWN] = {
        **{"reader": "folder", "path": str(folder), "listing": "", "labelled": "labelled.txt", "classes": 6},
        **{"images": "any", "K": True, "protocol": "official", "overrides": {}, "methods": {}, "settings": {}},
    }
    content["tables"]["main_flowers"] = [OWN]


def cut_to_real(content: dict[str, Any]) -> None:
    content["tables"] |= REAL
    content["rows"]["main"] = MAIN_ROWS
    content["all_tables"] = {"main": list(REAL), "ablation": ["cub"], "sensitivity": []}


@pytest.fixture(scope="session")
def data(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, dict[str, int]]]:
    """The eight benchmarks in their official layouts, all classes, and their counts of images."""
    root = tmp_path_factory.mktemp("data")
    counts = {}
    for benchmark in EIGHT:
        per_class = TRAIN_PER_CLASS.get(benchmark, 2)
        if benchmark == "imagenet_100":  # lies in the folder of imagenet_1k, written below
            counts[benchmark] = {"train": 100 * per_class, "test": 100}
        else:
            counts[benchmark] = write_fixture(benchmark, root, train_per_class=per_class)
    painter = Painter(0)
    for class_id, name in enumerate(("aster", "daisy", "iris", "lily", "rose & thorn", "tulip")):
        for number in range(8):
            painter.save(root / OWN / name / f"{number}.jpg", class_id, 24, 40)
    (root / OWN / "labelled.txt").write_text("rose & thorn\ndaisy\nlily\n")
    (root / "scars" / "cars_test_annos_withlabels.mat").unlink()
    return root, counts


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory, data: tuple[Path, dict[str, dict[str, int]]]) -> Project:
    """A project with tiny parameters for all eight benchmarks, in which nothing ever runs."""
    root, counts = data
    project = fresh(tmp_path_factory.mktemp("tiny") / "project", root)
    write_weights(project.folder)
    project.change(lambda content: shrink(content, counts))
    project.change(lambda content: add_own(content, root / OWN))
    return project


@pytest.fixture(scope="session")
def finished(tmp_path_factory: pytest.TempPathFactory, tiny: Project) -> tuple[Project, Result]:
    """The project after one call that made the main tables of all eight benchmarks and the ablation of CUB."""
    project = tiny.copy(tmp_path_factory.mktemp("finished") / "project")
    project.change(cut_to_real)
    of_cub = [f"{kind}_cub" for kind in ("ablation", "statistics", "terms")]
    tables = (*REAL, *of_cub, f"unknowns_{OWN}", f"speed_{OWN}", "audit_published")
    targets = [f"results/{table}.{suffix}" for table in tables for suffix in ("csv", "md")]
    result = project.call("--cores", "2", *targets, CURVES, *(folder_of(run) + "/metrics.json" for run in BESIDE))
    assert result.code == 0, result.output[-6000:]
    return project, result


@pytest.fixture
def done(finished: tuple[Project, Result]) -> Project:
    return finished[0]


@pytest.fixture
def another(finished: tuple[Project, Result], tmp_path: Path) -> Project:
    """A copy of the finished project, at another place, to be changed."""
    return finished[0].copy(tmp_path / "another")


def folder_of(run: tuple[str, str, int]) -> str:
    benchmark, row, seed = run
    return f"results/runs/{benchmark}/{row}/seed{seed}"


def refused(result: Result, *words: str) -> None:
    """A user's mistake ends with a status, a sentence that holds the words, and no traceback."""
    assert result.code != 0, result.output
    assert "Traceback" not in result.output, result.output
    missing = [word for word in words if word not in result.output]
    assert not missing, f"{missing} not in:\n{result.output}"


# -- what a dry run shows --------------------------------------------------------------------------------


def test_all_tables_plans_trainings_of_all_eight(tiny: Project) -> None:
    result = tiny.dry("all_tables")
    assert tiny.dry().trainings == result.trainings  # it is the default
    rows = {"kmeans", "gcd", *MAIN_ROWS, *ABLATION_ROWS, "full-paper+lambda_n=0.3", "full-paper+k=8"}
    assert result.trainings == {(benchmark, row, 0) for benchmark in EIGHT for row in rows}
    assert result.jobs["train"] == result.jobs["score"] == len(EIGHT) * len(rows)
    assert not (tiny.folder / "results").exists()


def test_demo_needs_no_data(tmp_path: Path) -> None:
    project = fresh(tmp_path / "project", tmp_path / "nothing")
    result = project.dry("demo")
    assert {benchmark for benchmark, _, _ in result.trainings} == {"fashion"}
    assert sum(row == "kmeans" for _, row, _ in result.trainings) == 3
    assert len(result.trainings) == result.jobs["train"] == 45 + 3 + 3


def test_one_table_plans_its_runs_alone(tiny: Project) -> None:
    result = tiny.dry("results/ablation_scars.csv")
    assert result.trainings == {("scars", row, 0) for row in ABLATION_ROWS}
    assert result.jobs["image_store"] == result.jobs["weights"] == 1


# -- what a real run makes -------------------------------------------------------------------------------


def test_each_run_is_trained_once(finished: tuple[Project, Result]) -> None:
    project, result = finished
    assert result.trainings == MADE
    assert result.output.count("Training ") == len(MADE)
    written = project.folder.glob("results/runs/*/*/*/run.json")
    assert {path.parent.relative_to(project.folder).as_posix() for path in written} == set(map(folder_of, MADE))


def test_tables(done: Project) -> None:
    head = ["benchmark", "method", "set", "metric", "K", "K_source", "epoch", "n"]
    head += [f"{q}_{c}" for q in ("all", "old", "new") for c in ("mean", "std", "published", "difference", "verdict")]
    tables = {**{table: (of, MAIN_ROWS) for table, of in REAL.items()}, "ablation_cub": (["cub"], ABLATION_ROWS)}
    for table, (benchmarks, rows) in tables.items():
        found = pd.read_csv(done.folder / f"results/{table}.csv", dtype={"K_source": "str"})
        assert list(found.columns[: len(head)]) == head
        assert set(zip(found.benchmark, found.method, strict=True)) == {(b, row) for b in benchmarks for row in rows}
        assert set(found.set) == {"unlabelled", "test"}
        assert {"v2", "v2b"} <= set(found.metric)
        gap = found.benchmark.isin(NO_TEST) & (found.set == "test")
        assert set(found[gap].note) <= {"no test part in the data"}
        assert (found[gap].n == 0).all()
        assert found[gap].all_mean.isna().all()
        found = found[~gap]
        assert (found.n == 1).all()
        assert found.all_std.isna().all()  # ddof = 1: no spread of one seed
        assert found.all_mean.between(0, 100).all()
        assert set(found.K_source) == {"true"}
        assert set(found.epoch) == {3}
        for suffix in ("md", "tex", "html"):
            assert (done.folder / f"results/{table}.{suffix}").stat().st_size > 0
    assert "Stanford Cars: no test part in the data" in (done.folder / "results/main_ssb.md").read_text()
    ablation = pd.read_csv(done.folder / "results/ablation_cub.csv")
    shown = ablation[(ablation.set == "unlabelled") & (ablation.metric == "v2")]
    assert list(shown.method) == ABLATION_ROWS


def test_an_estimated_k_reaches_the_run_and_its_tables(done: Project) -> None:
    estimate = json.loads((done.folder / f"results/estimates/{OWN}.json").read_text())
    tried = pd.read_csv(done.folder / f"results/estimates/{OWN}.csv").set_index("K").accuracy
    assert 3 < estimate["K"] <= 48
    assert tried[estimate["K"]] == tried.max() == estimate["accuracy"]
    metrics = json.loads((done.folder / folder_of((OWN, "full-paper+K=estimated", 0)) / "metrics.json").read_text())
    assert (metrics["K"], metrics["K_source"]) == (estimate["K"], "estimated")
    unknowns = pd.read_csv(done.folder / f"results/unknowns_{OWN}.csv")
    assert list(unknowns.K_source) == ["estimated"]
    assert list(unknowns.K) == [estimate["K"]]
    text = (done.folder / f"results/unknowns_{OWN}.md").read_text()
    assert f"K = {estimate['K']} (estimated)" in text


def test_terms_say_how_large_each_is(done: Project) -> None:
    terms = pd.read_csv(done.folder / "results/terms_cub.csv")
    assert set(terms.method) == set(ABLATION_ROWS)
    released = terms[(terms.method == "full-released") & (terms.term == "L_n")]
    assert (released.gradient_mean == 0).all()
    assert (released.loss_mean > 0).all()
    paper = terms[(terms.method == "full-paper") & (terms.term == "L_n")]
    assert sorted(paper.epoch) == [1, 3]  # where it starts, and the last
    assert (paper.tail_gradient_mean > 0).all()
    shares = terms.groupby(["method", "epoch"])[["loss_share_mean", "gradient_share_mean"]].sum()
    assert shares.to_numpy() == pytest.approx(1)


def test_gcd_keeps_its_centres(done: Project) -> None:
    folder = done.folder / folder_of(("cifar10", "gcd", 0))
    final = torch.load(folder / "final.pt", weights_only=True)
    assert final["centres"].shape == (10, 64)
    history = pd.read_csv(folder / "history.csv")
    assert list(history.columns) == ["epoch", "lr", "loss", "info_nce", "sup_con"]
    assert len(history)
    assert history.notna().all(axis=None)


def test_status_tells_what_is_reproduced(another: Project) -> None:
    result = another.call("status")
    assert result.code == 0, result.output
    found = pd.read_csv(another.folder / "results/status_published.csv")
    done = found[found.state == "reproduced"]
    reproduced = set(zip(done.table, done.benchmark, done.method, strict=True))
    assert {
        *((table, b, "full") for table in ("ssb", "generic", "challenging") for b in REAL[f"main_{table}"]),
        *(("losses", "cub", method) for method in ("full", "full_wo_n", "simgcd")),
    } <= reproduced
    assert ("losses", "cub", "full_wo_c") not in reproduced
    assert not any(method in ("kmeans", "gcd") for _, _, method in reproduced)
    assert done.device.str.startswith("cpu: ").all()


def test_a_number_of_a_table_is_that_of_its_run(done: Project) -> None:
    table = pd.read_csv(done.folder / "results/main_ssb.csv").set_index(["benchmark", "method", "set", "metric"])
    for benchmark in REAL["main_ssb"]:
        for row in MAIN_ROWS:
            predictions = pd.read_csv(done.folder / f"results/runs/{benchmark}/{row}/seed0/predictions.csv")
            hit = predictions.matched_class == predictions.true_class
            shown = table.loc[(benchmark, row, "unlabelled", "v2")]
            assert shown.all_mean == pytest.approx(100 * hit.mean())
            assert shown.old_mean == pytest.approx(100 * hit[predictions.old == 1].mean())
            assert shown.new_mean == pytest.approx(100 * hit[predictions.old == 0].mean())


def test_splits_and_predictions(done: Project) -> None:
    for benchmark in (b for of in REAL.values() for b in of):
        split = pd.read_csv(done.folder / f"results/splits/{benchmark}.csv", keep_default_na=False)
        assert list(split.columns) == ["id", "path", "part", "role", "class_id", "class_name", "old"]
        assert re.fullmatch(r"[0-9a-f]{64}\n", (done.folder / f"results/splits/{benchmark}.sha256").read_text())
        ids = {role: set(split.id[split.role == role]) for role in ("labelled", "unlabelled", "test")}
        for row in MAIN_ROWS:
            folder = done.folder / f"results/runs/{benchmark}/{row}/seed0"
            found = pd.read_csv(folder / "predictions.csv")
            assert list(found.columns) == ["id", "path", "predicted", "matched_class", "true_class", "old"]
            assert set(found.id) == ids["unlabelled"]
            assert len(found) == len(ids["unlabelled"])
            of_test = pd.read_csv(folder / "predictions_test.csv")
            assert set(of_test.id) == ids["test"]
            joined = found.merge(split, on="id")
            assert (joined.true_class == joined.class_id).all()
            assert (joined.path_x == joined.path_y).all()


def test_metrics_say_what_was_run(done: Project) -> None:
    keys = {
        *("schema", "benchmark", "row", "method", "variant", "seed", "K", "K_source", "scores", "clusters", "epoch"),
        *("identity", "split_sha256", "code", "environment", "commit", "parameters", "active_from", "trainable"),
        *("seconds", "peak_memory_mb"),
    }
    for path in done.folder.glob("results/runs/*/*/*/metrics.json"):
        found = json.loads(path.read_text())
        assert keys <= set(found)
        assert {"torch", "timm", "device"} <= set(found["environment"])
        assert found["commit"] == "unknown"  # the copy lies outside git, which nothing needs
        scored = {("unlabelled", "v2")} | ({("test", "v2")} if found["benchmark"] not in NO_TEST else set())
        assert {(s["set"], s["metric"]) for s in found["scores"]} >= scored
        own = done.folder / f"results/splits/{found['benchmark']}.sha256"
        assert found["split_sha256"] == own.read_text().strip()
        assert yaml.safe_load((path.parent / "params.yaml").read_text()) == found["parameters"]
    full = json.loads((done.folder / "results/runs/cub/full-released/seed0/metrics.json").read_text())
    assert full["parameters"]["k"] == 8  # the released scripts' own for CUB
    assert full["active_from"] == {**dict.fromkeys(("info_nce", "sup_con", "distill", "entropy", "cls"), 0)} | {
        "L_n": 2,
        "L_c": 2,
    }


def test_results_hold_no_place_of_this_machine(done: Project) -> None:
    for path in (done.folder / "results").rglob("*"):
        if path.suffix in {".json", ".csv", ".yaml", ".md", ".tex", ".html"}:
            text = path.read_text()
            assert str(done.folder) not in text, path
            assert str(done.data) not in text, path


def test_history(done: Project) -> None:
    columns = ["epoch", "lr", "teacher_temperature", "loss", "info_nce", "sup_con", "distill", "entropy", "cls"]
    starts: dict[str, dict[str, int]] = {"simgcd": {}, "full-paper": {"L_n": 1, "L_c": 1}}
    starts |= {"full-paper-without-n": {"L_c": 1}, "full-released": {"L_n": 2, "L_c": 2}}
    for row, first in starts.items():
        history = pd.read_csv(done.folder / f"results/runs/cub/{row}/seed0/history.csv")
        assert list(history.columns) == [*columns, *first]
        assert list(history.epoch) == [0, 1, 2, 3]
        assert history[columns].notna().all(axis=None)
        for term in first:
            assert list(history[term].isna()) == [epoch < first[term] for epoch in range(4)]
    frozen = pd.read_csv(done.folder / folder_of(BESIDE[0]) / "history.csv")
    assert (list(frozen.columns), len(frozen)) == (["epoch", "loss"], 0)


def test_seeds_are_paired_over_rows(done: Project) -> None:
    folder = done.folder / "results/runs/cub"
    first = [pd.read_csv(folder / row / "seed0/history.csv").loc[0, "loss"] for row in ABLATION_ROWS]
    assert len(set(first)) == 1  # no context term acts in epoch 0: same start, same images, same views


def test_learns_something(done: Project) -> None:
    history = pd.read_csv(done.folder / "results/runs/cifar10/full-paper/seed0/history.csv")
    assert history.cls.iloc[-1] < history.cls.iloc[0]
    scores = json.loads((done.folder / folder_of(BESIDE[0]) / "metrics.json").read_text())["scores"]
    v2 = next(score for score in scores if (score["set"], score["metric"]) == ("unlabelled", "v2"))
    assert v2["all"] > 20  # 10 classes told apart by colour, of which a guess gets 10 percent


# -- when it runs again ----------------------------------------------------------------------------------


def test_caches_may_be_deleted(another: Project) -> None:
    """Also at another place: neither a folder's name nor a cache is part of what a run is."""
    shutil.rmtree(another.folder / "work")
    assert "Nothing to be done" in another.dry("all_tables").output


def test_data_may_move_and_time_stamps_may_change(another: Project, tmp_path: Path) -> None:
    moved = replace(another, data=tmp_path / "moved")
    for name in ("imagenet", *(benchmark for benchmark in EIGHT if not benchmark.startswith("imagenet"))):
        shutil.copytree(another.data / name, moved.data / name, copy_function=shutil.copyfile)
    shutil.copytree(another.data / OWN, moved.data / OWN, copy_function=shutil.copyfile)
    another.change(lambda content: content["benchmarks"][OWN].update(path=str(moved.data / OWN)))
    assert "Nothing to be done" in moved.dry("all_tables").output
    # Another image of one's own makes other data of it, another line of the official lists too.
    (moved.data / OWN / "iris" / "3.jpg").write_bytes((moved.data / OWN / "iris" / "4.jpg").read_bytes())
    assert moved.dry("all_tables").trainings == {(OWN, row, 0) for row in MAIN_ROWS}
    lists = moved.data / "aircraft" / "data" / "images_variant_trainval.txt"
    lists.write_text("\n".join(reversed(lists.read_text().splitlines())) + "\n")
    assert moved.dry("all_tables").trainings == {(b, row, 0) for b in (OWN, "aircraft") for row in MAIN_ROWS}
    # And where the data is away, what the recorded splits were made from still stands.
    shutil.rmtree(moved.data)
    assert "Nothing to be done" in moved.dry("all_tables").output


def touch(project: Project) -> None:
    for file in project.folder.rglob("*.py"):
        file.touch()
    for name in ("Snakefile", "params.yaml"):
        (project.folder / name).touch()


def commit(project: Project) -> None:
    author = ["-c", "user.name=a", "-c", "user.email=a@example.org"]
    for words in (["init", "--quiet"], ["add", "--all"], [*author, "commit", "--quiet", "--message", "all"]):
        subprocess.run(["git", *words], cwd=project.folder, check=True)


def added(*files: str, line: str = "_EDITED = True") -> Callable[[Project], None]:
    """One more line in some sources."""

    def edit(project: Project) -> None:
        for file in files:
            with open(project.folder / file, "a") as source:
                source.write(f"{line}\n")

    return edit


def commented(project: Project) -> None:
    """Another text of every source that changes nothing it does."""
    files = [file for room in ("ctxgcd", "workflow/scripts") for file in (project.folder / room).rglob("*.py")]
    added(*map(str, files), line='\n\n# One more comment.\n"""And a bare string."""')(project)


def method_added(project: Project) -> None:
    """A new method: one file and one entry."""
    (project.folder / "ctxgcd/methods/other.py").write_text("from ctxgcd.methods.gcd import GCD as Other\n")
    values = 'type("OtherValues", (GCDValues,), {})'
    entry = f'METHODS["other"] = replace(METHODS["gcd"], cls="ctxgcd.methods.other.Other", values={values})'
    added("ctxgcd/catalogue/entries.py", line=f"from dataclasses import replace\n{entry}")(project)


def other_classes(project: Project) -> None:
    """Two classes change places in CUB's list, so that its split changes."""
    file = project.folder / "ctxgcd/benchmarks/class_lists/cub.json"
    content = json.loads(file.read_text())
    content["old"][0], content["new"][0] = content["new"][0], content["old"][0]
    file.write_text(json.dumps(content))


def value(*place: str, to: Any) -> Callable[[Project], None]:
    """Another value in params.yaml."""

    def edit(content: dict[str, Any]) -> None:
        for key in place[:-1]:
            content = content[key]
        content[place[-1]] = to

    return lambda project: project.change(edit)


def runs_of(*benchmarks: str) -> set[tuple[str, str, int]]:
    return {run for run in TRAINED if run[0] in benchmarks}


FRESH = {run for run in TRAINED if run[0] not in BANKED}  # of protocol `official`
TABLES = {"table": len(REAL) + 3}  # the main ones, ablation, statistics and terms
ONE_TABLE = {"table": 1}
OF_CUB = {"table": 4, "curves": 1}  # each table with a run of CUB
ANEW = {"manifest": 9, "split": 9}  # the same images, so neither stores nor features
# A change -> the runs that are trained again, and the other jobs beside their scores.
CHANGES: dict[str, tuple[Callable[[Project], None], set[tuple[str, str, int]], dict[str, int]]] = {
    "nothing": (lambda project: None, set(), {}),
    "new time stamps": (touch, set(), {}),
    "a commit": (commit, set(), {}),
    "the lr of a protocol": (
        value("protocols", "official", "lr", to=0.05),
        FRESH - runs_of("imagenet_1k"),  # which has an lr of its own
        {"table": len(REAL) + 3, "curves": 1},
    ),
    "the lr of a benchmark": (value("benchmarks", "cub", "overrides", to={"lr": 0.05}), runs_of("cub"), OF_CUB),
    "epochs": (value("protocols", "bank", "epochs", to=5), runs_of("cifar10"), ONE_TABLE),
    "threads": (value("protocols", "bank", "threads", to=2), runs_of("cifar10"), ONE_TABLE),
    "a weight of a row": (
        value("settings", "scripts", "full", "lambda_c", to=0.2),
        {("cub", "full-released", 0)},
        {"table": 3},
    ),
    # Also in the call that makes the image store and the features anew: not only in the one after it.
    "resize": (value("protocols", "official", "resize", to=40), FRESH, TABLES | {"curves": 1, "image_store": 8}),
    "crop": (value("protocols", "official", "crop", to=16), FRESH, TABLES | {"curves": 1, "weights": 1}),
    "precision": (value("protocols", "bank", "precision", to="bf16"), runs_of("cifar10"), ONE_TABLE | {"features": 2}),
    "the split seed": (value("split", "seed", to=1), TRAINED, TABLES | {"curves": 1} | ANEW),
    "the share of labels": (value("split", "labelled_share", to=0.6), TRAINED, TABLES | {"curves": 1} | ANEW),
    "a seed more": (value("seeds", to=[0, 7]), {(b, row, 7) for b, row, _ in TRAINED}, TABLES | {"curves": 1}),
    "a benchmark more": (
        value("tables", "main_ssb", to=["cub", "scars", "aircraft", "cub50"]),
        {("cub50", row, 0) for row in MAIN_ROWS},
        ONE_TABLE | {"split": 1, "manifest": 1, "image_store": 1, "features": 2, "weights": 1},
    ),
    "how K is estimated": (value("estimate", "restarts", to=2), set(), {}),  # read by no run of all_tables
}
# The same of changes of code. Runs behind a split that is made again are listed, because only the split itself tells
# whether it stays as it was; where it does, they are copied from work/runs.
ALL = TRAINED | set(BESIDE)
BANK = {"features": 3}  # of the one benchmark that keeps features: view bank, test view for training and for k-means
READ_AGAIN = TABLES | {"curves": 1}
CODE: dict[str, tuple[Callable[[Project], None], set[tuple[str, str, int]], dict[str, int]]] = {
    "a comment anywhere": (commented, set(), {}),
    "errors.py": (added("ctxgcd/errors.py"), set(), {}),
    "a new method": (method_added, set(), {}),
    "losses/entropy.py": (added("ctxgcd/losses/entropy.py"), TRAINED, READ_AGAIN),
    "losses/neighbourhood.py": (
        added("ctxgcd/losses/neighbourhood.py"),
        {run for run in TRAINED if run[1].startswith("full")},
        READ_AGAIN,
    ),
    "methods/gcd.py": (added("ctxgcd/methods/gcd.py"), {("cifar10", "gcd", 0)}, {}),
    "methods/kmeans.py": (added("ctxgcd/methods/kmeans.py"), {("cifar10", "kmeans", 0)}, {}),
    "the training script": (added("workflow/scripts/train_run.py"), ALL, READ_AGAIN),
    "images/pack.py": (added("ctxgcd/images/pack.py"), ALL, READ_AGAIN | BANK | {"image_store": 9}),
    "images/resize.py": (added("ctxgcd/images/resize.py"), ALL, READ_AGAIN | BANK | {"image_store": 9}),
    "images/views.py": (added("ctxgcd/images/views.py"), ALL, READ_AGAIN | BANK),
    "features.py": (added("ctxgcd/models/features.py"), ALL, READ_AGAIN | BANK),
    "models/weights.py": (added("ctxgcd/models/weights.py"), ALL, READ_AGAIN | BANK | {"weights": 1}),
    "cub.py": (added("ctxgcd/benchmarks/readers/cub.py"), runs_of("cub"), OF_CUB | {"manifest": 1, "split": 1}),
    "cifar.py": (
        added("ctxgcd/benchmarks/readers/cifar.py"),
        {run for run in ALL if run[0].startswith("cifar")},
        {"table": 1} | BANK | {"manifest": 2, "split": 2, "image_store": 2},
    ),
    "split.py": (added("ctxgcd/benchmarks/split.py"), ALL, READ_AGAIN | {"split": 9}),
    "a class list": (other_classes, runs_of("cub"), OF_CUB | {"split": 1}),
    "clustering/kmeans.py": (added("ctxgcd/clustering/kmeans.py"), {("cifar10", "kmeans", 0)}, {}),
    "clustering/semi_kmeans.py": (added("ctxgcd/clustering/semi_kmeans.py"), {("cifar10", "gcd", 0)}, {}),
    "evaluation": (added("ctxgcd/evaluation/scores.py"), set(), TABLES | {"score": len(ALL)}),
    "tables": (added("ctxgcd/tables/render.py"), set(), TABLES | {"audit_published": 1}),
    "published numbers": (
        added("ctxgcd/tables/published.csv", line="ssb,cub,other,1,2,3"),
        set(),
        TABLES | {"audit_published": 1},
    ),
    "plots": (added("ctxgcd/plots/curves.py"), set(), {"curves": 1}),
}
LISTED = ("weights", "manifest", "split", "image_store", "features", "estimate_k", "score", "table", "curves")
LISTED += ("audit_published",)


@pytest.mark.parametrize("name", CHANGES)
def test_a_change_runs_what_depends_on_it(another: Project, name: str) -> None:
    """The table of changes and the jobs that they ask for; scores follow trainings."""
    edit, trained, others = CHANGES[name]
    edit(another)
    result = another.dry("all_tables", CURVES)
    assert result.trainings == trained
    expected = {"score": len(trained)} | others
    assert {rule: result.jobs.get(rule, 0) for rule in LISTED} == {rule: expected.get(rule, 0) for rule in LISTED}


@pytest.mark.parametrize("name", CODE)
def test_a_change_of_code_runs_what_it_computes(another: Project, name: str) -> None:
    """And `why` names the same runs."""
    edit, trained, others = CODE[name]
    edit(another)
    targets = ["all_tables", CURVES, *(f"{folder_of(run)}/metrics.json" for run in BESIDE)]
    result = another.dry(*targets)
    assert result.trainings == trained
    expected = {"score": len(trained)} | others
    assert {rule: result.jobs.get(rule, 0) for rule in LISTED} == {rule: expected.get(rule, 0) for rule in LISTED}
    told = another.call("why", *targets)
    assert told.code == 0, told.output
    reasons = dict(re.findall(r"^(\S+/\S+/seed\d+): (.*)$", told.output, re.MULTILINE))
    assert {(b, r, int(seed[4:])) for b, r, seed in (run.split("/") for run in reasons)} == trained
    jobs = {rule: number for rule, number in result.jobs.items() if rule not in ("train", "total")}
    assert dict(re.findall(r"(\w+) (\d+)", told.output.partition("; other jobs: ")[2])) == {
        rule: str(number) for rule, number in jobs.items()
    }
    what = {"a class list": "its split is made again (its class list changed)"}.get(name, f"{name} changed")
    if name == "the training script":
        what = "workflow/scripts/train_run.py changed"
    assert all(what in reason for reason in reasons.values()), told.output


def test_a_split_that_stays_gives_its_runs_back(another: Project) -> None:
    """As `why` says."""
    added("ctxgcd/benchmarks/readers/aircraft.py")(another)
    target = "results/runs/aircraft/full-paper/seed0/metrics.json"
    told = another.call("why", target).output
    reason = (
        "its split is made again (ctxgcd/benchmarks/readers/aircraft.py changed); a finished run is cached in work/"
    )
    assert f"aircraft/full-paper/seed0: {reason}" in told
    made = another.call("--cores", "2", target)
    assert made.code == 0, made.output
    assert "this run is already finished; copied from work/runs/" in made.output
    assert "epoch 1/" not in made.output


def test_declared_equality_runs_nothing(another: Project) -> None:
    """Neither a change that is declared at once, nor, after a training, one that is declared later."""
    commit(another)
    target = "results/runs/aircraft/full-paper/seed0/metrics.json"
    before = json.loads((another.folder / target).read_text())
    added("ctxgcd/losses/entropy.py", "ctxgcd/images/resize.py")(another)
    assert another.dry(target).trainings == {("aircraft", "full-paper", 0)}
    made = another.call("--cores", "2", target)  # made by the changed code before it is declared
    assert made.code == 0, made.output
    later = json.loads((another.folder / target).read_text())
    assert before["true_code"] == before["code"] != later["code"] == later["true_code"]
    script = [sys.executable, "workflow/scripts/declare_equal.py", "--reason", "an unused name"]
    environment = os.environ | {"PYTHONPATH": str(another.folder)}
    done = subprocess.run(script, cwd=another.folder, env=environment, capture_output=True, text=True)
    assert "2 modules declared equal" in done.stdout, done.stdout + done.stderr
    assert "the code of every step is equal" in done.stdout
    # What was made before the change stands; what was made between is of equal code and is copied.
    assert another.dry("all_tables").trainings == {("aircraft", "full-paper", 0)}
    told = another.call("why", target).output
    assert "1 run would be made, 0 up to date" in told
    assert (
        "a finished run with equal code is cached in work/runs/" in told
        or "a finished run is cached in work/runs/" in told
    )
    again = another.call("--cores", "2", target)
    assert again.code == 0, again.output
    assert "this run is already finished" in again.output
    assert "epoch 1/" not in again.output


def test_every_imported_module_is_in_the_code_of_its_step(done: Project) -> None:
    """Each script, run by the workflow for each method and reader, beside what it is said to reach."""
    content = yaml.safe_load((done.folder / "params.yaml").read_text())
    readers = {name: entry["reader"] for name, entry in content["benchmarks"].items()}
    seen = set()
    for file in (done.folder / "work/imports").iterdir():
        words, imported = json.loads(file.read_text())
        script, text = Path(words[0]).stem, " ".join(words)
        known = code.reached(f"workflow.scripts.{script}").modules
        if script == "train_run":
            parameters = json.loads(words[words.index("--parameters") + 1])
            known = code.training(parameters["method"], parameters.get("modifiers", ())).modules
            seen.add(parameters["method"])
        elif script in ("list_images", "split_images", "pack_images"):
            option = "--images" if script == "pack_images" else "--benchmark"
            reader = readers[json.loads(words[words.index(option) + 1])["benchmark"]]
            of = {"list_images": code.manifest, "split_images": code.split, "pack_images": code.pack}[script]
            known = of(reader).modules
            seen.add((script, reader))
        elif script not in code.SCRIPTS:
            continue
        seen.add(script)
        rooms = {name for name in imported if code.digest(name) == content_digest("")}
        assert set(imported) - set(known) - set(code.WITHOUT_NUMBERS) - rooms == set(), text
    steps = {"list_images", "split_images", "pack_images", "train_run", *code.SCRIPTS} - {
        *("find_duplicates", "summarize_scores", "draw_sensitivity", "draw_embedding")
    }
    used = {readers[benchmark] for benchmark, _, _ in TRAINED}
    assert seen == steps | {"kmeans", "gcd", "simgcd", "full"} | {
        (script, reader) for script in ("list_images", "split_images", "pack_images") for reader in used
    }


def test_a_split_that_was_made_alone_is_followed_by_its_runs(another: Project) -> None:
    another.change(lambda content: content["split"].update(labelled_share=0.6))
    made = another.call("--cores", "1", f"results/splits/{OWN}.csv")
    assert made.code == 0, made.output
    assert another.dry(f"results/main_{OWN}.csv").trainings == {(OWN, row, 0) for row in MAIN_ROWS}


def test_runs_of_other_parameters_are_in_no_table(another: Project) -> None:
    """Results that were copied from elsewhere: Snakemake knows nothing of how they were made."""
    shutil.rmtree(another.folder / ".snakemake")
    value("protocols", "official", "lr", to=0.05)(another)
    (another.folder / f"results/main_{OWN}.csv").unlink()
    result = another.call("--cores", "1", f"results/main_{OWN}.csv")
    refused(result, f"results/runs/{OWN}/full-paper/seed0 was made with other parameters than the current params.yaml")


def test_another_way_to_estimate_k_trains_what_reads_it(another: Project) -> None:
    another.change(lambda content: content["estimate"].update(restarts=2))
    result = another.dry("all_tables", f"results/unknowns_{OWN}.csv", f"results/speed_{OWN}.csv")
    assert result.trainings == {(OWN, "full-paper+K=estimated", 0)}
    assert result.jobs["estimate_k"] == 1


def test_faster_settings_are_rows_of_a_table_of_their_own(done: Project) -> None:
    (row,) = SPEED
    speed = pd.read_csv(done.folder / f"results/speed_{OWN}.csv")
    assert speed[["method", "against", "n"]].to_numpy().tolist() == [[row, SPEED[row], 1]]
    run = json.loads((done.folder / folder_of((OWN, row, 0)) / "metrics.json").read_text())
    assert (run["parameters"]["precision"], run["parameters"]["view_bank"]) == ("bf16", 2)
    log = (done.folder / f"work/logs/train/{OWN}/{row}/seed0.log").read_text()
    assert ("precision float32 is faster" in log) != has_bf16(torch.device("cpu"))
    kept = {np.load(file, mmap_mode="r").dtype.name for file in done.folder.glob(f"work/features/{OWN}-*/*-bf16.npy")}
    assert kept == {"float16"}


def test_two_processes_make_the_run_of_one(another: Project) -> None:
    """On a CPU they are joined by gloo; what is asked of a run's devices is no part of what it is."""
    folder = another.folder / folder_of(("cub", "full-paper", 0))
    alone = pd.read_csv(folder / "history.csv"), pd.read_csv(folder / "predictions.csv")
    assert another.dry("results/main_ssb.csv", "--set-resources", "train:gpu=2").trainings == set()
    shutil.rmtree(folder)
    shutil.rmtree(another.folder / "work/runs")  # where the run was kept
    wanted = f"{folder_of(('cub', 'full-paper', 0))}/metrics.json"
    result = another.call("--cores", "2", wanted, "--set-resources", "train:gpu=2")
    assert result.code == 0, result.output[-3000:]
    assert json.loads((folder / "run.json").read_text())["processes"] == 2
    pd.testing.assert_frame_equal(pd.read_csv(folder / "history.csv"), alone[0], rtol=1e-3)
    predicted = pd.read_csv(folder / "predictions.csv").predicted
    assert (predicted == alone[1].predicted).mean() > 0.97


def test_a_host_of_eight_gpus_gives_imagenet_all_of_them(another: Project) -> None:
    runs = [f"{folder_of((name, 'simgcd', 5))}/run.json" for name in ("imagenet_1k", "cub")]
    result = another.call("-n", "-p", *runs, "--profile", "profiles/gpus8")
    assert result.code == 0, result.output
    asked = dict(re.findall(r'"benchmark": "(\w+)".*? --devices (\d)', result.output))
    assert asked == {"imagenet_1k": "8", "cub": "1"}


def test_new_weights_train_again_but_a_moved_file_does_not(another: Project) -> None:
    (another.folder / "elsewhere.pth").write_bytes((another.folder / "tiny.pth").read_bytes())
    another.change(lambda content: content["backbones"]["tiny"].update(weights="elsewhere.pth"))
    assert not another.dry("all_tables").trainings
    state = torch.load(another.folder / "tiny.pth", weights_only=True)
    torch.save({name: value + 0.01 for name, value in state.items()}, another.folder / "elsewhere.pth")
    assert another.dry("all_tables").trainings == TRAINED


# -- what goes wrong -------------------------------------------------------------------------------------


def test_check_data_finds_all_eight(tiny: Project) -> None:
    result = tiny.call("--cores", "1", "check_data")
    assert result.code == 0, result.output
    for benchmark in EIGHT:
        assert re.search(rf"^{benchmark} +found ", result.output, re.MULTILINE), result.output


def test_missing_data_stops_before_any_training(tiny: Project, tmp_path: Path) -> None:
    project = replace(tiny.copy(tmp_path / "project"), data=tmp_path / "part")
    project.data.mkdir()
    (project.data / "cifar10").symlink_to(tiny.data / "cifar10")
    checked = project.call("--cores", "1", "check_data")
    result = project.call("--cores", "2", "all_tables")
    for call in (checked, result):
        absent = [benchmark for benchmark in EIGHT if benchmark != "cifar10"]
        refused(call, "how to get it")
        for benchmark in absent:
            assert re.search(rf"^{benchmark} +missing ", call.output, re.MULTILINE), call.output
        assert re.search(r"^cifar10 +found ", call.output, re.MULTILINE), call.output
    assert re.match("error: the data of .*cub.* is not ready", result.output.rstrip().splitlines()[-1])
    assert not result.trainings
    assert not list(project.folder.glob("results/runs/*"))


def test_every_benchmark_can_be_checked(tiny: Project, tmp_path: Path) -> None:
    """Also one that no word of the command line names and that `all_tables` does not hold."""
    project = tiny.copy(tmp_path / "project")
    result = project.call("--cores", "1", "work/manifests/fashion.csv")
    assert result.code == 0, result.output
    assert (project.folder / "work/manifests/fashion.csv").exists()


def test_a_broken_image_is_named(another: Project, tmp_path: Path) -> None:
    project = replace(another, data=tmp_path / "broken")
    shutil.copytree(another.data / "cub", project.data / "cub")
    image = sorted((project.data / "cub").rglob("*.jpg"))[17]
    image.write_bytes(image.read_bytes()[:200])
    store = next(project.folder.glob("work/stores/cub-*.npz"))
    store.unlink()
    result = project.call("--cores", "1", store.relative_to(project.folder).as_posix())
    refused(result, image.name, "cannot be decoded", "replace it")
    assert not store.exists()


def test_missing_weights_are_named(tiny: Project, tmp_path: Path) -> None:
    project = tiny.copy(tmp_path / "project")
    project.change(lambda content: content["backbones"]["tiny"].update(weights="models/nowhere.pth"))
    result = project.call("--cores", "1", "results/runs/cub/simgcd/seed0/metrics.json")
    refused(result, "models/nowhere.pth does not exist", "give")
    assert not result.trainings


@pytest.mark.parametrize(
    ("target", "words"),
    [
        ("results/ablation_cubb.csv", ["unknown benchmark 'cubb'", "did you mean 'cub'?"]),
        ("results/main_sbs.csv", ["unknown table 'main_sbs'", "did you mean 'main_ssb'?"]),
        ("benchmark_scar", ["unknown benchmark 'scar'", "did you mean 'scars'?"]),
        ("results/runs/cub/full-papr/seed0/metrics.json", ["unknown variant", "did you mean 'paper'?"]),
    ],
)
def test_unknown_targets(tiny: Project, target: str, words: list[str]) -> None:
    refused(tiny.call("-n", "--cores", "1", target), *words)


def test_a_wrong_key_ends_with_a_sentence_alone(tiny: Project, tmp_path: Path) -> None:
    project = tiny.copy(tmp_path / "project")
    project.change(lambda content: content["protocols"]["official"].update(epoch=3))
    result = project.call("-n", "--cores", "1", "all_tables")
    refused(result, "protocols.official", "unknown key 'epoch'", "did you mean 'epochs'?")
    assert len(result.output.strip().splitlines()) <= 3


@pytest.mark.parametrize("change", [{"batch_size": 49}, {"neighbour_images": 49 * 4}])
def test_more_than_the_images_of_a_folder_is_refused_before_packing(
    tiny: Project, tmp_path: Path, change: dict[str, int]
) -> None:
    project = tiny.copy(tmp_path / "project")
    (name,) = change
    of = {"methods": {"full": change}} if name == "neighbour_images" else {"overrides": change}
    project.change(lambda content: content["benchmarks"][OWN].update(of))
    run = f"results/runs/{OWN}/full-paper/seed0/metrics.json"
    result = project.call("--cores", "1", run)
    refused(result, f"error: benchmark {OWN}, row full-paper: {name} {change[name]} ", "give")
    assert not (project.folder / f"results/splits/{OWN}.csv").exists()
    # Only what is asked for is refused: the split alone is made, and the next call packs nothing for that run.
    split = project.call("--cores", "1", f"results/splits/{OWN}.csv")
    assert split.code == 0, split.output
    refused(project.call("--cores", "1", run), f"{name} {change[name]} ")
    assert not list(project.folder.glob("work/stores/*.npz"))
    assert not list(project.folder.glob("work/features/*"))


def test_a_warm_up_of_the_whole_training_is_refused_in_the_dry_run(tiny: Project, tmp_path: Path) -> None:
    project = tiny.copy(tmp_path / "project")
    project.change(lambda content: content["benchmarks"][OWN].update(methods={"full": {"T_warm": 15}}))
    refused(project.call("-n", "all_tables"), f"benchmark {OWN}, row full-paper: ", "epoch 15 of 4; decrease T_warm")


@pytest.mark.parametrize("words", [("-n", "all_tables"), ("--cores", "1", "demo"), ("plan", "demo"), ("--unlock",)])
@pytest.mark.parametrize("called_before", [False, True])
def test_a_checkout_that_cannot_be_written_ends_with_a_sentence_alone(
    tmp_path: Path, words: tuple[str, ...], called_before: bool
) -> None:
    project = fresh(tmp_path / "project", tmp_path)
    if called_before:
        for name in (".snakemake", "results", "work"):
            (project.folder / name).mkdir()
    folder = str(project.folder)
    done = subprocess.run(["mount", "--bind", folder, folder], capture_output=True, text=True)
    if done.returncode:
        pytest.skip(f"a folder cannot be mounted here: {done.stderr.strip()}")
    try:
        subprocess.run(["mount", "-o", "remount,ro,bind", folder], check=True)
        result = project.call(*words)
    finally:
        subprocess.run(["umount", "--lazy", folder], check=True)
    refused(result, f"error: {folder}/.snakemake is not writable; change its permissions")
    assert len(result.output.strip().splitlines()) <= 3  # the sentence, and two lines of Snakemake's


# -- how it is written -----------------------------------------------------------------------------------


@pytest.mark.parametrize("words", [("-q",), ("--quiet", "rules"), ("--quiet", "all"), ("--cores", "1")])
def test_why_tells_the_same_runs_whatever_the_call_hides(tiny: Project, words: tuple[str, ...]) -> None:
    told = tiny.call("why", "results/ablation_scars.csv", *words)
    assert told.code == 0, told.output
    assert f"{len(ABLATION_ROWS)} runs would be made, 0 up to date" in told.output


def test_plan_and_why_know_files_that_pass_through_another_folder(tiny: Project) -> None:
    """As in the profile for Kubernetes, where results lie below pods/."""
    storage = ("--default-storage-provider", "fs", "--default-storage-prefix", "pods")
    told = tiny.call("why", "results/ablation_scars.csv", *storage)
    assert told.code == 0, told.output
    assert f"{len(ABLATION_ROWS)} runs would be made, 0 up to date" in told.output
    planned = tiny.call("plan", "results/ablation_scars.csv", *storage)
    assert planned.code == 0, planned.output


def test_why_can_be_asked_from_another_folder(tiny: Project) -> None:
    name = tiny.folder.name
    environment = {"CTXGCD_DATA": str(tiny.data), "PYTHONPATH": str(tiny.folder)}
    words = ("-s", f"{name}/Snakefile", "-d", name, "why", "results/ablation_scars.csv")
    status, told = snakemake(tiny.folder.parent, environment, *words)
    assert status == 0, told
    assert f"{len(ABLATION_ROWS)} runs would be made, 0 up to date" in told


def test_damaged_declarations_are_refused_before_anything_is_planned(tiny: Project, tmp_path: Path) -> None:
    project = tiny.copy(tmp_path / "project")
    added("ctxgcd/pipeline/equal_code.csv", line="<<<<<<< HEAD")(project)
    refused(project.call("-n", "all_tables"), "equal_code.csv line 2 is '<<<<<<< HEAD'")


def test_lint_is_clean(tiny: Project) -> None:
    result = tiny.call("--lint")
    assert result.code == 0, result.output
    assert "Congratulations" in result.output


def test_format_is_clean() -> None:
    rules = sorted(str(path) for path in (ROOT / "workflow/rules").glob("*.smk"))
    assert rules
    call = [str(PROGRAMS / "snakefmt"), "--check", str(ROOT / "Snakefile"), *rules]
    done = subprocess.run(call, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
