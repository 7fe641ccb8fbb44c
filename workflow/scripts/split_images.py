"""Split a benchmark into labelled, unlabelled and test images, and write the split's hash beside it."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from ctxgcd.benchmarks.class_lists import load
from ctxgcd.benchmarks.registry import SOURCES
from ctxgcd.benchmarks.source import read_manifest
from ctxgcd.benchmarks.split import make_split, trial_split, write_split
from ctxgcd.errors import reported


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--benchmark", type=json.loads, required=True, help="the benchmark's section as JSON")
    parser.add_argument("--manifest", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--hash", type=Path, required=True)
    arguments = parser.parse_args()
    section = arguments.benchmark
    listed = load(section["class_list"], section["classes"])
    draw = {"seed": section["seed"], "labelled_share": section["labelled_share"]}
    manifest = read_manifest(arguments.manifest)
    split = make_split(manifest, listed, **draw, drawn_order=SOURCES[section["reader"]].drawn_order)
    if section["trial"]:
        split = trial_split(split, **draw)
    write_split(split, arguments.out, arguments.hash)
    counts = split.role.value_counts()
    print(", ".join(f"{counts.get(role, 0)} {role}" for role in ("labelled", "unlabelled", "test")))


if __name__ == "__main__":
    with reported():
        main()
