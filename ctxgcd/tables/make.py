"""Makes one table from the scores of its runs."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ctxgcd.config import PAIRED
from ctxgcd.pipeline.runs import Run
from ctxgcd.tables.aggregate import long_table, sensitivity_table, with_published_rows
from ctxgcd.tables.changed import mean_changed
from ctxgcd.tables.display import benchmark_name
from ctxgcd.tables.listing import write_listing
from ctxgcd.tables.render import write_table
from ctxgcd.tables.statistics import statistics, statistics_listing
from ctxgcd.tables.term_sizes import terms_listing, terms_table

TITLES = {
    "main": "Clustering accuracy (v2, percent) on the unlabelled images of {}",
    "ablation": "Ablation of the context losses on {}",
    "sensitivity": "Sensitivity of the full method on {}",
    "statistics": "Paired differences from SimGCD on {}",
    "unknowns": "Choices that the paper does not specify, on {}: paired differences between rows",
    "speed": "Faster settings on {}: paired differences between rows",
    "terms": "Size of each loss term on {}",
}


def make_table(
    metrics: list[dict[str, Any]], request: dict[str, Any], stem: Path, predictions: Mapping[Run, Path]
) -> None:
    """Aggregate and write a table as CSV, Markdown, LaTeX and HTML.

    request: `table` (file stem), `kind`, `rows` in order, `benchmarks` in order, `note`, `absent`
    (unavailable benchmarks), `pairs` (row -> the row that it is compared with; may be empty).
    predictions: predictions.csv of each run.
    """
    kind, rows, benchmarks = request["kind"], request["rows"], request["benchmarks"]
    title = TITLES[kind].format(", ".join(map(benchmark_name, benchmarks)))
    note = request["note"]
    if absent := ", ".join(map(benchmark_name, request["absent"])):
        title = f"Partial: {title}"
        note = f"Incomplete: there are no data and no finished runs of {absent}. {note}".strip()
    changed = mean_changed(predictions, request["pairs"])
    if kind in ("statistics", *PAIRED):
        frame = statistics(metrics, pairs=request["pairs"], benchmark=benchmarks[0], changed=changed)
        write_listing(frame, statistics_listing(frame, title), stem)
    elif kind == "terms":
        frame = terms_table(metrics, rows=rows, benchmark=benchmarks[0])
        write_listing(frame, terms_listing(frame, title), stem)
    else:
        if kind == "sensitivity":
            long = sensitivity_table(metrics, rows=rows, benchmarks=benchmarks)
        else:
            long = long_table(metrics, table=request["table"], rows=rows, benchmarks=benchmarks, changed=changed)
        if kind == "main":
            long = with_published_rows(long, table=request["table"])
        write_table(long, stem, title=title, note=note, kind=kind)
    print(f"{stem}: csv, md, tex and html written")
