"""Download the official files of one benchmark that needs no account; an interrupted download is resumed."""

from __future__ import annotations

import argparse
import sys

from ctxgcd.benchmarks.fetching.archives import fetch
from ctxgcd.benchmarks.places import folder_of
from ctxgcd.benchmarks.readers.registry import READERS
from ctxgcd.utils.reporting import reported


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--reader", choices=READERS, required=True, help="the benchmark's reader in params.yaml")
    parser.add_argument("--folder", required=True, help="the benchmark's folder in params.yaml")
    arguments = parser.parse_args()
    by_hand = "manually: " + READERS[arguments.reader].how_to_get.rpartition("manually: ")[2]
    try:
        fetch(arguments.reader, folder_of(arguments.folder), by_hand)
    except KeyboardInterrupt:
        print("\ninterrupted; run the same command again to resume", file=sys.stderr, flush=True)
        sys.exit(130)


if __name__ == "__main__":
    with reported():
        main()
