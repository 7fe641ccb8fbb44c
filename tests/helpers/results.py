"""Results of a small benchmark of own images with every kind of odd name, made by the project itself."""

from __future__ import annotations

import csv
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from ctxgcd.benchmarks.readers.own_images import FOLDER
from ctxgcd.benchmarks.readers.registry import reader_of
from ctxgcd.benchmarks.split import make_split
from ctxgcd.benchmarks.split_file import write_split
from ctxgcd.config import parse
from ctxgcd.evaluation.score_run import score_run
from ctxgcd.images.pack import pack
from ctxgcd.pipeline.resolve import resolve
from ctxgcd.pipeline.runs import Run
from ctxgcd.tables.make import make_table
from ctxgcd.utils.files import replacing
from tests.helpers.layouts import Painter

LONG = "a name that does not end " * 12
NAMES = [
    "<script>window.ran = 1</script>",
    "</script><img src=x onerror='window.ran = 2'>",
    "\"double\" & 'single'",
    "línea\nnueva 日本 é",
    LONG.strip(),
    "plain",
]
ARTIST = "Jane Q. Photographer"
FILE = '<img src=x onerror="window.ran = 3"> & Co {}.jpg'
ROWS = ["kmeans", "simgcd", "full-paper"]
IMAGES = 9  # of each class


def write_photographs(folder: Path) -> None:
    """Write six classes of JPEGs with a location and a name in EXIF, a listing, and a list of two labelled classes."""
    painter = Painter(0)
    exif = Image.Exif()
    exif[0x013B] = ARTIST
    exif.get_ifd(0x8825).update({1: "N", 2: (48.0, 51.0, 29.6), 3: "E", 4: (2.0, 17.0, 40.2)})
    folder.mkdir(parents=True)
    lines = []
    for class_id, name in enumerate(NAMES):
        for number in range(IMAGES):
            path = FILE.format(f"{class_id}-{number}")
            Image.fromarray(painter.pixels(class_id, 40, 60)).save(folder / path, exif=exif, comment=ARTIST)
            lines.append([path, name])
    with open(folder / "list.csv", "w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([["path", "class"], *lines])
    (folder / "labelled.txt").write_text("plain\n\"double\" & 'single'\n", encoding="utf-8")


def write_results(content: dict[str, Any], root: Path) -> dict[str, str]:
    """Add the benchmark `mine` to params.yaml's content, and write the results of its workflow below `root`.

    Scores, splits, stores, tables and the figure are made by the project's modules. Only the training is replaced: its
    assignments are true classes with some exchanged. Returns the store of each benchmark.
    """
    write_photographs(root / "photographs")
    content["benchmarks"]["mine"] = {
        **{"reader": "folder", "path": str(root / "photographs"), "listing": "list.csv", "labelled": "labelled.txt"},
        **{"classes": 6, "images": "any", "K": True, "protocol": "fashion", "overrides": {}},
        **{"methods": content["benchmarks"]["fashion"]["methods"], "settings": {}},
    }
    content["tables"]["main_mine"] = ["mine"]
    content |= {"seeds": [0, 1], "rows": {**content["rows"], "main": ROWS}}
    params = parse(content)
    entry = params.benchmarks["mine"].model_dump()
    reader = reader_of(entry)
    manifest = reader.manifest(root / "photographs")
    listed, labelled = reader.divide(root / "photographs", manifest, "mine")  # type: ignore[attr-defined]
    split = make_split(
        manifest, listed, seed=0, labelled_share=0.5, drawn_order=FOLDER.drawn_order, labelled_paths=labelled
    )
    write_split(split, root / "results/splits/mine.csv", root / "results/splits/mine.sha256")
    store = root / "work/stores/mine-00000000.npz"
    pack("folder", root / "photographs", split.sort_values("id")["path"].tolist(), 64, store, workers=1)
    metrics = [_write_run(root, split, resolve(params, "mine", row, seed)) for row in ROWS for seed in params.seeds]
    runs = [Run("mine", row, seed) for row in ROWS for seed in params.seeds]
    of = {run: root / run.file("predictions.csv") for run in runs}
    for table in ("main_mine", "statistics_mine"):
        write_table(metrics, root / f"results/{table}", ROWS, ["mine"], of, pairs={"full-paper": "simgcd"})
    return {name: f"work/stores/{name}-00000000.npz" for name in content["benchmarks"]}


def write_table(
    metrics: list[dict[str, Any]],
    stem: Path,
    rows: Sequence[str],
    benchmarks: Sequence[str],
    predictions: Mapping[Run, Path] = {},
    **more: Any,
) -> None:
    """Make the table `stem` of the kind in its name, as the workflow does if no run is missing."""
    request = {"table": stem.name, "kind": stem.name.partition("_")[0], "rows": rows, "benchmarks": benchmarks}
    make_table(metrics, request | {"note": "", "absent": [], "pairs": {}} | more, stem, predictions)


def _write_run(root: Path, split: Any, resolved: dict[str, Any]) -> dict[str, Any]:
    folder = root / f"results/runs/mine/{resolved['row']}/seed{resolved['seed']}"
    random = np.random.default_rng([resolved["seed"], ROWS.index(resolved["row"])])
    shown = split[split["role"] != "labelled"]
    wrong = random.random(len(shown)) < 0.2
    predicted = np.where(wrong, (shown["class_id"] + 1) % 6, shown["class_id"])
    features = np.eye(6)[predicted] * 3 + random.normal(0, 1, (len(shown), 6))
    folder.mkdir(parents=True)
    about = {
        **{"epoch": 3, "seconds": 60.0, "commit": "0123456789abcdef0123-dirty", "collapsed": False},
        **{"environment": {"python": "3.11", "torch": "2.14.1", "device": "cpu: test"}, "parameters": resolved},
        "split_sha256": (root / "results/splits/mine.sha256").read_text().strip(),
    }
    (folder / "run.json").write_text(json.dumps(about))
    shown.assign(predicted=predicted)[["id", "predicted"]].to_csv(folder / "assignments.csv", index=False)
    predictions = {"unlabelled": folder / "predictions.csv", "test": folder / "predictions_test.csv"}
    score_run(folder / "run.json", [folder / "assignments.csv"], split, folder / "metrics.json", predictions, code="")
    with replacing(folder / "embeddings.npz") as temporary:
        np.savez(temporary, ids=shown["id"].to_numpy(), features=features.astype(np.float16))
    found: dict[str, Any] = json.loads((folder / "metrics.json").read_text())
    return found
