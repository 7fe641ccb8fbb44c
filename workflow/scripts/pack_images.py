"""Resize the shorter side of a benchmark's images once, and pack them in the order of their ids."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from ctxgcd.benchmarks.places import place_of
from ctxgcd.benchmarks.split_file import read_split
from ctxgcd.images.pack import pack
from ctxgcd.pipeline import code
from ctxgcd.pipeline.possible import check_requested
from ctxgcd.utils.reporting import reported


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--images", type=json.loads, required=True, help="reader, folder and resize as JSON")
    parser.add_argument("--place", type=json.loads, required=True, help="location of the user's own images as JSON")
    parser.add_argument("--split", type=Path, required=True)
    parser.add_argument("--workers", type=int, required=True, help="number of processes that decode images")
    parser.add_argument("--code", required=True, help="hash of the code, contained in the file name")
    parser.add_argument("--out", type=Path, required=True)
    arguments = parser.parse_args()
    images = arguments.images
    code.refuse_changed(arguments.code, code.pack(images["reader"]))
    split = read_split(arguments.split)
    check_requested(images["benchmark"], split)
    paths = split.sort_values("id").path.tolist()
    folder = place_of(images | arguments.place)
    digest = pack(images["reader"], folder, paths, images["resize"], arguments.out, arguments.workers)
    print(f"{len(paths)} images packed, sha256 {digest}")


if __name__ == "__main__":
    with reported():
        main()
