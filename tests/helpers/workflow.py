"""A copy of the project with synthetic data in the official layouts, and calls of Snakemake in it."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
import yaml

from ctxgcd.models.weights import build
from tests.helpers.forked import snakemake
from tests.helpers.places import ROOT

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
# Of all_tables in the tiny project, which is planned and not made.
PLANNED_ROWS = {"kmeans", "gcd", *MAIN_ROWS, *ABLATION_ROWS, "full-paper+lambda_n=0.3", "full-paper+k=8"}
UNKNOWNS = {"full-paper+K=estimated": "full-paper"}
SPEED = {"full-paper+precision=bf16+view_bank=2": "full-paper"}
CURVES = "results/figures/curves_cub.png"
BESIDE = [("cifar10", "kmeans", 0), ("cifar10", "gcd", 0)]  # runs that the real call makes beside its tables
TRAINED = {(b, row, 0) for of in REAL.values() for b in of for row in MAIN_ROWS}
TRAINED |= {("cub", row, 0) for row in ABLATION_ROWS}  # by all_tables
MADE = TRAINED | {(OWN, row, 0) for row in (*UNKNOWNS, *SPEED)} | set(BESIDE)


@dataclass(frozen=True)
class Result:
    """The exit status of a call, and both output streams in one text."""

    code: int
    output: str

    @property
    def trainings(self) -> set[tuple[str, str, int]]:
        """Return (benchmark, row, seed) of every training job that was planned or started."""
        found = re.findall(r"Training (\S+) (\S+) seed (\d+)", self.output)
        return {(benchmark, row, int(seed)) for benchmark, row, seed in found}

    @property
    def jobs(self) -> dict[str, int]:
        """Return the number of jobs by rule, from the table that Snakemake prints first."""
        return {rule: int(count) for rule, count in re.findall(r"^(\w+) +(\d+)$", self.output, re.MULTILINE)}


@dataclass(frozen=True)
class Project:
    """A folder with the project's workflow files, the package and its own params.yaml.

    The package is copied too, because an edit of the sources during the tests would train everything again.
    """

    folder: Path
    data: Path

    def call(self, *words: str, forked: bool = True) -> Result:
        own = {"CTXGCD_DATA": str(self.data), "PYTHONPATH": str(self.folder)}
        return Result(*snakemake(self.folder, own, *words, forked=forked))

    def dry(self, *words: str) -> Result:
        result = self.call("-n", "--cores", "8", *words)
        assert result.code == 0, result.output
        return result

    def copy(self, to: Path) -> Project:
        """Copy the project without logs. Results and caches are links: jobs replace such a file and never edit it."""
        to.mkdir(parents=True)
        made = [folder for name in ("results", "work") if (folder := self.folder / name).exists()]
        subprocess.run(["cp", "--archive", *set(self.folder.iterdir()).difference(made), to], check=True)
        if made:
            subprocess.run(["cp", "--archive", "--link", *made, to], check=True)
        for name in ("logs", "benchmarks"):  # which jobs do edit
            shutil.rmtree(to / "work" / name, ignore_errors=True)
        return replace(self, folder=to)

    def change(self, edit: Callable[[dict[str, Any]], None]) -> None:
        path = self.folder / "params.yaml"
        content = yaml.load(path.read_text(), Loader=yaml.CSafeLoader)
        edit(content)
        path.write_text(yaml.dump(content, Dumper=yaml.CSafeDumper, sort_keys=False))


def fresh(folder: Path, data: Path) -> Project:
    """Copy the files of the project that a run reads, outside git, with the committed params.yaml."""
    folder.mkdir(parents=True)
    for name in ("workflow", "profiles", "ctxgcd"):
        shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("Snakefile", "params.yaml"):
        shutil.copy2(ROOT / name, folder)
    # Without the project's declarations of equal code, so that a test knows all declarations.
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
    """Create files of earlier jobs; these tests do not read them."""
    for name in files:
        file = folder / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.touch()


def one_job_of_each_kind(project: Project, folder: Path) -> list[str]:
    """Return targets that need a training on one GPU and on eight, a score and a packing, and create their inputs."""
    trainings = [f"results/runs/{name}/simgcd/seed0/run.json" for name in ("cub", "imagenet_1k")]
    scored = "results/runs/aircraft/simgcd/seed0"
    planned = project.call("--summary", *trainings).output
    caches = re.findall(r"^(work/(?:stores|weights)/\S+)", planned, re.MULTILINE)
    split = ("cub", "imagenet_1k", "aircraft", "scars")
    splits = [f"results/splits/{name}.{suffix}" for name in split for suffix in ("csv", "sha256")]
    made_before(folder, *splits, *caches, f"{scored}/run.json", f"{scored}/assignments.csv")
    return [*trainings, f"{scored}/metrics.json", "results/duplicates_scars.csv"]


def short_trainings(content: dict[str, Any]) -> None:
    """Reduce trainings of `fashion` to four epochs of new views of the 500 labelled images."""
    quick = {"resize": 32, "crop": 32, "tail": "blocks", "view_bank": 0, "epochs": 4, "batch_size": 64}
    content["protocols"]["fashion"] |= quick
    simgcd = {"projector_width": 64, "projection_dim": 64, "teacher_warmup_epochs": 1}
    content["benchmarks"]["fashion"]["methods"] |= {"simgcd": simgcd, "full": {"T_warm": 1, "neighbour_images": 64}}
    content["benchmarks"]["fashion"]["trial"] = True


def shrink(content: dict[str, Any], images: dict[str, dict[str, int]]) -> None:
    """Make the committed parameters tiny: a random ViT, 32 pixels, 3 epochs, one seed, few rows."""
    content |= {"seeds": [0], "seeds_of": {}, "rows_of": {}, "estimate": {"seed": 0, "restarts": 1, "most": 204}}
    content["rows"] = {
        "main": ["kmeans", "gcd", *MAIN_ROWS],
        "ablation": ABLATION_ROWS,
        "open_choices": UNKNOWNS,
        "faster_settings": SPEED,
    }
    content["sensitivity"] = {"lambda_n": [0.1, 0.3], "lambda_c": [0.3], "k": [4, 8]}
    content["backbones"]["tiny"] = TINY
    content["protocols"]["official"] |= {
        **{"backbone": "tiny", "resize": 36, "crop": 32, "tail_blocks": 1, "view_bank": 0},
        **{"precision": "float32", "epochs": 3, "batch_size": 32, "threads": 1},
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


TINY = {"model": "test_vit", "weights": "tiny.pth", "sha256": "", "note": "", "mean": [0.5] * 3, "std": [0.5] * 3}


def write_weights(folder: Path) -> None:
    """Write the random weights of the tiny parameters: timm's smallest ViT, 6 blocks of 64 features."""
    torch.manual_seed(0)
    torch.save(build("test_vit", 32).state_dict(), folder / "tiny.pth")


def add_own(content: dict[str, Any], folder: Path) -> None:
    """Add a benchmark of own images, as a user does."""
    content["benchmarks"][OWN] = {
        **{"reader": "folder", "path": str(folder), "listing": "", "labelled": "labelled.txt", "classes": 6},
        **{"images": "any", "K": True, "protocol": "official", "overrides": {}, "methods": {}, "settings": {}},
    }
    content["tables"]["main_flowers"] = [OWN]


def cut_to_real(content: dict[str, Any]) -> None:
    content["tables"] |= REAL
    content["rows"]["main"] = MAIN_ROWS
    content["all_tables"] = {"main": list(REAL), "ablation": ["cub"], "sensitivity": []}


def folder_of(run: tuple[str, str, int]) -> str:
    benchmark, row, seed = run
    return f"results/runs/{benchmark}/{row}/seed{seed}"


def refused(result: Result, *words: str) -> None:
    """Check that a call fails with an error message that contains the words, and without a traceback."""
    assert result.code != 0, result.output
    assert "Traceback" not in result.output, result.output
    missing = [word for word in words if word not in result.output]
    assert not missing, f"{missing} not in:\n{result.output}"


def added(*files: str, line: str = "_EDITED = True") -> Callable[[Project], None]:
    """Return a change that appends a line to some sources."""

    def edit(project: Project) -> None:
        for file in files:
            with open(project.folder / file, "a") as source:
                source.write(f"{line}\n")

    return edit


def value(*place: str, to: Any) -> Callable[[Project], None]:
    """Return a change of a value in params.yaml."""

    def edit(content: dict[str, Any]) -> None:
        for key in place[:-1]:
            content = content[key]
        content[place[-1]] = to

    return lambda project: project.change(edit)


def runs_of(*benchmarks: str) -> set[tuple[str, str, int]]:
    return {run for run in TRAINED if run[0] in benchmarks}
