"""Check the data of one or all requested benchmarks and print a table; exit status 2 if data is not ready."""

from __future__ import annotations

import argparse
import json
import os
from pathlib import Path

from ctxgcd.benchmarks.check import check_section
from ctxgcd.errors import UserError
from ctxgcd.pipeline.data_check import check_requested
from ctxgcd.pipeline.jobs import Jobs, read_params
from ctxgcd.utils.files import write_text
from ctxgcd.utils.reporting import reported


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    which = parser.add_mutually_exclusive_group(required=True)
    which.add_argument("--benchmark", type=json.loads, nargs="+", help="parts of one benchmark's section as JSON")
    which.add_argument("--done", type=Path, help="file to write when the data of all requested benchmarks is ready")
    arguments = parser.parse_args()
    # Passed in the environment and not by the rules, so that other targets do not run the check again.
    jobs = Jobs(read_params(Path(os.environ["CTXGCD_PARAMS"])))
    requested = [jobs.check(benchmark) for benchmark in os.environ["CTXGCD_REQUESTED"].split()]
    if arguments.benchmark:
        section = {key: value for part in arguments.benchmark for key, value in part.items()}
        if not check_section(section).ready:
            # Report the missing data of all requested benchmarks.
            missing = check_requested(requested) or f"the data of {section['benchmark']} is not ready"
            raise UserError(f"{missing}, so nothing was trained; run `snakemake check_data` to see what is missing")
        return
    if missing := check_requested(requested):
        arguments.done.unlink(missing_ok=True)
        raise UserError(f"{missing}; the table above shows what is missing and how to get it")
    write_text(arguments.done, "the data of all requested benchmarks was found\n")


if __name__ == "__main__":
    with reported():
        main()
