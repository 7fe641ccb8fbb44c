"""Write a benchmark's mean scores, one entry per row, which DVC compares."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from ctxgcd.tables.scores import read_scores
from ctxgcd.tables.summary import summary
from ctxgcd.utils.files import write_text
from ctxgcd.utils.reporting import reported


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--benchmark", required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--metrics", type=Path, nargs="+", required=True)
    parser.add_argument("--hashes", nargs="+", required=True, help="hash of the parameters of each of these runs")
    arguments = parser.parse_args()
    metrics = read_scores(arguments.metrics, arguments.hashes)
    write_text(arguments.out, json.dumps(summary(metrics, arguments.benchmark), indent=1) + "\n")


if __name__ == "__main__":
    with reported():
        main()
