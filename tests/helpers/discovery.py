"""A folder of images of four classes with some labels, and with odd files as users have them."""

from __future__ import annotations

import importlib.util
import shutil
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
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

from ctxgcd import api
from ctxgcd.discover import export, presets
from tests.helpers.layouts import Painter

MODEL, SIZE = "test_efficientnet", 32  # a hundredth of the smallest real one
ODD = 'rose, "wild" <b>&\nred'  # a class's name
PER_CLASS, LABELLED = 12, 5
STEPS = 80  # of a training; replaces the value of the preset
KNOWN = ("iris", ODD)
HEAD = "action,image,class,target\n"  # of corrections.csv

with_onnx = pytest.mark.skipif(
    any(importlib.util.find_spec(name) is None for name in export.NEEDED),
    reason="the extra `export` (onnx, onnxruntime, onnxscript) is not installed",
)


@dataclass(frozen=True)
class Place:
    """A folder of images of four classes, labels of some of the first two, and how to train on them."""

    root: Path
    truth: dict[str, int]

    @property
    def options(self) -> dict[str, Any]:
        return {"backbone": MODEL, "weights": self.root / "backbone.pth", "size": SIZE}

    def discover(self, out: str, **changes: Any) -> dict[str, Any]:
        given = {"folder": self.root / "photos", "labels": self.root / "labels.csv", "classes": 4} | self.options
        with short_trainings():
            return api.discover(out=self.root / out, **(given | changes))

    def copied(self, out: Path, name: str) -> Path:
        """Copy results next to a folder of results, so that they still know where the images are."""
        return Path(shutil.copytree(out, out.with_name(name)))

    def again(self, out: Path, **changes: Any) -> dict[str, Any]:
        """Continue a discovery with the labels and options of its results."""
        return self.discover(str(out), labels=None, classes="auto", backbone=None, weights=None, size=None, **changes)

    def labels(self, text: str, name: str = "other.csv") -> Path:
        (self.root / name).write_text(text, encoding="utf-8")
        return self.root / name


@contextmanager
def short_trainings(
    backbones: Mapping[str, dict[str, Any]] | None = None, protocol: Mapping[str, Any] | None = None
) -> Iterator[None]:
    """Read presets whose trainings are short, with further backbones, and other values of the protocol of `quick`."""
    content = yaml.safe_load(presets.FILE.read_text(encoding="utf-8"))
    content["presets"]["quick"]["steps"] = STEPS
    content["presets"]["quick"]["protocol"] |= protocol or {}
    content["backbones"] |= backbones or {}
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patched:
        file = Path(folder) / presets.FILE.name
        file.write_text(yaml.safe_dump(content), encoding="utf-8")
        patched.setattr(presets, "FILE", file)
        yield


def command(*words: str) -> list[str]:
    """Return a command of ctxgcd for another process, with short trainings."""
    code = (
        "from ctxgcd.cli.command import main; from tests.helpers.discovery import short_trainings as short\n"
        "with short(): main()"
    )
    return [sys.executable, "-c", code, *words]


def save_backbone(model: str, file: Path) -> None:
    """Save random weights whose batch norms fit the images, so that the features differ."""
    torch.manual_seed(0)
    net, painter = timm.create_model(model, num_classes=0), Painter(9)
    images = np.stack([painter.pixels(number % 4, SIZE, SIZE) for number in range(64)])
    with torch.no_grad():
        for _ in range(50):
            net.train()((torch.from_numpy(images).permute(0, 3, 1, 2) / 255 - 0.5) / 0.25)
    torch.save(net.state_dict(), file)


def make_place(root: Path) -> Place:
    save_backbone(MODEL, root / "backbone.pth")
    painter, truth, lines = Painter(0), {}, ["\ufeffclass;path"]  # as a spreadsheet saves it
    for number in range(4 * PER_CLASS):
        kind = number % 4
        path = (
            "a ünïcode \u65e5\u672c/" if number % 3 else "deep/er/"
        ) + f"{number:03d}{'.PNG' if number % 2 else '.jpg'}"
        painter.save(root / "photos" / path, kind, 36, 50)
        truth[path] = kind
        if kind < 2 and number < 4 * LABELLED:
            lines.append(f'"{KNOWN[kind].replace(chr(34), 2 * chr(34))}";{path}')
    lines += [lines[1], f";{path}"]  # a repeated line, and a line without a class
    (root / "labels.csv").write_text("\n".join(lines), encoding="utf-8")
    photos = root / "photos"
    (photos / "._000.jpg").write_bytes(b"junk")
    (photos / ".hidden").mkdir()
    shutil.copy(photos / path, photos / ".hidden" / "1.jpg")
    (photos / "notes.txt").write_text("no image")
    (photos / "broken.jpg").write_bytes((photos / "deep/er/000.jpg").read_bytes()[:400])
    (photos / "empty.png").write_bytes(b"")
    Image.new("RGB", (1, 1)).save(photos / ("n" * 240 + ".bmp"))
    Image.new("RGB", (20_000, 40)).save(photos / "wide.png")
    (photos / "link.jpg").symlink_to("deep/er/000.jpg")
    (photos / "loop").symlink_to(".")
    return Place(root, truth)


def table(file: Path) -> pd.DataFrame:
    return pd.read_csv(file, keep_default_na=False)


def predictions(out: Path) -> pd.DataFrame:
    return table(out / "predictions.csv").set_index("path")


def images(out: Path, name: str) -> list[str]:
    rows = predictions(out)
    return list(rows.index[rows["name"] == name])


def edited(out: Path, names: dict[str, str], to: Path | None = None) -> Path:
    """Write predictions.csv with other names of some images, as a spreadsheet does."""
    rows = table(out / "predictions.csv")
    rows["name"] = [names.get(path, name) for path, name in zip(rows["path"], rows["name"], strict=True)]
    rows.to_csv(to or out / "predictions.csv", index=False, sep=";")
    return to or out / "predictions.csv"
