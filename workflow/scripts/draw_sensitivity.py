"""Draw the accuracy of a benchmark over each parameter of its sensitivity table."""

from __future__ import annotations

import argparse
from pathlib import Path

from ctxgcd.plots.sensitivity import sensitivity_curves
from ctxgcd.tables.aggregate import read_long
from ctxgcd.tables.display import benchmark_name
from ctxgcd.utils.reporting import reported


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--benchmark", required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--table", type=Path, required=True, help="results/sensitivity_BENCHMARK.csv")
    arguments = parser.parse_args()
    sensitivity_curves(read_long(arguments.table), arguments.out, benchmark_name(arguments.benchmark))


if __name__ == "__main__":
    with reported():
        main()
