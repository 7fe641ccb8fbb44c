"""Measure the steps of the workflow beside plain references, here and now."""

from __future__ import annotations

import argparse
from pathlib import Path

from ctxgcd.bench import bench
from ctxgcd.errors import reported


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("results/bench/steps.csv"))
    parser.add_argument("--scale", type=float, default=1.0, help="factor on the number of images of every work")
    arguments = parser.parse_args()
    bench(arguments.out, arguments.scale)


if __name__ == "__main__":
    with reported():
        main()
