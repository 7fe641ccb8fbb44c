"""A summary of the scores of one benchmark, for comparisons between commits and experiments."""

from __future__ import annotations

from typing import Any

import pandas as pd

from ctxgcd.tables.aggregate import COMPARED, long_table
from ctxgcd.tables.published import QUANTITIES


def summary(metrics: list[dict[str, Any]], benchmark: str) -> dict[str, dict[str, float | int | None]]:
    """Return for each row `n` (seeds) and the means of `all`, `old`, `new` over them.

    In percent, v2 on D^u; None if undefined. Raises UserError as `long_table`.
    """
    rows = list(dict.fromkeys(run["row"] for run in metrics))
    long = long_table(metrics, table="metrics", rows=rows, benchmarks=[benchmark])
    compared = long[(long["set"] == COMPARED[0]) & (long["metric"] == COMPARED[1])]
    means = {q: [None if pd.isna(mean) else float(mean) for mean in compared[f"{q}_mean"]] for q in QUANTITIES}
    return {
        row: {"n": int(n), **{q: means[q][at] for q in QUANTITIES}}
        for at, (row, n) in enumerate(zip(compared["method"], compared["n"], strict=True))
    }
