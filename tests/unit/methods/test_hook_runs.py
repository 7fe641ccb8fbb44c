"""Whole runs of methods with hooks, from split to predictions."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from torch import nn

from ctxgcd.catalogue.entries import METHODS
from ctxgcd.errors import UserError
from ctxgcd.images.pack import pack
from ctxgcd.methods.build import method_of
from ctxgcd.methods.method import Method
from ctxgcd.methods.simgcd import SimGCD
from ctxgcd.models import weights
from ctxgcd.models.backbone import Backbone, cut
from ctxgcd.pipeline import run_cache
from ctxgcd.training import checkpoint, train
from tests.helpers.compared import marked
from tests.helpers.hooks import rows_of
from tests.helpers.images import paint, write
from tests.helpers.params import values
from tests.helpers.training import (
    ABOUT,
    BANK,
    CLASSES,
    IMAGES,
    TEST,
    parameters,
)

torch.set_num_threads(1)

TRAINED = [name for name, entry in METHODS.items() if entry.trains and not entry.variants]


class StagedSimGCD(SimGCD):
    def stage(self) -> Method:
        return SimGCD(self.p | {"epochs": 1})


class OneMoreTerm(SimGCD):
    def terms(self) -> dict[str, int]:
        return {**super().terms(), "proto": 0}


class NoTailNetwork(SimGCD):
    def network(self, tail: nn.Module, dim: int, old_classes: int) -> Any:
        return nn.Linear(2, 2)


class NoDiscovery(SimGCD):
    def discover(self, *given: Any) -> Any:
        return super().discover(*given).unlabelled


class OwnCut(SimGCD):
    def cut(self, net: nn.Module) -> Backbone:
        return cut(net, 1)


def made_run(folder: Path, split: pd.DataFrame, kept: Path, **changes: Any) -> Path:
    """Train a run on a tiny ViT's view bank, from split to predictions; return its folder."""
    tiny = {"model": "vit_tiny_patch16_224", "crop": 32, "tail_blocks": 1, "view_bank": BANK, "threads": 1}
    named = {"benchmark": "mine", "row": changes.get("method", "full"), "projector_width": 16, "projection_dim": 7}
    of_row = values(changes["method"]) if changes.get("method") in TRAINED else {}
    p = of_row | parameters(**{"epochs": 2, "T_warm": 1, **tiny, **named, **changes})
    files = {name: kept / f"{name}.npy" for name in ("test_view", "view_bank")}
    files |= {"weights": kept / "weights.pt", "store": kept / "store.npz"}
    method, device = method_of(p), torch.device("cpu")
    train.run(p, method=method, split=split, files=files, state=folder, device=device, about=ABOUT)
    return folder


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Weights of a tiny ViT, random trunk outputs instead of those of images, and random images."""
    folder, draw = tmp_path_factory.mktemp("kept"), np.random.RandomState(0)
    torch.manual_seed(0)
    torch.save(weights.build("vit_tiny_patch16_224", 32).state_dict(), folder / "tiny.pth")
    weights.prepare("vit_tiny_patch16_224", str(folder / "tiny.pth"), 32, folder / "weights.pt")
    classes = np.arange(IMAGES + TEST) % CLASSES
    centres = draw.randn(CLASSES, 5, 192)
    for name, images in (("test_view", IMAGES + TEST), ("view_bank", IMAGES)):
        times = BANK if name == "view_bank" else 1
        rows = centres[np.tile(classes[:images], times)] + 0.5 * draw.randn(times * images, 5, 192)
        np.save(folder / f"{name}.npy", rows.astype(np.float32))
    names = write(folder / "images", [paint(36, 36, seed=i) for i in range(IMAGES + TEST)])
    pack("cub", folder / "images", names, 36, folder / "store.npz", 1)
    return folder


@pytest.fixture
def split() -> pd.DataFrame:
    ids = np.arange(IMAGES + TEST)
    classes = ids % CLASSES
    role = np.where(ids >= IMAGES, "test", np.where((classes < 2) & (ids % 8 < 4), "labelled", "unlabelled"))
    return pd.DataFrame({"id": ids, "class_id": classes, "role": role, "part": np.where(ids < IMAGES, "train", "test")})


@pytest.mark.slow
@pytest.mark.parametrize("method", marked([*TRAINED, "full"]))
def test_class_ids_of_unlabelled_images_change_nothing(
    tmp_path: Path, kept: Path, split: pd.DataFrame, method: str
) -> None:
    false = split.copy()
    false.loc[false.role != "labelled", "class_id"] = np.random.RandomState(1).randint(0, 999, IMAGES + TEST)[
        : int((false.role != "labelled").sum())
    ]
    more = {"head_dim": 20, "semi_kmeans_restarts": 2, "semi_kmeans_iterations": 20, "reciprocal": "dataset"}
    more |= {"view_bank": 0, "stage_epochs": 1, "epochs": 1, "memory_size": 40} if METHODS[method].whole else {}
    folders = [
        made_run(tmp_path / name, own, kept, method=method, **more) for name, own in (("true", split), ("false", false))
    ]
    for name in ("history.csv", "assignments.csv"):
        first, second = ((folder / "finished" / name).read_bytes() for folder in folders)
        assert first == second
    finals = [checkpoint.load(folder / "finished/final.pt", "ctxgcd-model")["network"] for folder in folders]
    assert all(torch.equal(finals[0][name], finals[1][name]) for name in finals[0])
    moved = split.copy()
    moved.loc[moved.role == "labelled", "class_id"] = 1 - moved.class_id[moved.role == "labelled"]
    other = made_run(tmp_path / "moved", moved, kept, method=method, **more)
    final = checkpoint.load(other / "finished/final.pt", "ctxgcd-model")["network"]
    if method not in ("gcd", "xcon", "dccl", "promptcal"):  # whose terms depend only on which labels are equal
        assert not all(torch.equal(finals[0][name], final[name]) for name in final)


def add_method(monkeypatch: pytest.MonkeyPatch, name: str, method: type[Method]) -> None:
    entry = replace(METHODS["simgcd"], cls=f"{__name__}.{method.__name__}")
    monkeypatch.setitem(METHODS, name, entry)


def test_a_finished_training_leaves_no_temporary_files(
    tmp_path: Path, kept: Path, split: pd.DataFrame, monkeypatch: pytest.MonkeyPatch
) -> None:
    add_method(monkeypatch, "staged", StagedSimGCD)
    folder = made_run(tmp_path / "state", split, kept, method="staged")
    assert [path.name for path in folder.iterdir()] == ["finished"]
    assert {path.name for path in (folder / "finished").iterdir()} == {*run_cache.FILES, run_cache.SUMS}
    assert [row["epoch"] for row in rows_of(folder / "finished/history.csv")] == ["0", "1"]


class Idle(SimGCD):
    def idle(self, history: Sequence[Mapping[str, Any]]) -> str:
        return f"nothing was learnt in {len(history)} epochs"


def test_a_run_whose_mechanism_had_no_effect_says_so(
    tmp_path: Path, kept: Path, split: pd.DataFrame, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    records = {}
    for name, method in (("plain", SimGCD), ("idle", Idle)):
        entry = replace(METHODS["simgcd"], cls=f"{method.__module__}.{method.__name__}")
        monkeypatch.setitem(METHODS, name, entry)
        made = made_run(tmp_path / name, split, kept, method=name)
        records[name] = json.loads((made / "finished/run.json").read_text(encoding="utf-8"))
    assert "idle" not in records["plain"]
    assert records["idle"]["idle"] == "nothing was learnt in 2 epochs"
    assert capsys.readouterr().out.count("warning: mine idle seed 0: nothing was learnt in 2 epochs") == 1


def test_a_method_with_its_own_cut_requires_fresh_views(
    tmp_path: Path, kept: Path, split: pd.DataFrame, monkeypatch: pytest.MonkeyPatch
) -> None:
    add_method(monkeypatch, "cut", OwnCut)
    with pytest.raises(UserError, match=r"benchmark mine, row cut: the method overrides .* set view_bank to 0"):
        made_run(tmp_path / "state", split, kept, method="cut")


@pytest.mark.parametrize(
    ("method", "sentence"),
    [
        (
            OneMoreTerm,
            r"OneMoreTerm\.terms returns the term 'proto', but `terms` of the entries in .*entries\.py has",
        ),
        (NoTailNetwork, r"NoTailNetwork\.network returns a Linear; return a TailNetwork"),
        (NoDiscovery, r"NoDiscovery\.discover returns a Tensor; return a Discovery"),
    ],
)
def test_a_run_refuses_wrong_return_values_of_hooks(
    tmp_path: Path,
    kept: Path,
    split: pd.DataFrame,
    monkeypatch: pytest.MonkeyPatch,
    method: type[Method],
    sentence: str,
) -> None:
    add_method(monkeypatch, "wrong", method)
    with pytest.raises(UserError, match=sentence):
        made_run(tmp_path / "state", split, kept, method="wrong")
    assert not (tmp_path / "state" / "finished").exists()
