"""Write a benchmark's manifest: every image of its official files."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from ctxgcd.benchmarks.places import place_of
from ctxgcd.benchmarks.readers.registry import reader_of
from ctxgcd.utils.files import replacing
from ctxgcd.utils.reporting import reported


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--benchmark", type=json.loads, required=True, help="the benchmark's section as JSON")
    parser.add_argument("--place", type=json.loads, required=True, help="location of the user's own images as JSON")
    parser.add_argument("--out", type=Path, required=True)
    arguments = parser.parse_args()
    section = arguments.benchmark | arguments.place
    manifest = reader_of(section).manifest(place_of(section))
    with replacing(arguments.out) as temporary:
        manifest.to_csv(temporary, index=False, lineterminator="\n")
    print(f"{len(manifest)} images of {manifest.class_id.nunique()} classes listed")


if __name__ == "__main__":
    with reported():
        main()
