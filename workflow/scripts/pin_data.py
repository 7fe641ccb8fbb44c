"""Write or check the SHA-256 of every file in a data folder, for data that is too large to copy."""

from __future__ import annotations

import argparse
from pathlib import Path

from ctxgcd.benchmarks.fetching.pins import check_pins, write_pins
from ctxgcd.utils.reporting import reported


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("action", choices=("write", "check"))
    parser.add_argument("folder", type=Path, help="data folder, for example data/raw/imagenet")
    parser.add_argument("pins", type=Path, help="text file of hashes, for example data/pins/imagenet.sha256")
    arguments = parser.parse_args()
    act = write_pins if arguments.action == "write" else check_pins
    count = act(arguments.folder, arguments.pins)
    print(f"{count:,} files of {arguments.folder} " + ("pinned" if act is write_pins else "are as pinned"))


if __name__ == "__main__":
    with reported():
        main()
