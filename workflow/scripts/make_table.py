"""Aggregate the scores of many runs into one table: CSV, Markdown, LaTeX and HTML."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from ctxgcd.tables.changed import predictions_of
from ctxgcd.tables.make import make_table
from ctxgcd.tables.scores import read_scores
from ctxgcd.utils.reporting import reported


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--request", type=json.loads, required=True, help="table, kind, rows, benchmarks, note as JSON")
    parser.add_argument("--stem", type=Path, required=True, help="path of the outputs without suffix")
    parser.add_argument("--metrics", type=Path, nargs="+", required=True, help="each beside its predictions.csv")
    parser.add_argument("--hashes", nargs="+", required=True, help="hash of the parameters of each of these runs")
    arguments = parser.parse_args()
    metrics = read_scores(arguments.metrics, arguments.hashes)
    make_table(metrics, arguments.request, arguments.stem, predictions_of(arguments.metrics, metrics))


if __name__ == "__main__":
    with reported():
        main()
