"""Write one self-contained page of the results that exist."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from ctxgcd.config import parse
from ctxgcd.errors import reported
from ctxgcd.report.make import make_report


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--config", type=json.loads, required=True, help="the whole of params.yaml as JSON")
    parser.add_argument(
        "--stores", type=json.loads, required=True, help="benchmark -> index of its image store, as JSON"
    )
    parser.add_argument("--out", type=Path, required=True)
    arguments = parser.parse_args()
    make_report(parse(arguments.config), arguments.stores, arguments.out)


if __name__ == "__main__":
    with reported():
        main()
