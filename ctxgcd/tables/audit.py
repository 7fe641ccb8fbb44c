"""Consistency of published numbers: All is a mean of Old and New (equation `identity` of docs/methods.md)."""

from __future__ import annotations

import pandas as pd

from ctxgcd.tables.display import benchmark_name, published_name
from ctxgcd.tables.listing import Listing
from ctxgcd.tables.published import HERE, load

TOLERANCE = 0.10  # percentage points: possible effect of rounding three numbers to one decimal
COLUMNS = ["table", "benchmark", "method", "all", "old", "new", "w_old_least", "w_old_most"]
COLUMNS += ["expected_least", "expected_most", "difference", "tolerance", "consistent", "w_old_known"]


def audit() -> pd.DataFrame:
    """Check every row of the paper's tables, as `checked` does."""
    return checked(load())[COLUMNS]


def checked(published: pd.DataFrame) -> pd.DataFrame:
    """Check All = w_old * Old + (1 - w_old) * New for every published row, with w_old of D^u.

    `difference` is All minus the nearest value within the bounds of w_old; a row is consistent if its absolute value
    is at most `tolerance`. It is NaN, and the row not consistent, if a value is missing.
    """
    rows = published.merge(pd.read_csv(HERE / "unlabelled.csv"), on="benchmark", how="left", validate="many_to_one")
    for bound in ("least", "most"):
        rows[f"w_old_{bound}"] = rows[f"old_{bound}"] / rows["unlabelled"]
    ends = [rows[w] * rows["old"] + (1 - rows[w]) * rows["new"] for w in ("w_old_least", "w_old_most")]
    both = pd.concat(ends, axis=1)
    rows["expected_least"], rows["expected_most"] = both.min(axis=1), both.max(axis=1)
    rows["difference"] = rows["all"] - rows["all"].clip(rows["expected_least"], rows["expected_most"])
    rows["tolerance"] = TOLERANCE
    rows["consistent"] = rows["difference"].abs() <= TOLERANCE + 1e-9
    return rows.rename(columns={"why": "w_old_known"})


def audit_listing(rows: pd.DataFrame) -> Listing:
    """Return a listing of the inconsistent rows, sorted by decreasing difference, with notes."""
    wrong = rows[~rows["consistent"]]
    wrong = wrong.loc[wrong["difference"].abs().sort_values(ascending=False, kind="stable").index]
    lines = [
        [
            *(row["table"], benchmark_name(row["benchmark"]), published_name(row["method"])),
            *(f"{row[q]:.1f}" for q in ("all", "old", "new")),
            _range(row["expected_least"], row["expected_most"]),
            f"{row['difference']:+.2f}",
        ]
        for _, row in wrong.iterrows()
    ]
    return Listing(
        title=f"Inconsistent published rows: {len(wrong)} of {len(rows)}",
        head=["Table", "Benchmark", "Method", "All", "Old", "New", "All computed from Old and New", "Difference"],
        lines=lines,
        notes=[
            "Accuracy v2 counts the matched images of D^u once, so All is w_old * Old + (1 - w_old) * New, where w_old "
            "is the share of Old images in D^u, which is fixed by the split. The equation also holds for means over "
            f"seeds. A row is listed if its published All differs by more than {TOLERANCE:.2f} points, the largest "
            "possible effect of rounding. Such a row combines numbers of different runs, image sets or assignments, or "
            "contains an error; the cause is unknown, so comparisons with it are unreliable.",
            "If only bounds of w_old are known, the computed All is a range, and the difference is to its nearer end. "
            + " ".join(f"{benchmark_name(b)}: {why}." for b, why in _bounds(rows)),
            "All numbers are published values in percent. The CSV file of this table contains every row.",
        ],
        numbers_from=3,
    )


def _range(least: float, most: float) -> str:
    return f"{least:.2f}" if f"{least:.2f}" == f"{most:.2f}" else f"{least:.2f} to {most:.2f}"


def _bounds(rows: pd.DataFrame) -> list[tuple[str, str]]:
    known = rows[rows["w_old_least"] < rows["w_old_most"]].drop_duplicates("benchmark")
    return list(zip(known["benchmark"], known["w_old_known"], strict=True))
