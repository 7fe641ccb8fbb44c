"""Rows trained together, with a tiny ViT and new views: equal to single trainings, whatever happens to other rows."""

from __future__ import annotations

import json
import re
import runpy
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
import torch

from ctxgcd.models.backbone import VitTrunk
from ctxgcd.pipeline.possible import missing_package
from ctxgcd.training import checkpoint, shared, views
from ctxgcd.training.processes import ALONE
from ctxgcd.training.row import Row
from tests.helpers.forked import programs
from tests.helpers.place import BATCH, CPU, EPOCHS, FULL, IMAGES, Place, equal, network_of
from tests.helpers.places import ENVIRONMENT, ROOT

pytestmark = pytest.mark.slow  # its fixture trains all rows alone
torch.set_num_threads(1)

LATER = "full-paper+k=3+neighbour_images=9+T_warm=2"
ROWS = [
    "simgcd",
    "simgcd+epochs=2",
    FULL,
    f"{FULL}-without-n",
    LATER,
    "full-paper+k=4+neighbour_images=12+T_warm=0+K=6",
    "full-mended+k=4+neighbour_images=12+T_warm=1+loss_group=4+reciprocal=dataset",
    "full-released+k=4+neighbour_images=12+T_warm=1",
    "gcd+head_dim=32+semi_kmeans_restarts=2",
    "orca",
    "rsplus+first_drop=2+second_drop=3+ramp_epochs=2",
    "unoplus+warmup_epochs=1+projector_width=16+projection_dim=8",
    *["dccl+warmup_epochs=1+ramp_epochs=1+min_similarity=0.9+head_dim=32+semi_kmeans_restarts=2"]
    * (not missing_package("dccl")),
]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Place:
    return Place(tmp_path_factory.mktemp("images"))


@pytest.fixture(scope="module")
def alone(place: Place, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a run cache with each row, trained alone."""
    work = tmp_path_factory.mktemp("alone")
    for row in ROWS:
        place.run(row, work).train(place.split, CPU, ALONE)
    return work


def record(made: Path | None) -> dict[str, Any]:
    assert made
    content: dict[str, Any] = json.loads((made / "run.json").read_text(encoding="utf-8"))
    return content


@pytest.fixture
def passed() -> Iterator[list[int]]:
    """Yield the numbers of images of the trunk's forward passes."""
    found: list[int] = []

    def count(module: Any, given: Any, out: Any) -> None:
        if isinstance(module, VitTrunk):
            found.append(len(given[0]))

    hook = torch.nn.modules.module.register_module_forward_hook(count)
    yield found
    hook.remove()


def test_rows_trained_together_equal_rows_trained_alone(
    tmp_path: Path, place: Place, alone: Path, passed: list[int], capsys: pytest.CaptureFixture[str]
) -> None:
    failed = place.together([*ROWS, "simgcd+lr=1e30"], tmp_path)
    assert failed == ["simgcd+lr=1e30"]
    assert "simgcd+lr=1e30 seed 0: the loss is nan in epoch 0" in capsys.readouterr().err
    for row in ROWS:
        assert equal(place.made(row, alone), place.made(row, tmp_path)), row
    assert record(place.made(FULL, tmp_path))["together"] == len(ROWS) + 1
    if "infomap" in record(place.made(ROWS[-1], tmp_path))["environment"]:
        assert "infomap" not in record(place.made(FULL, tmp_path))["environment"]
    assert len({(place.made(row, alone) or alone).joinpath("assignments.csv").read_bytes() for row in ROWS}) > 5
    # At least the sampled views of each epoch, which all rows share, and at most the neighbours of all rows.
    sampled = EPOCHS * 2 * IMAGES
    around = 2 * (IMAGES // BATCH) * (12 * (3 + 3 + 4 + 2 * 3 + 3) + 9 * 2)
    lists = (EPOCHS - 1) * IMAGES
    assert sampled < sum(passed) < sampled + around + lists
    assert set(passed) == {views.MOST_ON_CPU}


def test_a_row_that_another_process_trains_is_left_out(
    tmp_path: Path, place: Place, alone: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with checkpoint.owned(place.run("orca", tmp_path).state):
        assert place.together(["simgcd", "orca", FULL], tmp_path) == []
    assert re.search(r"^skipped orca: process [0-9]+ on .* trains the run in ", capsys.readouterr().out, re.M)
    assert place.made("orca", tmp_path) is None
    assert all(equal(place.made(row, alone), place.made(row, tmp_path)) for row in ("simgcd", FULL))


def test_a_row_that_is_behind_catches_up(
    tmp_path: Path, place: Place, alone: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """An interruption loses at most the epoch that runs."""
    save, rows = Row.save, ["simgcd", FULL]

    def interrupted(row: Row) -> None:
        if len(row.history) == 3:
            raise KeyboardInterrupt
        save(row)

    monkeypatch.setattr(Row, "save", interrupted)
    with pytest.raises(KeyboardInterrupt):
        place.together(["simgcd"], tmp_path)
    monkeypatch.setattr(Row, "save", save)
    assert place.together(rows, tmp_path) == []
    assert "simgcd seed 0  resumed after epoch 2" in capsys.readouterr().out
    assert all(equal(place.made(row, alone), place.made(row, tmp_path)) for row in rows)


def test_a_row_records_that_others_took_part_in_its_training(
    tmp_path: Path, place: Place, alone: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is resumed alone."""
    begin = Row.begin

    def interrupted(row: Row, look: Any) -> Any:
        if look.epoch == 2:
            raise KeyboardInterrupt
        return begin(row, look)

    monkeypatch.setattr(Row, "begin", interrupted)
    with pytest.raises(KeyboardInterrupt):
        place.together(["simgcd", FULL], tmp_path)
    monkeypatch.setattr(Row, "begin", begin)
    place.run(FULL, tmp_path).train(place.split, CPU, ALONE)
    assert equal(place.made(FULL, alone), place.made(FULL, tmp_path))
    assert record(place.made(FULL, tmp_path))["together"] == 2
    assert "together" not in record(place.made(FULL, alone))


def test_test_views_that_are_not_kept_are_computed_once_an_epoch(
    tmp_path: Path, place: Place, alone: Path, monkeypatch: pytest.MonkeyPatch, passed: list[int]
) -> None:
    """Neighbour lists and the margin of ORCA need the features of each row before each epoch."""
    monkeypatch.setattr(views, "IN_MEMORY", 0)
    monkeypatch.setattr(views, "ON_DISK", 0)
    rows, computed = [FULL, f"{FULL}+delta=0.9"], []  # delta adds a constant, so their lists are equal
    for part in ([FULL], rows):
        before = len(passed)
        assert place.together(part, tmp_path / str(len(part))) == []
        computed.append(views.MOST_ON_CPU * len(passed[before:]))
    assert equal(place.made(FULL, alone), place.made(FULL, tmp_path / "2"))
    # The second row adds its predictions, of 24 images of D^u, 8 test images and the sample of D^u, and two images from
    # which its memory is estimated, in passes of 16 images.
    assert computed[1] - computed[0] == 32 + 16 + 32 + 2 * 16


def test_rows_that_do_not_fit_train_in_a_second_part(
    tmp_path: Path, place: Place, alone: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The lock of a row is released when its training has ended."""
    rows, begin, available = ["simgcd", "orca", FULL], Row.begin, set()

    def with_locks(row: Row, look: Any) -> Any:
        for other in rows:
            if place.made(other, tmp_path):
                with checkpoint.owned(place.run(other, tmp_path).state, patience=0):
                    available.add(other)
        return begin(row, look)

    monkeypatch.setattr(Row, "begin", with_locks)
    monkeypatch.setattr(shared, "OF_FREE", 1e-9)
    start = time.monotonic()
    assert place.together(rows, tmp_path) == []
    seconds = [record(place.made(row, tmp_path))["seconds"] for row in rows]
    assert sum(seconds) < time.monotonic() - start + 0.01 * len(rows)  # rounded; not those of earlier parts
    assert len(available) == 2
    assert "3 rows train in 3 parts (1, 1, 1 rows), because" in capsys.readouterr().out
    assert all(equal(place.made(row, alone), place.made(row, tmp_path)) for row in rows)


def test_methods_with_their_own_trunk_or_batch_train_alone(
    tmp_path: Path, place: Place, capsys: pytest.CaptureFixture[str]
) -> None:
    """XCon has another batch size here."""
    rows = [
        "simgcd+epochs=2",
        "xcon+batch_size=16+epochs=2+experts=2+expert_batch=4+head_dim=32",
        "gcd+epochs=2+head_dim=32",
    ]
    assert place.together(rows, tmp_path) == []
    records = [json.loads(((place.made(row, tmp_path) or tmp_path) / "run.json").read_text()) for row in rows]
    assert [record.get("together") for record in records] == [2, None, 2]


# The job's script with two processes: the first one has little memory, the other one no space for test views. It also
# trains rows alone, and interrupts a row before the others begin.
TRAINED = (FULL, LATER, "orca")  # of which at least two that look at all test views are in the first part
TWO_PROCESSES = f"""
from dataclasses import replace

from ctxgcd.training import shared, views
from ctxgcd.training.row import Row
from ctxgcd.utils.reporting import reported
from workflow.scripts.train_together import main

together, begin, memory_of = shared.train_together, Row.begin, shared.memory_of


def interrupted(row, look):
    if look.epoch == 2:
        raise KeyboardInterrupt
    return begin(row, look)


def with_single_trainings(runs, split, device, processes):
    if not processes.first:
        views.IN_MEMORY = views.ON_DISK = 0
    shared.memory_of = lambda row, inputs: 2 + 0 * memory_of(row, inputs)
    shared.free_memory = lambda device: 8 if processes.first else 100
    for one in runs:
        if one.parameters["row"] in {TRAINED}:
            alone = replace(one, work=one.work.with_name("alone"))
            alone.state.mkdir(parents=True, exist_ok=True)
            alone.train(split, device, processes)
    Row.begin = interrupted
    try:
        together([one for one in runs if one.parameters["row"] == "orca"], split, device, processes)
    except KeyboardInterrupt:
        Row.begin = begin
    return together(runs, split, device, processes)


shared.train_together = with_single_trainings
with reported():
    main()
"""


def test_two_processes_train_the_rows_that_the_first_one_chooses(tmp_path: Path, place: Place, alone: Path) -> None:
    """In its parts; with an interrupted row, one that diverges, one that another call trains, and a clustering."""
    (tmp_path / "script.py").write_text(TWO_PROCESSES)
    work = tmp_path / "together"
    runs = [place.run(row, work) for row in (*TRAINED, "simgcd+lr=1e30", "unoplus", "kmeans")]
    (tmp_path / "runs.json").write_text(json.dumps([place.given(one) for one in runs]))
    words = ["--runs", str(tmp_path / "runs.json"), "--devices", "2", *place.options(work)]
    with checkpoint.owned(place.run("unoplus", work).state):
        done = subprocess.run(
            [programs() / "python", str(tmp_path / "script.py"), *words],
            **{"env": ENVIRONMENT, "capture_output": True, "text": True, "timeout": 200, "check": False},
        )
    assert done.returncode == 2, done.stdout + done.stderr
    assert done.stderr.count("simgcd+lr=1e30 seed 0: the loss is nan in epoch 0") == 1
    assert done.stderr.count("error: 1 run of fashion, seed 0, failed: simgcd+lr=1e30; finished runs are kept") == 1
    assert len(re.findall("^skipped unoplus: process [0-9]+ on .* trains the run in ", done.stdout, re.M)) == 1
    assert done.stdout.count("orca seed 0  resumed after epoch 2") == 1
    assert done.stdout.count("4 rows train in 2 parts (3, 1 rows)") == 1
    assert place.made("kmeans", work)
    assert place.made("unoplus", work) is None
    for row in TRAINED:
        one = place.made(row, work)
        assert one
        assert equal(one, place.made(row, tmp_path / "alone")), row
        assert json.loads((one / "run.json").read_text(encoding="utf-8"))["processes"] == 2
        of_one_process = network_of(place.made(row, alone))
        for name, value in network_of(one).items():
            torch.testing.assert_close(value, of_one_process[name], rtol=1e-4, atol=1e-5, msg=f"{row} {name}")


def test_a_training_waits_for_the_call_that_trains_its_run_and_copies_it(
    tmp_path: Path, place: Place, alone: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    one, finished, printed = place.run("orca", tmp_path / "runs"), place.made("orca", alone), []

    def other_call() -> None:
        with checkpoint.owned(one.state):
            printed.append("")
            while "waiting for process " not in printed[-1]:
                printed.append(capsys.readouterr().out)
                time.sleep(0.01)
            shutil.copytree(finished or alone, one.state / "finished")

    given = place.given(one)
    words = ["--parameters", json.dumps(given["parameters"]), "--code", given["code"], "--out", str(tmp_path / "out")]
    monkeypatch.setattr(sys, "argv", ["train_run.py", *words, *place.options(one.work)])
    thread = Thread(target=other_call)
    thread.start()
    while not printed:
        time.sleep(0.01)
    runpy.run_path(str(ROOT / "workflow/scripts/train_run.py"))["main"]()
    thread.join()
    assert f"this run is already finished; copied from {one.state}" in capsys.readouterr().out
    assert equal(tmp_path / "out", finished)


def test_damaged_inputs_end_each_of_their_rows(
    tmp_path: Path, place: Place, capsys: pytest.CaptureFixture[str]
) -> None:
    damaged = tmp_path / "weights.pt"
    damaged.write_bytes(b"weights")
    runs = [replace(place.run(row, tmp_path), files={"weights": damaged}) for row in ("simgcd", "orca")]
    assert sorted(shared.train_together(runs, place.split, CPU)) == ["orca", "simgcd"]
    assert capsys.readouterr().err.count(f"error: weights file {damaged}") == 2
