"""Copy a benchmark's tables and figures to docs/measured/ with their origin, and some to README.md and docs/."""

from __future__ import annotations

import argparse
import re
import shutil
from pathlib import Path
from typing import Any

from ctxgcd.config import PAIRED, read
from ctxgcd.errors import UserError
from ctxgcd.pipeline.paths import table_files
from ctxgcd.pipeline.targets import benchmark_files
from ctxgcd.utils.files import read_object, write_text
from ctxgcd.utils.reporting import reported

OUT = Path("docs/measured")
MARK = "<!-- measured: {} -->"
SHORT = ", in short"  # in a mark: only the table, without notes
PAGES = [Path("README.md"), *(Path("docs", f"{page}.md") for page in ("quick_start", "findings", "speed"))]


def origin(metrics: list[dict[str, Any]]) -> str:
    """Return the origin of the numbers: commits, devices, versions, time and memory over all runs."""

    def values(key: str) -> str:
        return ", ".join(sorted({str(run["environment"].get(key, "-")) for run in metrics}))

    commits = ", ".join(sorted({run["commit"] for run in metrics}))
    seconds = sum(run["seconds"] for run in metrics)
    memory = max(run["peak_memory_mb"] for run in metrics)
    return (
        f"{len(metrics)} runs, {seconds:.0f} s of training and evaluation in all, at most {memory} MiB a run. "
        f"Commit {commits}. Device {values('device')}. Python {values('python')}, torch {values('torch')}, "
        f"timm {values('timm')}, numpy {values('numpy')}, scikit-learn {values('scikit-learn')}."
    )


def publish(name: str) -> None:
    params = read(Path("params.yaml"))
    if f"main_{name}" in params.tables and name not in params.benchmarks:  # a table over several benchmarks
        benchmarks, target = params.tables[f"main_{name}"], f"results/main_{name}.csv"
        files = [Path(file) for file in table_files(f"main_{name}")]
    else:
        benchmarks, target = [name], f"benchmark_{name}"
        files = [Path(file) for file in benchmark_files(params, name)]
    for kind in PAIRED:  # not part of another target, so only copied if they were made
        own = [Path(file) for file in table_files(f"{kind}_{name}")]
        files += own if own[0].exists() else []
    shown_kinds = {".csv", ".md", ".png"}
    wanted = [f for f in files if f.suffix in shown_kinds and "runs" not in f.parts and "duplicates" not in f.stem]
    shown = [file for file in wanted if file.exists()]
    if not shown:
        raise UserError(f"{wanted[0]} does not exist; run `snakemake {target}` before publishing it")
    OUT.mkdir(parents=True, exist_ok=True)
    runs = [run for of in benchmarks for run in sorted(Path("results/runs", of).glob("*/seed*/metrics.json"))]
    page = [f"# Measured: {name}\n", origin([read_object(run) for run in runs]) + "\n"]
    if absent := [file.name for file in wanted if file not in shown]:
        page.append(f"Not made: {', '.join(absent)}.\n")
    for file in shown:
        shutil.copy(file, OUT / file.name)
        if file.suffix == ".md":
            page.append(file.read_text(encoding="utf-8"))
        elif file.suffix == ".png":
            page.append(f"![{file.stem}]({file.name})\n")
    write_text(OUT / f"{name}.md", "\n".join(page))
    for place in PAGES:
        marks = MARK.format(rf"(\w+_{name})({SHORT})?")
        for table, short in re.findall(marks, place.read_text(encoding="utf-8"))[::2]:
            text = (OUT / f"{table}.md").read_text(encoding="utf-8")
            show_in(place, table + short, in_short(text) if short else page[1] + "\n" + text)


def in_short(table: str) -> str:
    """Return the heading and the rows of a published table, without notes and values per seed."""
    heading, rows = table.strip().split("\n\n")[:2]
    return f"{heading.lstrip('# ')}:\n\n{rows}"


def show_in(page: Path, name: str, text: str) -> None:
    """Replace the text between two marks of a page by a measured text."""
    mark = re.escape(MARK.format(name))
    before = page.read_text(encoding="utf-8")
    between = f"{MARK.format(name)}\n{text.strip()}\n{MARK.format(name)}"
    after, count = re.subn(f"{mark}.*?{mark}", lambda _: between, before, flags=re.DOTALL)
    if count != 1:
        raise UserError(f"{page} has no pair of marks '{MARK.format(name)}'; add them at the position of the table")
    write_text(page, after)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    text = "benchmarks whose results are complete, or NAME of a table main_NAME over several benchmarks"
    parser.add_argument("names", nargs="+", help=text)
    for name in parser.parse_args().names:
        publish(name)


if __name__ == "__main__":
    with reported():
        main()
