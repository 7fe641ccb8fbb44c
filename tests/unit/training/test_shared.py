"""Rows trained together, with a tiny ViT and new views: equal to single trainings, whatever happens to other rows."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
import yaml
from PIL import Image

from ctxgcd.config import parse
from ctxgcd.images.pack import pack
from ctxgcd.models import weights
from ctxgcd.models.backbone import VitTrunk
from ctxgcd.pipeline import code
from ctxgcd.pipeline.possible import missing_package
from ctxgcd.pipeline.resolve import resolve
from ctxgcd.training import checkpoint, shared, views
from ctxgcd.training.one_run import OneRun
from ctxgcd.training.processes import ALONE
from ctxgcd.training.row import Row
from tests.helpers.images import paint, write
from tests.helpers.models import VIT, randomised
from tests.helpers.places import ROOT

torch.set_num_threads(1)

SIDE, CROP, CLASSES, IMAGES, TEST, BATCH, EPOCHS = 40, 32, 4, 32, 8, 8, 4
CPU = torch.device("cpu")
FULL = "full-paper+k=4+neighbour_images=12+T_warm=1"
ROWS = [
    "simgcd",
    "simgcd+epochs=2",
    FULL,
    f"{FULL}-without-n",
    "full-paper+k=3+neighbour_images=9+T_warm=2",
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


class Place:
    """Packed images of a tiny benchmark, and the runs on them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        # Few large patches: images that are as different as can be.
        images = [paint(2, 3, seed=i).resize((SIDE + 8, SIDE), Image.Resampling.NEAREST) for i in range(IMAGES + TEST)]
        names = write(folder / "images", images)
        pack("folder", folder / "images", names, SIDE, folder / "images.npz", 1)
        torch.save(randomised(weights.build(VIT, CROP)).state_dict(), folder / "backbone.pth")
        weights.prepare(VIT, str(folder / "backbone.pth"), CROP, folder / "weights.pt")
        content = yaml.safe_load((ROOT / "params.yaml").read_text(encoding="utf-8"))
        own = {"tail": "blocks", "view_bank": 0, "resize": SIDE, "crop": CROP, "batch_size": BATCH, "lr": 0.005}
        content["protocols"]["fashion"] |= own | {"epochs": EPOCHS}
        content["backbones"]["efficientnet_lite0"]["model"] = VIT
        small = {"projector_width": 16, "projection_dim": 8}
        content["benchmarks"]["fashion"]["methods"]["simgcd"] |= {"teacher_warmup_epochs": 1, **small}
        content["benchmarks"]["fashion"]["methods"]["gcd"] |= small
        self.params = parse(content)
        ids = np.arange(IMAGES + TEST)
        classes, part = ids % CLASSES, np.where(ids < IMAGES, "train", "test")
        role = np.where(part == "test", "test", np.where((classes < 2) & (ids % 8 < 4), "labelled", "unlabelled"))
        self.split = pd.DataFrame({"id": ids, "class_id": classes, "role": role, "part": part})

    def run(self, row: str, work: Path) -> OneRun:
        p = {"K": CLASSES, **resolve(self.params, "fashion", row, 0)}
        p |= {} if "+K=" in row else {"K": CLASSES, "K_source": "given"}
        files = {"weights": self.folder / "weights.pt", "store": self.folder / "images.npz"}
        return OneRun(p, "a", code.run("sheet", p["method"]), files, work)

    def together(self, rows: list[str], work: Path) -> list[str]:
        return shared.train_together([self.run(row, work) for row in rows], self.split, CPU)

    def made(self, row: str, work: Path) -> Path | None:
        found = self.run(row, work).finished()
        return found and found / "finished"


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


def equal(one: Path | None, other: Path | None) -> bool:
    assert one
    assert other
    first, second = (checkpoint.load(made / "final.pt", "ctxgcd-model")["network"] for made in (one, other))
    same = first.keys() == second.keys() and all(torch.equal(first[name], second[name]) for name in first)
    return same and all((one / name).read_bytes() == (other / name).read_bytes() for name in BYTES)


BYTES = ("history.csv", "assignments.csv", "params.yaml")


def test_rows_trained_together_equal_rows_trained_alone(
    tmp_path: Path, place: Place, alone: Path, passed: list[int], capsys: pytest.CaptureFixture[str]
) -> None:
    failed = place.together([*ROWS, "simgcd+lr=1e30"], tmp_path)
    assert failed == ["simgcd+lr=1e30"]
    assert "simgcd+lr=1e30 seed 0: the loss is nan in epoch 0" in capsys.readouterr().err
    for row in ROWS:
        assert equal(place.made(row, alone), place.made(row, tmp_path)), row
    record = json.loads(((place.made(FULL, tmp_path) or tmp_path) / "run.json").read_text(encoding="utf-8"))
    assert record["together"] == len(ROWS) + 1
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
    monkeypatch.setattr(shared, "OF_FREE", 1e-9)
    rows = ["simgcd", "orca", FULL]
    assert place.together(rows, tmp_path) == []
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
