"""Errors of a workflow: data, weights, values, targets, folders."""

from __future__ import annotations

import re
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from ctxgcd.benchmarks.split_file import read_split
from tests.helpers.workflow import EIGHT, OWN, Project, added, fresh, refused


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
    """Also a benchmark that is neither a target nor in `all_tables`."""
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
    refused(result, image.name, "cannot be decoded", "replace or remove")
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


def test_a_wrong_key_prints_only_the_message(tiny: Project, tmp_path: Path) -> None:
    project = tiny.copy(tmp_path / "project")
    project.change(lambda content: content["protocols"]["official"].update(epoch=3))
    result = project.call("-n", "--cores", "1", "all_tables")
    refused(result, "protocols.official", "unknown key 'epoch'", "did you mean 'epochs'?")
    assert len(result.output.strip().splitlines()) <= 3


def test_too_few_images_for_a_run_are_reported_before_packing(tiny: Project, tmp_path: Path) -> None:
    project = tiny.copy(tmp_path / "project")
    run = f"results/runs/{OWN}/full-paper/seed0/metrics.json"
    where = f"error: benchmark {OWN}, row full-paper:"
    project.change(lambda content: content["benchmarks"][OWN].update(methods={"full": {"neighbour_images": 196}}))
    refused(project.call("--cores", "1", run), f"{where} neighbour_images 196 ", "give")
    project.change(lambda content: content["benchmarks"][OWN].update(methods={}, overrides={"batch_size": 49}))
    refused(project.call("--cores", "1", run), f"{where} batch_size 49 ", "give")
    assert not (project.folder / f"results/splits/{OWN}.csv").exists()
    # Only requested runs are refused: the split is made, and the next call packs nothing for that run.
    split = project.call("--cores", "1", f"results/splits/{OWN}.csv")
    assert split.code == 0, split.output
    refused(project.call("--cores", "1", run), "batch_size 49 ")
    assert not list(project.folder.glob("work/stores/*.npz"))
    assert not list(project.folder.glob("work/features/*"))


def test_a_k_that_does_not_fit_the_split_is_refused_before_an_old_run_is_deleted(done: Project, tmp_path: Path) -> None:
    project = done.copy(tmp_path / "project")
    split = read_split(project.folder / f"results/splits/{OWN}.csv")
    known, unlabelled = split.class_id[split.role == "labelled"].nunique(), int((split.role == "unlabelled").sum())
    made = project.folder / f"results/runs/{OWN}/full-paper/seed0/final.pt"
    run = str(made.with_name("metrics.json").relative_to(project.folder))
    where = f"error: benchmark {OWN}, row"
    project.change(lambda content: content["benchmarks"][OWN].update(K=unlabelled + 1))
    refused(project.call("--cores", "1", run), f"{where} full-paper: K is {unlabelled + 1}, which is too large for ")
    assert made.is_file()
    equal = run.replace("full-paper", f"unoplus+K={known}+warmup_epochs=1")
    refused(project.call("-n", equal), f"the labelled images have {known} classes and unoplus requires a New class;")


def test_a_warm_up_of_the_whole_training_is_refused_by_a_dry_run(tiny: Project, tmp_path: Path) -> None:
    project = tiny.copy(tmp_path / "project")
    project.change(lambda content: content["benchmarks"][OWN].update(methods={"full": {"T_warm": 15}}))
    refused(project.call("-n", "all_tables"), f"benchmark {OWN}, row full-paper: ", "epoch 15 of 3; decrease T_warm")


@pytest.mark.parametrize(
    ("called_before", "words"),
    [
        (False, ("-n", "all_tables")),
        (True, ("-n", "all_tables")),
        (False, ("--cores", "1", "demo")),
        (True, ("plan", "demo")),
        (True, ("--unlock",)),
    ],
)
def test_a_checkout_that_is_not_writable_prints_only_the_message(
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
    assert len(result.output.strip().splitlines()) <= 3  # the message, and two lines of Snakemake


def test_damaged_declarations_are_refused_before_anything_is_planned(tiny: Project, tmp_path: Path) -> None:
    project = tiny.copy(tmp_path / "project")
    added("ctxgcd/pipeline/equal_code.csv", line="<<<<<<< HEAD")(project)
    refused(project.call("-n", "all_tables"), "equal_code.csv line 2 is '<<<<<<< HEAD'")
