"""Packed images of a tiny benchmark with a tiny ViT and new views, and the runs on them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
import yaml
from PIL import Image

from ctxgcd.config import parse
from ctxgcd.images.pack import pack
from ctxgcd.models import weights
from ctxgcd.pipeline import code
from ctxgcd.pipeline.resolve import resolve
from ctxgcd.training import checkpoint, shared
from ctxgcd.training.one_run import OneRun
from tests.helpers.images import paint, write
from tests.helpers.models import VIT, randomised
from tests.helpers.places import ROOT

SIDE, CROP, CLASSES, IMAGES, TEST, BATCH, EPOCHS = 40, 32, 4, 32, 8, 8, 4
READER, HASH = "sheet", "a"  # the reader, and the hash of the split
CPU = torch.device("cpu")
FULL = "full-paper+k=4+neighbour_images=12+T_warm=1"
BYTES = ("history.csv", "assignments.csv", "params.yaml")


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
        np.save(folder / "features.npy", np.random.RandomState(0).randn(len(ids), 8).astype("float32"))
        names = [f"c{number}" for number in classes]
        own = {"id": ids, "path": names, "class_id": classes, "class_name": names, "role": role, "part": part}
        own |= {"old": (classes < 2).astype(int)}
        self.split = pd.DataFrame(own)
        self.split.to_csv(folder / "split.csv", index=False)
        (folder / "hash").write_text(HASH)

    def run(self, row: str, work: Path) -> OneRun:
        p = {"K": CLASSES, **resolve(self.params, "fashion", row, 0)}
        p |= {} if "+K=" in row else {"K": CLASSES, "K_source": "given"}
        own = {"weights": "weights.pt", "store": "images.npz"} if row != "kmeans" else {"test_view": "features.npy"}
        files = {name: self.folder / file for name, file in own.items()}
        return OneRun(p, HASH, code.run(READER, p["method"]), files, work)

    def given(self, one: OneRun) -> dict[str, Any]:
        """Return what a job of Snakemake is given of a run."""
        files = {name: str(file) for name, file in one.files.items()}
        return {"parameters": one.parameters, "code": one.code.hash, "files": files}

    def options(self, work: Path) -> list[str]:
        """Return the further options of a job that trains."""
        own = {"split": self.folder / "split.csv", "split-hash": self.folder / "hash", "reader": READER, "work": work}
        return [word for name, value in own.items() for word in (f"--{name}", str(value))]

    def together(self, rows: list[str], work: Path) -> list[str]:
        return shared.train_together([self.run(row, work) for row in rows], self.split, CPU)

    def made(self, row: str, work: Path) -> Path | None:
        found = self.run(row, work).finished()
        return found and found / "finished"


def network_of(made: Path | None) -> dict[str, torch.Tensor]:
    assert made
    state: dict[str, torch.Tensor] = checkpoint.load(made / "final.pt", "ctxgcd-model")["network"]
    return state


def equal(one: Path | None, other: Path | None) -> bool:
    assert one
    assert other
    first, second = map(network_of, (one, other))
    same = first.keys() == second.keys() and all(torch.equal(first[name], second[name]) for name in first)
    return same and all((one / name).read_bytes() == (other / name).read_bytes() for name in BYTES)
