"""Metrics of synthetic runs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pandas as pd

from ctxgcd.tables import aggregate, published

MAIN_ROWS = ["kmeans", "gcd", "simgcd", "full-paper", "full-released"]
LOSS_ROWS = ["simgcd", "full-paper-without-n", "full-paper-without-c", "full-paper"]
SENSITIVITY_ROWS = [
    "full-paper",
    *(f"full-paper+lambda_n={v}" for v in ("0.3", "0.5", "0.7")),
    *(f"full-paper+lambda_c={v}" for v in ("0.1", "0.5", "0.7")),
    *(f"full-paper+k={v}" for v in ("20", "30")),
]


HOSTILE = 'a|b <i onload="x">&_$%#{c}~^\\ *d* [e](f)\n`g` – é'


def run(row: str, seed: int, values: tuple[float, Any, Any], benchmark: str = "cub", **changes: Any) -> dict[str, Any]:
    """Return the metrics of one run, with the scores v2 (both sets) and nmi."""
    all_, old, new = values
    metrics: dict[str, Any] = {
        "schema": 1,
        "benchmark": benchmark,
        "row": row,
        "seed": seed,
        "split_sha256": "f" * 64,
        "K": 200,
        "K_source": "true",
        "epoch": 199,
        "environment": {"torch": "2.12.0", "device": "cpu: x"},
        "parameters": {"lambda_n": 0.1, "lambda_c": 0.3, "k": 10},
    } | changes
    shared = {key: metrics[key] for key in ("K", "K_source", "epoch")}
    full = {"all": all_, "old": old, "new": new}
    metrics["scores"] = [
        {"set": "test", "metric": "v2", "n": 600, **shared, **full},
        {"set": "unlabelled", "metric": "nmi", "n": 4496, **shared, "all": 70.0, "old": None, "new": None},
        {"set": "unlabelled", "metric": "v2", "n": 4496, **shared, **full},
    ]
    return metrics


def three(row: str, base: float, **changes: Any) -> list[dict[str, Any]]:
    return [run(row, s, (base + d, base + d + 5, base + d - 3), **changes) for s, d in enumerate((-1.0, 0.0, 1.0))]


def long(
    metrics: list[dict[str, Any]],
    rows: list[str],
    benchmarks: tuple[str, ...] = ("cub",),
    changed: Mapping[tuple[str, str], float] = {},
) -> pd.DataFrame:
    return aggregate.long_table(metrics, table="main_ssb", rows=rows, benchmarks=list(benchmarks), changed=changed)


def with_published(metrics: list[dict[str, Any]], rows: list[str], table: str = "main_ssb") -> pd.DataFrame:
    """Return a main table of the paper as the workflow makes it, with the paper's rows that are not among `rows`."""
    printed = published.load()
    benchmarks = list(printed.loc[printed["table"] == published.paper_table(table), "benchmark"].unique())
    measured = aggregate.long_table(metrics, table=table, rows=rows, benchmarks=benchmarks)
    return aggregate.with_published_rows(measured, table=table)


def v2(table: pd.DataFrame) -> pd.DataFrame:
    return table[(table["set"] == "unlabelled") & (table["metric"] == "v2")].reset_index(drop=True)
