"""Runs with an adapter, from images to predictions: each method, resumed, with fresh views, with two processes."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import timm
import torch
import yaml
from PIL import Image
from torch import Tensor

from ctxgcd.config import parse
from ctxgcd.images.pack import pack
from ctxgcd.methods.build import method_of
from ctxgcd.methods.simgcd import SimGCD
from ctxgcd.methods.step import Look, Plan
from ctxgcd.models import weights
from ctxgcd.models.backbone import cut
from ctxgcd.models.features import extract_test_view, extract_view_bank
from ctxgcd.models.network import Network
from ctxgcd.pipeline.resolve import resolve
from ctxgcd.training import checkpoint, train
from ctxgcd.training.load import load_backbone, open_cropper
from tests.helpers.compared import COMPARED, marked

torch.set_num_threads(1)

ROOT = next(folder for folder in Path(__file__).parents if (folder / "params.yaml").is_file())
MODEL, DIM, SIDE, CLASSES, IMAGES, TEST, BANK = "test_resnet", 96, 32, 4, 48, 8, 2  # a model that cannot be cut
CPU = torch.device("cpu")
ABOUT = {"identity": "0123456789abcdef", "split_sha256": "a", "code": "b"}
SHORT = "+batch_size=16+lr=0.05+tail_lr_factor=1.0+teacher_warmup_epochs=2"
LONG = f"simgcd{SHORT}+epochs=5"
ROWS = {
    "simgcd": f"simgcd{SHORT}+epochs=3",
    "full": f"full-paper{SHORT}+epochs=3+T_warm=1+k=4+neighbour_images=12",
    "gcd": "gcd+batch_size=16+lr=0.05+epochs=3+semi_kmeans_restarts=2",
    "rsplus": "rsplus+batch_size=16+lr=0.05+epochs=3",
    "unoplus": "unoplus+batch_size=16+lr=0.05+epochs=3+projector_width=32+projection_dim=16",
    "orca": "orca+batch_size=16+lr=0.05+epochs=3",
    "dccl": "dccl+batch_size=16+lr=0.05+epochs=3+min_similarity=0.9+head_dim=64+semi_kmeans_restarts=2",
    "xcon": "xcon+batch_size=16+lr=0.05+epochs=3+experts=3+expert_batch=4+head_dim=64+semi_kmeans_restarts=2",
}


@dataclass(frozen=True)
class Place:
    """Cached files of images of four classes; all views of an image are equal, so cached and fresh views agree."""

    folder: Path

    @property
    def split(self) -> pd.DataFrame:
        ids = np.arange(IMAGES + TEST)
        classes = ids % CLASSES
        role = np.where(ids >= IMAGES, "test", np.where((classes < 2) & (ids % 8 < 4), "labelled", "unlabelled"))
        part = np.where(ids < IMAGES, "train", "test")
        return pd.DataFrame({"id": ids, "class_id": classes, "role": role, "part": part})

    def files(self, p: dict[str, Any]) -> dict[str, Path]:
        weight = {"weights": self.folder / "weights.pt"}
        if not p.get("view_bank"):
            return weight | {"store": self.folder / "images.npz"}
        return weight | {name: self.folder / f"{name}-{p['precision']}.npy" for name in ("test_view", "view_bank")}

    def run(self, to: Path, p: dict[str, Any], method: Any = None) -> Path:
        """Train a run with these parameters; return the folder of its results."""
        files = self.files(p)
        train.run(p, method=method or method_of(p), split=self.split, files=files, state=to, device=CPU, about=ABOUT)
        return to / "finished"


def parameters(row: str, **changes: Any) -> dict[str, Any]:
    """Return the parameters of a run, from params.yaml with the model and images of these tests."""
    content = yaml.safe_load((ROOT / "params.yaml").read_text(encoding="utf-8"))
    content["protocols"]["fashion"] |= {"tail": "adapter", "view_bank": BANK, "resize": SIDE, "crop": SIDE}
    content["backbones"]["efficientnet_lite0"]["model"] = MODEL
    return resolve(parse(content), "fashion", row, 0) | {"K": CLASSES, "K_source": "given"} | changes


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Place:
    folder = tmp_path_factory.mktemp("adapter")
    torch.manual_seed(0)
    torch.save(timm.create_model(MODEL, num_classes=0).state_dict(), folder / "backbone.pth")
    weights.prepare(MODEL, str(folder / "backbone.pth"), SIDE, folder / "weights.pt")
    draw = np.random.RandomState(0)
    (folder / "images").mkdir()
    kinds = draw.randint(0, 255, (CLASSES, SIDE, SIDE // 2, 3))
    paths = []
    for number in range(IMAGES + TEST):
        half = (kinds[number % CLASSES] + draw.randint(-40, 40, (SIDE, SIDE // 2, 3))).clip(0, 255).astype(np.uint8)
        paths.append(f"images/{number:02d}.png")
        Image.fromarray(np.concatenate([half, half[:, ::-1]], axis=1)).save(
            folder / paths[-1]
        )  # a flip changes nothing
    pack("folder", folder, paths, SIDE, folder / "images.npz", 1)
    p = parameters(ROWS["simgcd"])
    cropper = open_cropper(p, folder / "images.npz", CPU)
    for precision in ("float32", "bf16"):
        backbone = load_backbone(p, lambda net: cut(net, 0), precision, folder / "weights.pt", CPU)
        extract_test_view(backbone, cropper, precision, folder / f"test_view-{precision}.npy")
        extract_view_bank(backbone, cropper, IMAGES, BANK, 0, precision, folder / f"view_bank-{precision}.npy")
    return Place(folder)


def network_of(made: Path) -> dict[str, Tensor]:
    found: dict[str, Tensor] = checkpoint.load(made / "final.pt", "ctxgcd-model")["network"]
    return found


def equal(one: Path, other: Path) -> bool:
    first, second = network_of(one), network_of(other)
    same = all(torch.equal(first[name], second[name]) for name in first) and first.keys() == second.keys()
    return same and all(
        (one / name).read_bytes() == (other / name).read_bytes() for name in ("history.csv", "assignments.csv")
    )


@pytest.mark.parametrize("method", marked(ROWS))
def test_each_method_trains_an_adapter_after_the_frozen_backbone(tmp_path: Path, place: Place, method: str) -> None:
    made = place.run(tmp_path, parameters(ROWS[method]))
    network = network_of(made)
    assert {name for name in network if name.startswith("tail.")} == {"tail.weight", "tail.bias"}
    assert network["tail.weight"].shape == (DIM, DIM)
    assert network["tail.weight"].abs().max() > 0
    record = json.loads((made / "run.json").read_text(encoding="utf-8"))
    assert record["trainable"]["tail.weight"] == [DIM, DIM]
    assert "tail_blocks" not in record["parameters"]
    assert len(pd.read_csv(made / "assignments.csv")) == int((place.split.role != "labelled").sum())
    sizes = next(iter(record["shares"][0]["terms"].values()))  # of a term that trains the heads too
    assert 0 < sizes["tail_gradient"] < sizes["gradient"]
    features = np.load(made / "embeddings.npz")["features"].astype(np.float32)
    kept = np.load(place.folder / "test_view-float32.npy")[(place.split.role == "unlabelled").to_numpy()]
    weight, bias = network["tail.weight"].numpy(), network["tail.bias"].numpy()
    np.testing.assert_allclose(features, kept + kept @ weight.T + bias, rtol=2e-3, atol=2e-3)


class Interrupted(SimGCD):
    def before_epoch(self, network: Network, look: Look) -> Plan:
        if look.epoch == 3:
            raise KeyboardInterrupt
        return super().before_epoch(network, look)


@pytest.mark.parametrize("bank", [BANK, 0])
def test_a_resumed_run_has_the_bits_of_an_uninterrupted_one(tmp_path: Path, place: Place, bank: int) -> None:
    p = parameters(f"{LONG}+view_bank={bank}")
    whole = place.run(tmp_path / "whole", p)
    with pytest.raises(KeyboardInterrupt):
        place.run(tmp_path / "resumed", p, Interrupted(method_of(p).p))
    resumed = place.run(tmp_path / "resumed", p)
    assert equal(whole, resumed)
    assert network_of(whole)["tail.weight"].abs().max() > 0


@pytest.mark.parametrize("row", [LONG, *marked(ROWS[name] for name in ROWS if name in COMPARED)])
def test_cached_views_train_as_fresh_ones(tmp_path: Path, place: Place, row: str) -> None:
    kept, fresh = (place.run(tmp_path / str(bank), parameters(f"{row}+view_bank={bank}")) for bank in (BANK, 0))
    agree(kept, fresh)


def agree(one: Path, other: Path) -> None:
    """Check that two trainings are equal up to the rounding of products of other batch sizes."""
    first, second = (pd.read_csv(made / "history.csv") for made in (one, other))
    np.testing.assert_allclose(first.to_numpy(), second.to_numpy(), rtol=1e-3, atol=1e-4)
    for name, value in network_of(one).items():
        torch.testing.assert_close(value, network_of(other)[name], rtol=1e-3, atol=1e-4)


def test_bf16_trains_nearly_as_float32(tmp_path: Path, place: Place) -> None:
    exact, half = (place.run(tmp_path / name, parameters(f"{LONG}+precision={name}")) for name in ("float32", "bf16"))
    losses = [pd.read_csv(made / "history.csv")["loss"].to_numpy() for made in (exact, half)]
    np.testing.assert_allclose(*losses, rtol=0.02)
    assert network_of(half)["tail.weight"].dtype == torch.float32
