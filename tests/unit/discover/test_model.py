"""Discoveries with an adapter after a backbone that cannot be cut, and with the first blocks of a ViT."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import timm
import torch

from ctxgcd import api
from ctxgcd.discover.model import load
from ctxgcd.discover.presets import chosen
from tests.helpers.discovery import save_backbone, short_trainings, with_onnx
from tests.helpers.layouts import Painter
from tests.helpers.models import VIT, randomised

MODEL, DIM, SIZE, IMAGES = "test_resnet", 96, 32, 48


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Images of four classes, some of two of them with a label, and the weights of a backbone."""
    folder = tmp_path_factory.mktemp("photos")
    save_backbone(MODEL, folder / "backbone.pth")
    painter = Painter(0)
    for number in range(IMAGES):
        painter.save(folder / f"photos/{number:02d}.png", number % 4, 36, 40)
    lines = [f"{number:02d}.png,{'ab'[number % 4]}" for number in range(20) if number % 4 < 2]
    (folder / "labels.csv").write_text("\n".join(["path,class", *lines]) + "\n", encoding="utf-8")
    return folder


def discover(place: Path, out: str, classes: int | None = 4) -> dict[str, Any]:
    of = {"backbone": MODEL, "weights": place / "backbone.pth", "size": SIZE}
    with short_trainings():
        return api.discover(place / "photos", place / "labels.csv", out=place / out, classes=classes, **of)


@pytest.fixture
def out(place: Path) -> Path:
    if not (place / "out").exists():
        discover(place, "out")
    return place / "out"


def test_the_values_are_those_that_are_read() -> None:
    own, blocks = (chosen(name, None, None, None).keys() for name in ("quick", "long"))
    assert "tail" in own - blocks
    assert "tail_blocks" in blocks - own


def test_predict_agrees_with_discover(place: Path, out: Path) -> None:
    made = load(out / "model")
    assert made.network.tail.weight.shape == (DIM, DIM)
    assert made.network.tail.weight.abs().max() > 0
    assert "tail_blocks" not in made.parameters
    assert made.network.centres.shape == (2, DIM)  # of the two new classes, divided by k-means
    kept = np.load(next((out / "work").glob("images-*/features-*/view_bank.npy")))
    assert kept.shape == (made.parameters["view_bank"] * IMAGES, DIM)
    of_discover = pd.read_csv(out / "predictions.csv").set_index("path")
    predicted, _ = api.predict(out / "model", place / "photos")
    common = predicted.set_index("path").loc[of_discover.index]
    assert (common["class"] == of_discover["class"]).all()
    assert np.allclose(common["score"], of_discover["score"], atol=2e-4)


def test_the_number_of_classes_is_estimated_on_the_frozen_features(place: Path) -> None:
    found = discover(place, "estimated", classes=None)
    assert found["K_source"] == "estimated"
    assert 2 <= found["K"] <= IMAGES


@pytest.mark.slow
@with_onnx
@pytest.mark.parametrize("tail", ["adapter", "blocks"])
def test_the_first_blocks_of_a_vit_are_used_in_every_command(place: Path, tmp_path: Path, tail: str) -> None:
    torch.save(randomised(timm.create_model(VIT, num_classes=0, img_size=SIZE)).state_dict(), tmp_path / "vit.pth")
    of = {"model": VIT, "weights": str(tmp_path / "vit.pth"), "sha256": "", "blocks": 2, "note": ""}
    backbones = {"short": of | {"mean": [0.5] * 3, "std": [0.5] * 3}}
    tail_of = {"tail": tail, "tail_blocks": int(tail == "blocks"), "tail_lr_factor": 1.0}
    with short_trainings(backbones, tail_of):
        api.discover(
            place / "photos", place / "labels.csv", out=tmp_path / "out", classes=4, backbone="short", size=SIZE
        )
    made = load(tmp_path / "out/model")
    assert made.parameters["blocks"] == 2
    net = made.backbone.trunk.net
    assert len(net.blocks) == 2
    shapes = {value.shape for value in made.network.tail.parameters()}
    assert (torch.Size([576, 192]) in shapes) == (tail == "blocks")
    of_discover = pd.read_csv(tmp_path / "out/predictions.csv").set_index("path")
    predicted, _ = api.predict(tmp_path / "out/model", place / "photos")
    common = predicted.set_index("path").loc[of_discover.index]
    assert (common["class"] == of_discover["class"]).all()
    assert np.allclose(common["score"], of_discover["score"], atol=2e-4)
    assert api.export(tmp_path / "out/model", tmp_path / "model.onnx")["difference"] < 1e-4


@pytest.mark.slow
@with_onnx
def test_the_exported_model_gives_what_torch_gives(out: Path, tmp_path: Path) -> None:
    assert api.export(out / "model", tmp_path / "model.onnx")["difference"] < 1e-4
