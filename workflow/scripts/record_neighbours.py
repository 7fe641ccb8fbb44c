"""Record the neighbours in the steps of trained rows, which `make bench` uses (ctxgcd/bench/neighbours.csv).

    snakemake together results/runs/cub50/full-paper+epochs=8+T_warm=2+teacher_warmup_epochs=2/seed0/run.json ...
    python workflow/scripts/record_neighbours.py cub50 cifar10_12k

The first call trains the rows of ctxgcd.bench.shared.ROWS that have neighbours; the file was made from 8 epochs of
cub50 (T_warm 2) and 4 of cifar10_12k (T_warm 1). All finished jobs of `together` in work/together are read.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ctxgcd.bench.neighbours import COLUMNS, FILE, record
from ctxgcd.benchmarks.split_file import read_split
from ctxgcd.config import read
from ctxgcd.errors import UserError
from ctxgcd.pipeline.paths import RUN_CACHE, TOGETHER, split_file
from ctxgcd.training.one_run import OneRun
from ctxgcd.utils.files import write_rows
from ctxgcd.utils.reporting import reported


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("benchmarks", nargs="+")
    lines: list[dict[str, Any]] = []
    for benchmark in parser.parse_args().benchmarks:
        runs = list(trained(benchmark))
        if not runs:
            raise UserError(f"no job of {TOGETHER} has trained a row of '{benchmark}' with neighbours; see --help")
        split = read_split(Path(split_file(benchmark)))
        lines += [line for one in runs for line in record(one, split)]
    write_rows(FILE, COLUMNS, lines)


def trained(benchmark: str) -> Iterator[OneRun]:
    """Yield the finished runs with neighbours that jobs of `snakemake together` trained."""
    params = read(Path("params.yaml"))
    for job in sorted(TOGETHER.glob("*.json")):
        for run in json.loads(job.read_text(encoding="utf-8")):
            if isinstance(run, str) or run["parameters"]["benchmark"] != benchmark or "k" not in run["parameters"]:
                continue  # the file of a job's rows, or a run without neighbours
            one = OneRun.of(
                run["parameters"],
                files={name: Path(file) for name, file in run["files"].items()},
                split_hash=Path(split_file(benchmark, "sha256")),
                code=run["code"],
                reader=params.benchmarks[benchmark].reader,
                work=RUN_CACHE,
            )
            if one.finished():
                yield one


if __name__ == "__main__":
    with reported():
        main()
