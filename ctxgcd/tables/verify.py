"""Comparison of measured numbers with those of another machine, within a tolerance."""

from __future__ import annotations

from pathlib import Path

import pandas as pd

from ctxgcd.errors import UserError
from ctxgcd.utils.files import undamaged

# Percentage points of a mean over seeds. Results are bit-identical on one machine; other machines sum in another order.
# Between two CPU types the largest difference was 0.14 points (docs/quick_start.md).
TOLERANCE = 2.0
KEYS = ["benchmark", "method", "set", "metric", "K", "n"]
VALUES = ["all_mean", "old_mean", "new_mean"]


def read_means(file: Path) -> pd.DataFrame:
    """Read KEYS (as strings) and VALUES of a table. Raises UserError if the file is not a table or has no mean."""
    types = dict.fromkeys(KEYS, "str") | dict.fromkeys(VALUES, "float64")
    with undamaged(file, "make it again with `snakemake demo`, or get the committed one with `git checkout`"):
        means = pd.read_csv(file, usecols=list(types), dtype=types)
        if means[VALUES].isna().all(axis=None):
            raise ValueError
    return means


def compare(ours: pd.DataFrame, reference: pd.DataFrame, table: str) -> pd.DataFrame:
    """Compare the means of two tables of one name: KEYS, `part`, `ours`, `reference`, `difference` (points).

    Raises UserError if their rows differ.
    """
    pairs = [frame.set_index(KEYS)[VALUES].melt(var_name="part", ignore_index=False) for frame in (ours, reference)]
    keyed = [pair.set_index("part", append=True).value.groupby(level=[*KEYS, "part"], dropna=False) for pair in pairs]
    first, second = (of.first().dropna() for of in keyed)
    if alone := sorted({_named(*key) for key in first.index.symmetric_difference(second.index)}):
        raise UserError(
            f"{table}: these means are only in one of the two tables: {'; '.join(alone[:3])}"
            f"{' and more' * (len(alone) > 3)}; compare tables of the same params.yaml"
        )
    joined = pd.DataFrame({"ours": first, "reference": second}).reset_index()
    return joined.assign(difference=joined.ours - joined.reference)


def _named(benchmark: str, method: str, where: str, metric: str, classes: str, n: str, part: str) -> str:
    return f"{method} on {benchmark} ({where} {metric}, {part}, K = {classes}, n = {n})"


def verdict(compared: dict[str, pd.DataFrame]) -> tuple[str, bool]:
    """Return one line per table and a total, and whether every mean is within TOLERANCE."""
    lines = []
    for table, frame in compared.items():
        apart = frame.difference.abs()
        worst, equal = frame.iloc[int(apart.to_numpy().argmax())], int((apart == 0).sum())
        where = f" ({worst.method}, {worst['set']} {worst.metric}, {worst.part})" if apart.max() > 0 else ""
        lines.append(f"{table}: {equal} of {len(frame)} means equal, max. difference {apart.max():.2f} points{where}")
    largest = max(frame.difference.abs().max() for frame in compared.values())
    good = bool(largest <= TOLERANCE)
    result = "all within" if good else "NOT all within"
    return "\n".join([*lines, f"{result} {TOLERANCE:g} points of the committed numbers"]), good
