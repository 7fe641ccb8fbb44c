"""Write the model of a tiny discovery in the current format: python -m tests.discover_model FOLDER.

tests/discover_model_v1 and _v2 were written by this script and packed by xz; a new format gets a new folder.
"""

from __future__ import annotations

import json
import lzma
import shutil
import sys
import tempfile
from contextlib import chdir
from dataclasses import replace
from pathlib import Path

import timm
import torch
from PIL import Image

from ctxgcd import api
from ctxgcd.discover import discovery
from ctxgcd.discover.checks import checked_request
from tests.helpers.layouts import Painter

BACKBONE, SIZE = "test_efficientnet", 32
TOLD = ["path", "class", "name", "confidence", "score", "none_of_these"]  # by `predict`, and kept


def draw(folder: Path, seed: int, images: int) -> None:
    """Write images of four kinds, in turn, as 000.png, 001.png, ..."""
    painter = Painter(seed)
    folder.mkdir()
    for number in range(images):
        Image.fromarray(painter.pixels(number % 4, 40, 44)).save(folder / f"{number:03d}.png")


def write(out: Path) -> None:
    """Write model.pt.xz, params.yaml and predictions.json of eight new images to a new folder."""
    out = out.absolute()
    with tempfile.TemporaryDirectory() as temporary, chdir(temporary):
        draw(Path("photos"), 0, 48)
        Path("labels.csv").write_text("path,class\n000.png,iris\n001.png,rose\n004.png,iris\n005.png,rose\n")
        torch.manual_seed(0)
        state = timm.create_model(BACKBONE, num_classes=0).state_dict()
        # Weights of few different values pack well.
        coarse = {name: (value * 32).round() / 32 if value.ndim > 1 else value for name, value in state.items()}
        torch.save(coarse, "backbone.pth")
        paths = {"folder": Path("photos"), "labels": Path("labels.csv"), "out": Path("out")}
        how = {"preset": "quick", "backbone": BACKBONE, "weights": "backbone.pth", "size": SIZE, "seed": 0}
        small = {"projector_width": 16, "projection_dim": 16, "steps": 60, "threads": 1}
        request = checked_request(**paths, classes=4, **how)
        discovery.discover(replace(request, values=request.values | small))
        out.mkdir()
        (out / "model.pt.xz").write_bytes(lzma.compress(Path("out/model/model.pt").read_bytes(), preset=9))
        shutil.copy("out/model/params.yaml", out)
        draw(Path("new"), 1, 8)
        table, about = api.predict("out/model", "new")
        content = {"threshold": about["threshold"], "predictions": table[TOLD].to_dict("records")}
        (out / "predictions.json").write_text(json.dumps(content, indent=1) + "\n")


if __name__ == "__main__":
    write(Path(sys.argv[1]))
