"""Check a benchmark's data and write its manifest: every image of its official files."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from ctxgcd.benchmarks import folder_of
from ctxgcd.benchmarks.check import check_requested, check_section, not_ready, table
from ctxgcd.benchmarks.registry import SOURCES
from ctxgcd.errors import UserError, reported
from ctxgcd.files import replacing


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--benchmark", type=json.loads, required=True, help="the benchmark's section as JSON")
    parser.add_argument("--out", type=Path, required=True)
    arguments = parser.parse_args()
    section = arguments.benchmark
    if not check_section(section).ready:
        results = check_requested()  # all that is missing at once, not this benchmark's alone
        print(table(results))
        raise UserError(not_ready(results) or f"the data of {section['benchmark']} is not ready; run check_data")
    manifest = SOURCES[section["reader"]].manifest(folder_of(section["folder"]))
    with replacing(arguments.out) as temporary:
        manifest.to_csv(temporary, index=False, lineterminator="\n")
    print(f"{len(manifest)} images of {manifest.class_id.nunique()} classes listed")


if __name__ == "__main__":
    with reported():
        main()
