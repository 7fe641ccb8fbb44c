"""Aggregate the scores of many runs into one table: CSV, Markdown, LaTeX and HTML."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from ctxgcd.errors import reported
from ctxgcd.files import read_object
from ctxgcd.tables.make import make_table


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--request", type=json.loads, required=True, help="table, kind, rows, benchmarks, note as JSON")
    parser.add_argument("--stem", type=Path, required=True, help="path of the outputs without suffix")
    parser.add_argument("--metrics", type=Path, nargs="+", required=True)
    arguments = parser.parse_args()
    metrics = [read_object(path) for path in arguments.metrics]
    make_table(metrics, arguments.request, arguments.stem)


if __name__ == "__main__":
    with reported():
        main()
