"""Compare the demo's tables with the committed ones in docs/measured/."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from ctxgcd.errors import UserError
from ctxgcd.tables.verify import compare, read_means, verdict
from ctxgcd.utils.reporting import reported

TABLES = ("main_fashion", "ablation_fashion", "sensitivity_fashion")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--results", type=Path, default=Path("results"))
    parser.add_argument("--reference", type=Path, default=Path("docs/measured"))
    arguments = parser.parse_args()
    for folder in (arguments.results, arguments.reference):
        if absent := [table for table in TABLES if not (folder / f"{table}.csv").exists()]:
            raise UserError(f"{folder}/{absent[0]}.csv does not exist; run `snakemake demo` first")
    compared = {}
    for table in TABLES:
        ours, reference = (read_means(f / f"{table}.csv") for f in (arguments.results, arguments.reference))
        compared[table] = compare(ours, reference, table)
    text, passed = verdict(compared)
    print(text)
    sys.exit(not passed)


if __name__ == "__main__":
    with reported():
        main()
