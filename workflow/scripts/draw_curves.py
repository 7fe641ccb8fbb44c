"""Draw the loss terms of a benchmark's rows over the epochs."""

from __future__ import annotations

import argparse
from pathlib import Path

import pandas as pd

from ctxgcd.plots.curves import training_curves
from ctxgcd.tables.display import benchmark_name
from ctxgcd.utils.files import read_rows
from ctxgcd.utils.reporting import reported


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--benchmark", required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--histories", type=Path, nargs="+", required=True, help="ROW/seedN/history.csv")
    arguments = parser.parse_args()
    histories: dict[str, list[pd.DataFrame]] = {}
    for path in arguments.histories:
        histories.setdefault(path.parent.parent.name, []).append(read_rows(path))
    training_curves(histories, arguments.out, benchmark_name(arguments.benchmark))


if __name__ == "__main__":
    with reported():
        main()
