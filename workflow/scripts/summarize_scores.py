"""Write a benchmark's mean scores, one entry a row: the numbers that DVC compares."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from ctxgcd.errors import reported
from ctxgcd.files import read_object, write_text
from ctxgcd.tables.summary import summary


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--benchmark", required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--metrics", type=Path, nargs="+", required=True)
    arguments = parser.parse_args()
    metrics = [read_object(path) for path in arguments.metrics]
    write_text(arguments.out, json.dumps(summary(metrics, arguments.benchmark), indent=1) + "\n")


if __name__ == "__main__":
    with reported():
        main()
