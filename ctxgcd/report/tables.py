"""Tables of the report, read from their CSV files."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, cast

import pandas as pd

from ctxgcd.config import Params
from ctxgcd.pipeline.tables import backbone_note, table_benchmarks
from ctxgcd.report.grid import Grid, grid_of_listing, grid_of_table
from ctxgcd.tables.aggregate import read_long
from ctxgcd.tables.display import benchmark_name
from ctxgcd.tables.layout import ROW_HEADS, Kind, wide_table
from ctxgcd.tables.make import TITLES
from ctxgcd.tables.statistics import statistics_listing
from ctxgcd.tables.term_sizes import terms_listing
from ctxgcd.utils.files import read_rows, undamaged

TEXTS = re.compile(
    "benchmark|method|against|set|metric|K_source|precision|precision_against|seeds|collapsed|term|.*_verdict|.*_per_seed"
)
INTEGERS = ("K", "K_against", "epoch", "n", "active_from")


def table_grids(params: Params, table: str, results: Path) -> list[Grid]:
    """Return a table by its file stem, as rendered by `make_table`; None if its CSV is missing.

    Raises UserError if the CSV is not such a table.
    """
    file = results / f"{table}.csv"
    if not file.is_file():
        return []
    kind, benchmarks = table.partition("_")[0], table_benchmarks(params, table)
    title = TITLES[kind].format(", ".join(map(benchmark_name, benchmarks)))
    with undamaged(file):
        if kind in ROW_HEADS:
            long, note = read_long(file), backbone_note(params, table)
            return grid_of_table(wide_table(long, title=title, note=note, kind=cast(Kind, kind), label=table))
        listing = terms_listing if kind == "terms" else statistics_listing
        return [grid_of_listing(listing(_read(file), title))]


def _read(file: Path) -> pd.DataFrame:
    """Read the CSV of a listing with its original types: strings, integers and floats."""
    columns = read_rows(file, nrows=0).columns
    types: dict[Any, Any] = {c: "str" for c in columns if TEXTS.fullmatch(c)}
    types |= {c: "Int64" for c in columns if c in INTEGERS}
    frame = read_rows(file, dtype=types, keep_default_na=False, na_values=[""])
    texts = [c for c in columns if types.get(c) == "str"]
    return frame.assign(**{c: frame[c].fillna("") for c in texts})
