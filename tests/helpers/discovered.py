"""The report of a discovery without a training: painted images, and classes and confidences that are given."""

from __future__ import annotations

import lzma
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from ctxgcd.discover import model as models
from ctxgcd.discover.report import Discovered, write_report
from ctxgcd.images.pack import pack
from tests.helpers.layouts import Painter
from tests.helpers.places import ROOT

FACTS = {"tried": None, "check": {"said": []}, "notes": [], "adapted": [], "labelled": 0, "K_source": "given"}


def facts_of(classes: np.ndarray, names: Sequence[str], known: int) -> dict[str, Any]:
    """Return what api.discover returns for these classes (int [n]) of unlabelled images."""
    sizes = np.bincount(classes, minlength=len(names))
    return FACTS | {
        "images": len(classes),
        "known": known,
        "K": len(names),
        "found": int((sizes > 0).sum()),
        "few": int((sizes[known:] < 3).sum()),
    }


def labelled_rows(given: Mapping[str, int], ids: np.ndarray) -> pd.DataFrame:
    """Return the table of labelled images (path -> class) of a report."""
    return pd.DataFrame({"path": list(given), "class": list(given.values()), "id": ids})


def write_discovered(
    root: Path,
    images: Mapping[str, int],
    names: Sequence[str],
    known: int,
    called: Mapping[str, str] | None = None,
    labelled: Mapping[str, int] | None = None,
    by_hand: Collection[str] = (),
) -> Path:
    """Write images (path -> class) to root/photos and their report to root/birds; return the report.

    The later images of a class are less typical, and the images are the less certain the later they are.
    called: number -> name of the new classes that were given one; labelled: further images, which have a label;
    by_hand: those of `images` that were moved or confirmed.
    """
    painter, paths, classes = Painter(0), list(images), np.array(list(images.values()))
    given = labelled or {}
    for path, c in {**images, **given}.items():
        painter.save(root / "photos" / path, c, 100, 140)
    store = root / "birds/work/images.npz"
    pack("folder", root / "photos", [*paths, *given], 100, store, 1)
    (root / "model").mkdir()
    kept = ROOT / "tests/discover_model_v2/model.pt.xz"
    (root / "model" / models.MODEL).write_bytes(lzma.decompress(kept.read_bytes()))
    numbers = [name if c >= known else "" for c, name in enumerate(names)]
    names = [(called or {}).get(name, name) for name in names]
    model = replace(models.load(root / "model"), names=names, known=known, numbers=numbers, into=())
    falling = np.linspace(0.9, 0.4, len(paths))
    table = pd.DataFrame(
        {
            "path": paths,
            "class": classes,
            "name": [names[c] for c in classes],
            "confidence": falling,
            "nearest": paths[0],
            "score": falling,
            "margin": falling / 2,
            "second": [names[(c + 1) % len(names)] for c in classes],
            "by_hand": [path in by_hand for path in paths],
        }
    )
    features = (
        np.eye(len(names), dtype=np.float32)[classes] + np.linspace(0, 0.3, len(paths), dtype=np.float32)[:, None]
    )
    features /= np.linalg.norm(features, axis=1, keepdims=True)
    ids = np.arange(len(paths) + len(given))
    rows = labelled_rows(given, ids[len(paths) :])
    found = Discovered(model, table, features, ids[: len(paths)], rows, store, "../photos")
    write_report(found, facts_of(classes, names, known), root / "birds/report.html")
    return root / "birds/report.html"
