"""Split a benchmark into labelled, unlabelled and test images; also write the split's hash and its sources."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import TYPE_CHECKING, cast

from ctxgcd.benchmarks.class_lists import load
from ctxgcd.benchmarks.places import place_of
from ctxgcd.benchmarks.readers.reader import read_manifest
from ctxgcd.benchmarks.readers.registry import reader_of
from ctxgcd.benchmarks.split import make_split, trial_split
from ctxgcd.benchmarks.split_file import write_split
from ctxgcd.pipeline.code import manifest as manifest_code
from ctxgcd.pipeline.code import split as split_code
from ctxgcd.pipeline.possible import check_requested
from ctxgcd.utils.files import write_text
from ctxgcd.utils.reporting import reported

if TYPE_CHECKING:
    from ctxgcd.benchmarks.readers.own_images import OwnImages


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--benchmark", type=json.loads, required=True, help="the benchmark's section as JSON")
    parser.add_argument("--place", type=json.loads, required=True, help="location of the user's own images as JSON")
    parser.add_argument("--data", required=True, help="fingerprint of the raw data")
    parser.add_argument("--manifest", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--hash", type=Path, required=True)
    parser.add_argument("--source", type=Path, required=True, help="output file with the sources of the split")
    arguments = parser.parse_args()
    section = arguments.benchmark | arguments.place
    reader = reader_of(section)
    draw = {"seed": section["seed"], "labelled_share": section["labelled_share"]}
    manifest = read_manifest(arguments.manifest)
    if section["reader"] == "folder":
        listed, labelled = cast("OwnImages", reader).divide(place_of(section), manifest, section["benchmark"])
    else:
        listed, labelled = load(section["class_list"], section["classes"]), None
    split = make_split(manifest, listed, **draw, drawn_order=reader.drawn_order, labelled_paths=labelled)
    if section.get("trial"):
        split = trial_split(split, **draw)
    check_requested(section["benchmark"], split)
    write_split(split, arguments.out, arguments.hash)
    record = {
        "fingerprint": arguments.data,
        "class_list": {"name": listed.name, "source": listed.source, "sha256": listed.sha256},
        "modules": (manifest_code(section["reader"]) | split_code(section["reader"])).modules,
        "split_sha256": arguments.hash.read_text(encoding="utf-8").strip(),
    }
    write_text(arguments.source, json.dumps(record, indent=1) + "\n")
    print(f"classes of {listed.name}: {len(listed.old)} old, {len(listed.new)} new (sha256 {listed.sha256[:16]})")
    counts = split.role.value_counts()
    print(", ".join(f"{counts.get(role, 0)} {role}" for role in ("labelled", "unlabelled", "test")))


if __name__ == "__main__":
    with reported():
        main()
