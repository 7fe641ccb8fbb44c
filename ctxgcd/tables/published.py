"""Numbers as printed: the paper's tables 1-5 (arXiv 2407.19752) and SimGCD's spread over 3 runs (ICCV 2023).

Only `full-paper` and its ablations are compared with the paper's `full` rows. `full-released`, `full-mended`
and `full-paper-zero` have no published value, because the paper does not describe them. Its numbers may come from
the released code, but the settings are unknown.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from functools import cache
from pathlib import Path
from typing import Any, cast

import pandas as pd

from ctxgcd.catalogue.entries import METHODS
from ctxgcd.names import number_text
from ctxgcd.tables.display import changed_numbers

HERE = Path(__file__).parent
QUANTITIES = ("all", "old", "new")

# The values of the paper's main run, which its sensitivity table shows three times.
PAPER_VALUES = {"lambda_n": 0.1, "lambda_c": 0.3, "k": 10.0}
PAPER_KEYS = {row: key for entry in METHODS.values() for row, key in entry.published.items()}


@cache
def _indexed(name: str, *key: str) -> dict[Any, dict[str, float]]:
    rows = pd.read_csv(HERE / name).set_index(list(key)).astype(float)
    return cast("dict[Any, dict[str, float]]", rows.to_dict("index"))


def load() -> pd.DataFrame:
    """Return all published rows: table, benchmark, method (the paper's key), all, old, new in percent."""
    return pd.read_csv(HERE / "published.csv")


def paper_table(table: str) -> str:
    """Map our table names to the paper's: main_ssb -> ssb, ablation_cub -> losses."""
    kind, _, rest = table.partition("_")
    return {"main": rest, "ablation": "losses"}.get(kind, kind)


def paper_keys(table: str, row: str) -> tuple[str, ...]:
    """Return the paper's keys of one of our rows: none for an unpublished row, three for `full-paper` in the
    sensitivity table."""
    if paper_table(table) == "sensitivity" and row.split("+")[0] == "full-paper":
        return tuple(
            f"full[{key}={number_text(value)}]" for key, value in (changed_numbers(row) or PAPER_VALUES).items()
        )
    return (PAPER_KEYS[row],) if row in PAPER_KEYS else ()


def published_value(table: str, benchmark: str, row: str) -> dict[str, float] | None:
    """Return the paper's all, old and new (percent) for one of our rows, or None if it is unpublished."""
    rows = _indexed("published.csv", "table", "benchmark", "method")
    keys = ((paper_table(table), benchmark, key) for key in paper_keys(table, row))
    return next((rows[key] for key in keys if key in rows), None)


def without_ours(table: str, benchmarks: Collection[str], rows: Iterable[str]) -> pd.DataFrame:
    """Return the rows of `load` in the paper's table of these benchmarks that correspond to none of our rows."""
    printed, ours = load(), {key for row in rows for key in paper_keys(table, row)}
    of_table = (printed["table"] == paper_table(table)) & printed["benchmark"].isin(benchmarks)
    return printed[of_table & ~printed["method"].isin(ours)]


def published_spread(benchmark: str) -> dict[str, float] | None:
    """Return SimGCD's published std of all, old and new (percentage points) and its number of runs `n`, or None.

    It is also used for the other rows of that benchmark, which were published without a spread."""
    return _indexed("spread.csv", "benchmark").get(benchmark)
