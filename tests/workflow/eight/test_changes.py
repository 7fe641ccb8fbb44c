"""The jobs after a change of parameters, data, weights or code, and the output of `why`."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import yaml

from ctxgcd.pipeline import code
from ctxgcd.pipeline.digest import content_digest
from tests.helpers.forked import programs
from tests.helpers.workflow import (
    BANKED,
    BESIDE,
    CURVES,
    EIGHT,
    MAIN_ROWS,
    OWN,
    REAL,
    TRAINED,
    Project,
    added,
    folder_of,
    refused,
    runs_of,
    value,
)


def test_caches_can_be_deleted(another: Project) -> None:
    """Also in another folder: neither folders nor caches are part of a run's identity."""
    shutil.rmtree(another.folder / "work")
    assert "Nothing to be done" in another.dry("all_tables").output


def test_data_may_move_and_time_stamps_may_change(another: Project, tmp_path: Path) -> None:
    moved = replace(another, data=tmp_path / "moved")
    for name in ("imagenet", *(benchmark for benchmark in EIGHT if not benchmark.startswith("imagenet"))):
        shutil.copytree(another.data / name, moved.data / name, copy_function=shutil.copyfile)
    shutil.copytree(another.data / OWN, moved.data / OWN, copy_function=shutil.copyfile)
    another.change(lambda content: content["benchmarks"][OWN].update(path=str(moved.data / OWN)))
    assert "Nothing to be done" in moved.dry("all_tables").output
    # A changed own image, and a changed line of the official lists, change the data.
    (moved.data / OWN / "iris" / "3.jpg").write_bytes((moved.data / OWN / "iris" / "4.jpg").read_bytes())
    assert moved.dry("all_tables").trainings == {(OWN, row, 0) for row in MAIN_ROWS}
    lists = moved.data / "aircraft" / "data" / "images_variant_trainval.txt"
    lists.write_text("\n".join(reversed(lists.read_text().splitlines())) + "\n")
    assert moved.dry("all_tables").trainings == {(b, row, 0) for b in (OWN, "aircraft") for row in MAIN_ROWS}
    # If the data is missing, the recorded sources of the splits are used.
    shutil.rmtree(moved.data)
    assert "Nothing to be done" in moved.dry("all_tables").output


def commit(project: Project) -> None:
    author = ["-c", "user.name=a", "-c", "user.email=a@example.org"]
    for words in (["init", "--quiet"], ["add", "--all"], [*author, "commit", "--quiet", "--message", "all"]):
        subprocess.run(["git", *words], cwd=project.folder, check=True)


def touched_and_committed(project: Project) -> None:
    for file in (*project.folder.rglob("*.py"), project.folder / "Snakefile", project.folder / "params.yaml"):
        file.touch()
    commit(project)


def both(*edits: Callable[[Project], None]) -> Callable[[Project], None]:
    def edit(project: Project) -> None:
        for one in edits:
            one(project)

    return edit


def commented(project: Project) -> None:
    """Change the text of every source without changing its behaviour."""
    files = [file for room in ("ctxgcd", "workflow/scripts") for file in (project.folder / room).rglob("*.py")]
    added(*map(str, files), line='\n\n# One more comment.\n"""And a bare string."""')(project)


def method_added(project: Project) -> None:
    """A new method: one file and one entry."""
    (project.folder / "ctxgcd/methods/other.py").write_text("from ctxgcd.methods.gcd import GCD as Other\n")
    values = 'type("OtherValues", (GCDValues,), {})'
    entry = f'METHODS["other"] = replace(METHODS["gcd"], cls="ctxgcd.methods.other.Other", values={values})'
    added("ctxgcd/catalogue/entries.py", line=f"from dataclasses import replace\n{entry}")(project)


def other_classes(project: Project) -> None:
    """Exchange two classes in CUB's list, so that its split changes."""
    file = project.folder / "ctxgcd/benchmarks/class_lists/cub.json"
    content = json.loads(file.read_text())
    content["old"][0], content["new"][0] = content["new"][0], content["old"][0]
    file.write_text(json.dumps(content))


FRESH = {run for run in TRAINED if run[0] not in BANKED}  # of protocol `official`
TABLES = {"table": len(REAL) + 3}  # the main ones, ablation, statistics and terms
ONE_TABLE = {"table": 1}
OF_CUB = {"table": 4, "curves": 1}  # each table with a run of CUB
ANEW = {"manifest": 9, "split": 9}  # the same images, so neither stores nor features


# A change -> the runs that are trained again, and the other jobs beside their scores.
CHANGES: dict[str, tuple[Callable[[Project], None], set[tuple[str, str, int]], dict[str, int]]] = {
    "new time stamps and a commit": (touched_and_committed, set(), {}),
    "the lr of a protocol": (
        value("protocols", "official", "lr", to=0.05),
        FRESH - runs_of("imagenet_1k"),  # which has an lr of its own
        {"table": len(REAL) + 3, "curves": 1},
    ),
    "the lr of a benchmark, and a precision": (
        both(
            value("benchmarks", "cub", "overrides", to={"lr": 0.05}), value("protocols", "bank", "precision", to="bf16")
        ),
        runs_of("cub", "cifar10"),
        OF_CUB | {"table": 5, "features": 2},
    ),
    "threads, and a weight of a row": (
        both(value("protocols", "bank", "threads", to=2), value("settings", "scripts", "full", "lambda_c", to=0.2)),
        runs_of("cifar10") | {("cub", "full-released", 0)},
        {"table": 4},
    ),
    # Also in the call that makes image store and features again, not only in the next one.
    "resize": (value("protocols", "official", "resize", to=40), FRESH, TABLES | {"curves": 1, "image_store": 8}),
    "crop": (value("protocols", "official", "crop", to=16), FRESH, TABLES | {"curves": 1, "weights": 1}),
    "the share of labels": (value("split", "labelled_share", to=0.6), TRAINED, TABLES | {"curves": 1} | ANEW),
    "a seed more": (value("seeds", to=[0, 7]), {(b, row, 7) for b, row, _ in TRAINED}, TABLES | {"curves": 1}),
    "a benchmark more": (
        value("tables", "main_ssb", to=["cub", "scars", "aircraft", "cub50"]),
        {("cub50", row, 0) for row in MAIN_ROWS},
        ONE_TABLE | {"split": 1, "manifest": 1, "image_store": 1, "features": 2, "weights": 1},
    ),
}


# The same for changes of code. Runs of a split that is made again are listed, because the split may change; if it does
# not, they are copied from work/runs.
ALL = TRAINED | set(BESIDE)
BANK = {"features": 3}  # of the only benchmark with cached features: view bank, test view for training and for k-means
READ_AGAIN = TABLES | {"curves": 1}


CODE: dict[str, tuple[Callable[[Project], None], set[tuple[str, str, int]], dict[str, int]]] = {
    "what changes no number": (both(commented, added("ctxgcd/errors.py"), method_added), set(), {}),
    "losses/neighbourhood.py": (
        added("ctxgcd/losses/neighbourhood.py"),
        {run for run in TRAINED if run[1].startswith("full")},
        READ_AGAIN,
    ),
    "methods/kmeans.py": (  # and curves and published numbers, which no run reads
        both(
            added("ctxgcd/methods/kmeans.py", "ctxgcd/plots/curves.py"),
            added("ctxgcd/tables/published.csv", line="ssb,cub,other,1,2,3"),
        ),
        {("cifar10", "kmeans", 0)},
        TABLES | {"curves": 1, "audit_published": 1},
    ),
    "the training script": (added("workflow/scripts/train_run.py"), ALL, READ_AGAIN),
    "images/pack.py": (added("ctxgcd/images/pack.py"), ALL, READ_AGAIN | BANK | {"image_store": 9}),
    "features.py": (added("ctxgcd/models/features.py"), ALL, READ_AGAIN | BANK),
    "models/weights.py": (added("ctxgcd/models/weights.py"), ALL, READ_AGAIN | BANK | {"weights": 1}),
    "cub.py, clustering/semi_kmeans.py": (
        added("ctxgcd/benchmarks/readers/cub.py", "ctxgcd/clustering/semi_kmeans.py"),
        runs_of("cub") | {("cifar10", "gcd", 0)},
        OF_CUB | {"manifest": 1, "split": 1},
    ),
    "cifar.py": (
        added("ctxgcd/benchmarks/readers/cifar.py"),
        {run for run in ALL if run[0].startswith("cifar")},
        {"table": 1} | BANK | {"manifest": 2, "split": 2, "image_store": 2},
    ),
    "split.py": (added("ctxgcd/benchmarks/split.py"), ALL, READ_AGAIN | {"split": 9}),
    "a class list": (other_classes, runs_of("cub"), OF_CUB | {"split": 1}),
    "clustering/kmeans.py": (
        added("ctxgcd/clustering/kmeans.py"),  # SimGCD reaches it too, for `new_by: kmeans`
        TRAINED | {("cifar10", "kmeans", 0)},
        READ_AGAIN,
    ),
    "evaluation": (added("ctxgcd/evaluation/scores.py"), set(), TABLES | {"score": len(ALL)}),
}


LISTED = ("weights", "manifest", "split", "image_store", "features", "estimate_k", "score", "table", "curves")
LISTED += ("audit_published",)


@pytest.mark.parametrize("name", CHANGES)
def test_a_change_runs_what_depends_on_it(another: Project, name: str) -> None:
    """A table of changes and the jobs that they cause; scores follow trainings."""
    edit, trained, others = CHANGES[name]
    edit(another)
    result = another.dry("all_tables", CURVES)
    assert result.trainings == trained
    expected = {"score": len(trained)} | others
    assert {rule: result.jobs.get(rule, 0) for rule in LISTED} == {rule: expected.get(rule, 0) for rule in LISTED}


@pytest.mark.parametrize("name", CODE)
def test_a_change_of_code_runs_what_it_computes(another: Project, name: str) -> None:
    """`why` prints these runs with this reason, and the number of other jobs of a dry run."""
    edit, trained, others = CODE[name]
    edit(another)
    targets = ["all_tables", CURVES, *(f"{folder_of(run)}/metrics.json" for run in BESIDE)]
    result = another.call("why", *targets)
    assert result.code == 0, result.output
    reasons = dict(re.findall(r"^(\S+/\S+/seed\d+): (.*)$", result.output, re.MULTILINE))
    assert {(b, r, int(seed[4:])) for b, r, seed in (run.split("/") for run in reasons)} == trained
    jobs = dict(re.findall(r"(\w+) (\d+)", result.output.partition("; other jobs: ")[2]))
    expected = {"score": len(trained)} | others
    assert {rule: int(jobs.get(rule, 0)) for rule in LISTED} == {rule: expected.get(rule, 0) for rule in LISTED}
    what = {
        "a class list": ["its split is made again (its class list changed)"],
        "the training script": ["workflow/scripts/train_run.py changed"],
    }.get(name, [f"{file} changed" for file in name.split(", ")])
    assert all(any(part in reason for part in what) for reason in reasons.values()), result.output


def test_runs_of_an_unchanged_split_are_copied(another: Project) -> None:
    """As printed by `why`."""
    added("ctxgcd/benchmarks/readers/aircraft.py")(another)
    target = "results/runs/aircraft/full-paper/seed0/metrics.json"
    output = another.call("why", target).output
    reason = (
        "its split is made again (ctxgcd/benchmarks/readers/aircraft.py changed); a finished run is cached in work/"
    )
    assert f"aircraft/full-paper/seed0: {reason}" in output
    made = another.call("--cores", "2", target)
    assert made.code == 0, made.output
    assert "this run is already finished; copied from work/runs/" in made.output
    assert "epoch 1/" not in made.output


def test_declared_equality_runs_nothing(another: Project) -> None:
    """Neither for a change declared immediately nor for one declared after a training."""
    commit(another)
    target = "results/runs/aircraft/full-paper/seed0/metrics.json"
    before = json.loads((another.folder / target).read_text())
    added("ctxgcd/losses/entropy.py", "ctxgcd/images/resize.py")(another)
    assert another.dry(target).trainings == {("aircraft", "full-paper", 0)}
    made = another.call("--cores", "2", target)  # made by the changed code before it is declared
    assert made.code == 0, made.output
    later = json.loads((another.folder / target).read_text())
    assert before["true_code"] == before["code"] != later["code"] == later["true_code"]
    script = [programs() / "python", "workflow/scripts/declare_equal.py", "--reason", "an unused name"]
    environment = os.environ | {"PYTHONPATH": str(another.folder)}
    done = subprocess.run(script, cwd=another.folder, env=environment, capture_output=True, text=True)
    assert "2 modules declared equal" in done.stdout, done.stdout + done.stderr
    assert "the code of every step is equal" in done.stdout
    # Results made before the change stay valid; those made before the declaration have equal code and are copied.
    assert another.dry("all_tables").trainings == {("aircraft", "full-paper", 0)}
    output = another.call("why", target).output
    assert "1 run would be made, 0 up to date" in output
    assert (
        "a finished run with equal code is cached in work/runs/" in output
        or "a finished run is cached in work/runs/" in output
    )
    again = another.call("--cores", "2", target)
    assert again.code == 0, again.output
    assert "this run is already finished" in again.output
    assert "epoch 1/" not in again.output


def test_every_imported_module_is_in_the_code_of_its_step(done: Project) -> None:
    """The imports of each script, for each method and reader, are part of the code of its step."""
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
    """Results copied from elsewhere, which Snakemake has no record of."""
    shutil.rmtree(another.folder / ".snakemake")
    value("protocols", "official", "lr", to=0.05)(another)
    (another.folder / f"results/main_{OWN}.csv").unlink()
    result = another.call("--cores", "1", f"results/main_{OWN}.csv")
    refused(result, f"results/runs/{OWN}/full-paper/seed0 was made with other parameters than the current params.yaml")


def test_a_changed_estimate_of_k_trains_the_runs_that_read_it(another: Project) -> None:
    another.change(lambda content: content["estimate"].update(restarts=2))
    result = another.dry("all_tables", f"results/unknowns_{OWN}.csv", f"results/speed_{OWN}.csv")
    assert result.trainings == {(OWN, "full-paper+K=estimated", 0)}
    assert result.jobs["estimate_k"] == 1


def test_new_weights_train_again_but_a_moved_file_does_not(another: Project) -> None:
    (another.folder / "elsewhere.pth").write_bytes((another.folder / "tiny.pth").read_bytes())
    another.change(lambda content: content["backbones"]["tiny"].update(weights="elsewhere.pth"))
    assert not another.dry("all_tables").trainings
    state = torch.load(another.folder / "tiny.pth", weights_only=True)
    torch.save({name: value + 0.01 for name, value in state.items()}, another.folder / "elsewhere.pth")
    assert another.dry().trainings == TRAINED  # all_tables is the default
