"""The state of published rows: reproduced (with the device), planned, or not supported."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import pandas as pd

from ctxgcd.errors import UserError
from ctxgcd.tables.aggregate import COMPARED, long_table
from ctxgcd.tables.display import benchmark_name, method_name, published_name
from ctxgcd.tables.layout import VERDICT_SIGNS
from ctxgcd.tables.listing import Listing
from ctxgcd.tables.notes import FLOAT32
from ctxgcd.tables.published import QUANTITIES, load, paper_keys, paper_table

REPRODUCED, PLANNED, UNSUPPORTED = "reproduced", "planned", "not supported"
NO_METHOD = "this method is not implemented"
NOT_LISTED = "params.yaml lists no such row for this benchmark"
COLUMNS = ["table", "benchmark", "method", "row", "state", "K", "K_source", "precision", "n", "device", "why"]
COLUMNS += [f"{q}_{of}" for q in QUANTITIES for of in ("published", "mean", "std", "difference", "verdict")]


def status(planned: Iterable[Mapping[str, Any]], metrics: list[dict[str, Any]], built: Iterable[str]) -> pd.DataFrame:
    """Return one line per published row.

    Args:
        planned: the runs of our tables: `table` (file stem), `benchmark`, `row`, `seeds`.
        metrics: the metrics.json of every finished run with the current parameters.
        built: the paper's keys of the implemented methods.

    A row is reproduced if all its seeds were run; with only some seeds it is planned, with their number.
    """
    ours = {
        (paper_table(one["table"]), one["benchmark"], key): one
        for one in planned
        for key in paper_keys(one["table"], one["row"])
    }
    lines = []
    for _, row in load().iterrows():
        entry = {key: row[key] for key in ("table", "benchmark", "method")}
        entry |= {f"{q}_published": row[q] for q in QUANTITIES}
        one = ours.get((row["table"], row["benchmark"], row["method"]))
        if one is None:
            base = row["method"].partition("[")[0]
            entry |= {"state": UNSUPPORTED, "why": NOT_LISTED if base in set(built) else NO_METHOD}
        else:
            entry |= _state(one, [run for run in metrics if run["seed"] in one["seeds"]])
        lines.append(entry)
    return pd.DataFrame(lines, columns=COLUMNS).astype({"K": "Int64", "n": "Int64"})


def _state(one: Mapping[str, Any], metrics: list[dict[str, Any]]) -> dict[str, Any]:
    try:
        long = long_table(metrics, table=one["table"], rows=[one["row"]], benchmarks=[one["benchmark"]])
    except UserError as error:  # runs that cannot be averaged do not affect the other rows
        return {"row": one["row"], "n": 0, "state": PLANNED, "why": str(error)}
    made = long[(long["set"] == COMPARED[0]) & (long["metric"] == COMPARED[1])].iloc[0]
    n, seeds = int(made["n"]), len(one["seeds"])
    entry = {"row": one["row"], "n": n, "state": REPRODUCED if n == seeds else PLANNED}
    entry["why"] = "" if n == seeds else f"{n} of {seeds} runs exist"
    if n:
        own = [run for run in metrics if (run["benchmark"], run["row"]) == (one["benchmark"], one["row"])]
        entry |= {key: made[key] for key in ("K", "K_source", "precision")}
        entry["device"] = ", ".join(sorted({run["environment"]["device"] for run in own}))
        entry |= {f"{q}_{of}": made[f"{q}_{of}"] for q in QUANTITIES for of in ("mean", "std", "difference", "verdict")}
    return entry


def status_listing(frame: pd.DataFrame) -> Listing:
    """Return a listing with one line per published row, and the number of rows in each state."""
    counts = frame["state"].value_counts()
    lines = [
        [
            *(row["table"], benchmark_name(row["benchmark"]), published_name(row["method"])),
            method_name(row["row"]) if pd.notna(row["row"]) else "",
            row["state"] + (f": {row['why']}" if row["why"] else f" on {row['device']}{_in(row['precision'])}"),
            *(_published(row, q) for q in QUANTITIES),
        ]
        for _, row in frame.iterrows()
    ]
    numbers = ", ".join(f"{counts.get(state, 0)} {state}" for state in (REPRODUCED, PLANNED, UNSUPPORTED))
    return Listing(
        title=f"State of the {len(frame)} published rows: {numbers}",
        head=["Table", "Benchmark", "Published", "Our row", "State", "All", "Old", "New"],
        lines=lines,
        notes=[
            "All, Old, New: published clustering accuracy v2 in percent on the unlabelled training images. In "
            "parentheses: our mean minus the published value, if our row was run; ≈ within, ↑ above or ↓ below two "
            "standard errors.",
            "Reproduced: all seeds of our row were run with the current parameters. Planned: the row can be run, but "
            "some or all of its seeds are missing. Not supported: none of our rows corresponds to it.",
            *[f"The published numbers were computed in {FLOAT32}."] * any(map(_in, frame["precision"])),
        ],
        numbers_from=5,
    )


def _in(precision: Any) -> str:
    """Return the precision of our row, unless it is that of the published numbers or unknown."""
    return "" if pd.isna(precision) or precision in ("", FLOAT32) else f" in {precision}"


def _published(row: pd.Series, quantity: str) -> str:
    """Return the published value, with our difference from it in parentheses."""
    published, difference = f"{row[f'{quantity}_published']:.1f}", row[f"{quantity}_difference"]
    if pd.isna(difference):
        return published
    return f"{published} ({difference:+.1f} {VERDICT_SIGNS.get(row[f'{quantity}_verdict'], '')}".strip() + ")"
