"""Check the data of the requested benchmarks and print one table; exit status 2 if one is not ready."""

from __future__ import annotations

import argparse
import json
import os
import sys
from pathlib import Path

from ctxgcd.benchmarks import folder_of
from ctxgcd.benchmarks.check import CheckResult, check, table
from ctxgcd.benchmarks.class_lists import load
from ctxgcd.benchmarks.registry import SOURCES
from ctxgcd.errors import reported
from ctxgcd.files import write_text


def check_section(section: dict) -> CheckResult:
    source, listed = SOURCES[section["reader"]], load(section["class_list"], section["classes"])
    return check(section["benchmark"], source, folder_of(section["folder"]), listed, section["images"])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--need", help="check this benchmark alone, and show the others only if it is not ready")
    parser.add_argument("--done", type=Path, help="file to write when the data is ready")
    arguments = parser.parse_args()
    requested = [json.loads(section) for section in json.loads(os.environ["CTXGCD_REQUESTED"])]
    sections = {section["benchmark"]: section for section in requested}
    needed = [sections[arguments.need]] if arguments.need else list(sections.values())
    results = [check_section(section) for section in needed]
    ready = all(result.ready for result in results)
    if not ready or not arguments.need:
        others = [check_section(section) for section in sections.values() if section not in needed]
        print(table([*results, *others]))
    if not ready:
        if arguments.done:
            arguments.done.unlink(missing_ok=True)
        names = ", ".join(result.benchmark for result in results if not result.ready)
        print(f"error: the data of {names} is not ready, so nothing was trained; see the table above", flush=True)
        return 2
    if arguments.done:
        write_text(arguments.done, "".join(f"{result.benchmark} {dict(result.found)}\n" for result in results))
    return 0


if __name__ == "__main__":
    with reported():
        sys.exit(main())
