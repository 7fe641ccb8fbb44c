"""What the configured tables cost, from params.yaml and class lists alone."""

from __future__ import annotations

import os
from typing import Any

from ctxgcd.config import Params
from ctxgcd.runs import Run, active_epochs, all_tables, resolve, table_runs

RATE = 1000.0  # views a second of one device: an assumption to plan with, not a measurement


def plan(params: Params) -> str:
    """A table of runs, views and device hours for each benchmark of `all_tables`.

    One view is one augmented image through the backbone, forward and backward of the tail included. The rate
    is assumed; CTXGCD_VIEWS_PER_SECOND replaces it by one's own.
    """
    rate = float(os.environ.get("CTXGCD_VIEWS_PER_SECOND", RATE))
    needed = dict.fromkeys(run for table in all_tables(params) for run in table_runs(params, table))
    lines = [f"{'benchmark':<14} {'trainings':>9} {'k-means':>8} {'views (millions)':>17} {'device hours':>13} {'store (GB)':>11}"]
    total = [0, 0, 0.0, 0.0]
    for benchmark in dict.fromkeys(run.benchmark for run in needed):
        runs = [run for run in needed if run.benchmark == benchmark]
        resolved = [(run, resolve(params, run.benchmark, run.row, run.seed)) for run in runs]
        trained = [(run, p) for run, p in resolved if p["method"] != "kmeans"]
        views = sum(views_of(params, run, p) for run, p in trained)
        images = params.benchmarks[benchmark].images
        protocol = params.protocols[params.benchmarks[benchmark].protocol]
        # Square images as a lower bound; photographs are about a third longer than they are high.
        store = (images.train + images.test) * protocol.resize**2 * 3 * 4 / 3 / 1e9
        row = (len(trained), len(runs) - len(trained), views, store)
        total = [a + b for a, b in zip(total, row, strict=True)]
        lines.append(_line(benchmark, *row, rate))
    lines.append(_line("all", *total, rate))
    lines.append(
        f"Device hours assume {rate:g} views a second (not measured); set CTXGCD_VIEWS_PER_SECOND to your device's rate. "
        "Fewer seeds, rows or benchmarks: edit `seeds`, `rows` and `all_tables` in params.yaml."
    )
    return "\n".join(lines)


def views_of(params: Params, run: Run, p: dict[str, Any]) -> int:
    """Views that a training passes through the backbone: two an image a step, and the final evaluation."""
    images = params.benchmarks[run.benchmark].images
    steps = images.train // p["batch_size"]
    around = p["neighbour_images"] // p["k"] * p["k"] if p["method"] == "full" else 0
    active = active_epochs(p) if around else 0
    return 2 * steps * (p["epochs"] * p["batch_size"] + active * around) + images.train + images.test


def _line(name: str, trained: float, clustered: float, views: float, store: float, rate: float) -> str:
    return f"{name:<14} {trained:>9.0f} {clustered:>8.0f} {views / 1e6:>17,.1f} {views / rate / 3600:>13,.1f} {store:>11,.1f}"
