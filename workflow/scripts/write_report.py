"""Write one self-contained page of the results that exist."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from ctxgcd.pipeline.jobs import read_params
from ctxgcd.report.make import make_report
from ctxgcd.utils.reporting import reported


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--params", type=Path, required=True, help="params.yaml with what the command line changed")
    parser.add_argument(
        "--stores", type=json.loads, required=True, help="benchmark -> index of its image store, as JSON"
    )
    parser.add_argument("--out", type=Path, required=True)
    arguments = parser.parse_args()
    make_report(read_params(arguments.params), arguments.stores, arguments.out)


if __name__ == "__main__":
    with reported():
        main()
