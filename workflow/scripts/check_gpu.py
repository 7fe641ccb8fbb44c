"""Benchmark one GPU in minutes, without a network: training steps, a plain loop, utilisation, kernels and waits."""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path

import torch
from run_bench import prepare

from ctxgcd.bench import clusters, shared, training
from ctxgcd.bench.budget import budget
from ctxgcd.bench.gpu import kernels, utilisation
from ctxgcd.bench.work import WORK_COLUMNS, bench
from ctxgcd.errors import UserError
from ctxgcd.training.provenance import commit, environment
from ctxgcd.utils.files import write_rows, write_text
from ctxgcd.utils.reporting import reported


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--images", type=Path, help="folder of JPEGs to read; by default, synthetic images are used")
    parser.add_argument("--out", type=Path, default=Path("results/bench/gpu"))
    parser.add_argument("--scale", type=float, default=1.0, help="scale factor for the size of each benchmark")
    arguments = parser.parse_args()
    if not torch.cuda.is_available():
        raise UserError("no CUDA device is visible to torch; run this on a machine with a GPU (`make bench` on a CPU)")
    prepare(arguments)
    device, out, start = torch.device("cuda"), arguments.out, time.monotonic()
    works = [*training.works(device), *shared.works(device), clusters.WORKS[0]]
    rows = bench(works, out / "steps.csv", arguments.scale, device)
    rows += utilisation(rows, device, torch.cuda.get_device_name(device))
    rows += budget(out / "budget.csv", device) + shared.parts(device) + shared.differences(device)
    write_rows(out / "steps.csv", WORK_COLUMNS, rows)
    waits = kernels(out / "kernels.txt", device)
    facts = environment(device) | {"commit": commit(), "waits": waits, "seconds": round(time.monotonic() - start)}
    write_text(out / "environment.json", json.dumps(facts, indent=1) + "\n")
    print(json.dumps(facts))


if __name__ == "__main__":
    with reported():
        main()
