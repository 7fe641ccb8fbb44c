"""Record the neighbours in the steps of trained rows, which `make bench` uses (ctxgcd/bench/neighbours.csv).

    python workflow/scripts/record_neighbours.py cub50 cifar10_12k

The runs are those of the finished jobs of `snakemake together`; docs/speed.md names them.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from ctxgcd.bench.neighbours import COLUMNS, FILE, record
from ctxgcd.benchmarks.split_file import read_split
from ctxgcd.config import read
from ctxgcd.pipeline.paths import RUN_CACHE, TOGETHER
from ctxgcd.training.one_run import OneRun
from ctxgcd.utils.files import write_rows
from ctxgcd.utils.reporting import reported


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("benchmarks", nargs="+")
    parser.add_argument("--params", type=Path, default=Path("params.yaml"))
    arguments = parser.parse_args()
    params = read(arguments.params)
    jobs = [json.loads(file.read_text(encoding="utf-8")) for file in sorted(TOGETHER.glob("*.json"))]
    runs = [run for job in jobs for run in job if isinstance(run, dict)]
    lines: list[dict[str, Any]] = []
    for benchmark in arguments.benchmarks:
        split = Path(f"results/splits/{benchmark}.csv")
        for run in runs:
            if run["parameters"]["benchmark"] == benchmark and "k" in run["parameters"]:
                one = OneRun.of(
                    run["parameters"],
                    files={name: Path(file) for name, file in run["files"].items()},
                    split_hash=split.with_suffix(".sha256"),
                    code=run["code"],
                    reader=params.benchmarks[benchmark].reader,
                    work=RUN_CACHE,
                )
                lines += record(one, read_split(split))
    write_rows(FILE, COLUMNS, lines)


if __name__ == "__main__":
    with reported():
        main()
