"""Disk space of runs, from shapes that are known without data and weights."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ctxgcd.benchmarks.readers.reader import store_bytes
from ctxgcd.benchmarks.readers.registry import reader_of
from ctxgcd.catalogue.entries import METHODS
from ctxgcd.config import Benchmark, Images, completed
from ctxgcd.models.shapes import SHAPES, Shape
from ctxgcd.plan.outputs import IN_MEMORY, ON_DISK, test_bytes
from ctxgcd.plan.work import by_model, cached_views, classes_of

LINE = 80  # bytes per image in assignments.csv and predictions.csv together, including its path
SAMPLE = 2000  # images in embeddings.npz


@dataclass(frozen=True)
class Disk:
    """Bytes of packed images, cached features and view banks, results, and temporary files of one training.

    None: unknown, because the backbone is not in SHAPES.
    """

    store: float
    kept: float | None
    results: float | None
    scratch: float | None


def disk_of(entry: Benchmark, images: Images, resize: int, runs: list[dict[str, Any]]) -> Disk:
    """Return the disk space for the runs of one benchmark, assuming empty caches; 0 without runs."""
    if not runs:
        return Disk(0, 0, 0, 0)
    store = store_bytes(reader_of(entry.model_dump()), images.train + images.test, resize)
    groups = by_model(runs)
    if not groups.keys() <= SHAPES.keys():
        return Disk(store, None, None, None)
    kept, results, scratch = zip(*(_of_model(SHAPES[m], entry, images, of) for m, of in groups.items()), strict=True)
    return Disk(store, sum(kept), sum(results), max(scratch))


def _of_model(shape: Shape, entry: Benchmark, images: Images, runs: list[dict[str, Any]]) -> tuple[float, float, float]:
    """Return the bytes of cached features, results and temporary files for the runs of one model."""
    every = images.train + images.test
    crop, weights = runs[0]["crop"], [_weights(shape, classes_of(entry, p), p) for p in runs]
    kept = 0
    for name, views in cached_views(images, runs).items():
        tail_blocks = int(name.split("-")[1].removeprefix("tail"))
        kept += views * shape.values(crop, tail_blocks) * (2 if name.endswith("bf16") else 4)
    sample = 2 * shape.dim * min(SAMPLE, images.train)
    scratch = [0]
    for p, own in zip(runs, weights, strict=True):
        if METHODS[p["method"]].trains:
            test_view = test_bytes(shape, images, p)
            in_file = not p["view_bank"] and IN_MEMORY < test_view <= ON_DISK
            scratch.append(2 * own + test_view * in_file)  # weights and momentum, to resume from
    return kept, sum(weights) + len(runs) * (every * LINE + sample), max(scratch)


def _weights(shape: Shape, classes: int, p: dict[str, Any]) -> int:
    """Return the bytes of a run's final.pt: trained blocks or adapter, heads and centres in float32."""
    values = classes * shape.dim  # classifier or centres
    values += (shape.dim + 1) * shape.dim if p.get("tail") == "adapter" else 0
    values += p.get("tail_blocks", 0) * shape.block + METHODS[p["method"]].head_values(completed(p), shape.dim)
    return 4 * values
