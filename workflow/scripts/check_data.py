"""Check the data of the requested benchmarks and print one table; exit status 2 if one is not ready."""

from __future__ import annotations

import argparse
from pathlib import Path

from ctxgcd.benchmarks.check import check_requested
from ctxgcd.errors import UserError, reported
from ctxgcd.files import write_text


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--done", type=Path, required=True, help="file to write when all data is ready")
    arguments = parser.parse_args()
    if message := check_requested():
        arguments.done.unlink(missing_ok=True)
        raise UserError(message)
    write_text(arguments.done, "the data of all requested benchmarks was found\n")


if __name__ == "__main__":
    with reported():
        main()
