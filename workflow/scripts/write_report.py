"""Write the existing results to one self-contained page."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from ctxgcd.pipeline.jobs import read_params
from ctxgcd.report.make import make_report
from ctxgcd.utils.reporting import reported


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--params", type=Path, required=True, help="params.yaml with the changes of the command line")
    parser.add_argument(
        "--stores", type=json.loads, required=True, help="JSON object that maps each benchmark to its image store index"
    )
    parser.add_argument("--out", type=Path, required=True)
    arguments = parser.parse_args()
    make_report(read_params(arguments.params), arguments.stores, arguments.out)


if __name__ == "__main__":
    with reported():
        main()
