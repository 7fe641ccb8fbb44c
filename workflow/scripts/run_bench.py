"""Measure the steps of the workflow beside plain references, here and now."""

from __future__ import annotations

import argparse
from pathlib import Path

import torch

from ctxgcd.bench import clusters, pictures, training
from ctxgcd.bench.work import bench
from ctxgcd.errors import UserError, reported


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("results/bench/steps.csv"))
    parser.add_argument("--scale", type=float, default=1.0, help="factor on the number of images of every work")
    parser.add_argument("--only", default="", help="works whose name holds this text")
    arguments = parser.parse_args()
    works = [w for w in (*training.WORKS, *clusters.WORKS, *pictures.WORKS) if arguments.only in w.name]
    if not works:
        raise UserError(f"no work's name holds '{arguments.only}'; leave --only out to see all names")
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    bench(works, arguments.out, arguments.scale, device)


if __name__ == "__main__":
    with reported():
        main()
