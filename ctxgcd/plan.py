"""What the configured tables cost, from params.yaml and class lists alone."""

from __future__ import annotations

import os
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ctxgcd.benchmarks import place_of
from ctxgcd.benchmarks.registry import source_of
from ctxgcd.benchmarks.source import store_bytes
from ctxgcd.config import Benchmark, Images, Params
from ctxgcd.errors import UserError
from ctxgcd.runs import active_epochs, resolve
from ctxgcd.targets import all_tables, table_runs

RATE = 1000.0  # views a second of one device: an assumption to plan with, not a measurement
LINE = "{:<14} {:>9} {:>8} {:>14} {:>13} {:>9}"
DIGITS = (0, 0, 1, 1, 1)


def plan(params: Params) -> str:
    """A table of runs, views and device hours for each benchmark of `all_tables`.

    One view is one augmented image through the backbone, forward and backward of the tail included. The rate
    is assumed; CTXGCD_VIEWS_PER_SECOND replaces it by one's own.
    """
    asked = os.environ.get("CTXGCD_VIEWS_PER_SECOND", str(RATE))
    try:
        rate = float(asked)
    except ValueError:
        rate = 0.0
    if not 0 < rate < float("inf"):
        raise UserError(f"CTXGCD_VIEWS_PER_SECOND is '{asked}'; give a positive number of views a second")
    needed = dict.fromkeys(run for table in all_tables(params) for run in table_runs(params, table))
    costs = [(run.benchmark, resolve(params, run.benchmark, run.row, run.seed)) for run in needed]
    lines = [LINE.format("benchmark", "trainings", "k-means", "million views", "device hours", "store GB")]
    totals = np.zeros(5)
    for benchmark in dict.fromkeys(name for name, _ in costs):
        resolved = [p for name, p in costs if name == benchmark]
        trained = [p for p in resolved if p["method"] != "kmeans"]
        entry = params.benchmarks[benchmark]
        images = images_in(entry)
        views = sum(views_of(images, p) for p in trained)
        store = store_bytes(source_of(entry.model_dump()), images.train + images.test, resolved[0]["resize"])
        row = np.array([len(trained), len(resolved) - len(trained), views / 1e6, views / rate / 3600, store / 1e9])
        totals += row
        lines.append(_line(benchmark, row))
    lines.append(_line("all", totals))
    lines.append(
        f"Device hours assume {rate:g} views a second (not measured); CTXGCD_VIEWS_PER_SECOND sets your device's.\n"
        "For less: fewer `seeds`, `rows` or benchmarks under `all_tables` in params.yaml."
    )
    return "\n".join(lines)


def images_in(entry: Benchmark) -> Images:
    """The counts that params.yaml states; where it leaves them to a user's own folder, what lies there now."""
    if entry.images != "any":
        return entry.images
    section = entry.model_dump()
    counts = source_of(section).manifest(place_of(section))["part"].value_counts()
    return Images(train=int(counts["train"]), test=int(counts.get("test", 0)))


def views_of(images: Images, p: dict[str, Any]) -> int:
    """Views that a training passes through the backbone: two an image a step, and the final evaluation."""
    steps = images.train // p["batch_size"]
    around = active_epochs(p) * (p["neighbour_images"] // p["k"] * p["k"]) if p["method"] == "full" else 0
    return 2 * steps * (p["epochs"] * p["batch_size"] + around) + images.train + images.test


def _line(name: str, values: NDArray[np.float64]) -> str:
    return LINE.format(name, *(f"{value:,.{digits}f}" for value, digits in zip(values, DIGITS, strict=True)))
