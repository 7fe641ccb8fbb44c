"""Benchmark the steps of the workflow against plain references on this machine."""

from __future__ import annotations

import argparse
import os
from pathlib import Path

import pandas as pd
import torch

from ctxgcd.bench import clusters, pictures, shared, training
from ctxgcd.bench.budget import budget
from ctxgcd.bench.work import WORK_COLUMNS, bench
from ctxgcd.errors import UserError
from ctxgcd.plots.bench import cost_against_n, step_budget
from ctxgcd.utils.files import on_disk, write_rows
from ctxgcd.utils.reporting import reported


def prepare(arguments: argparse.Namespace) -> None:
    """Validate the arguments, and pass the folder of photographs to the measuring processes."""
    if not 0 < arguments.scale < float("inf"):
        raise UserError(f"--scale is {arguments.scale}; give a positive number")
    with on_disk(arguments.out):
        arguments.out.mkdir(parents=True, exist_ok=True)
    if arguments.images:
        pictures.jpegs(arguments.images)
        os.environ[pictures.IMAGES] = str(arguments.images.resolve())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("results/bench"), help="folder of the tables and figures")
    parser.add_argument("--scale", type=float, default=1.0, help="scale factor for the size of each benchmark")
    parser.add_argument("--images", type=Path, help="folder of JPEGs to read; by default, synthetic images are used")
    parser.add_argument("--only", default="", help="only run benchmarks whose name contains this text, without figures")
    arguments = parser.parse_args()
    prepare(arguments)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    works = [*training.works(device), *shared.works(device), *clusters.WORKS, *pictures.WORKS]
    wanted = [work for work in works if arguments.only in work.name]
    if not wanted:
        raise UserError(f"no benchmark name contains '{arguments.only}'; run without --only to see all names")
    out = arguments.out
    rows = bench(wanted, out / "steps.csv", arguments.scale, device)
    if not arguments.only:
        rows += budget(out / "budget.csv", device) + shared.parts(device)
        write_rows(out / "steps.csv", WORK_COLUMNS, rows)
        cost_against_n(pd.read_csv(out / "steps.csv"), out / "cost_against_n.png")
        step_budget(pd.read_csv(out / "budget.csv"), out / "step_budget.png")
        print(f"Tables and figures: {out}/steps.csv, budget.csv, cost_against_n.png, step_budget.png")


if __name__ == "__main__":
    with reported():
        main()
