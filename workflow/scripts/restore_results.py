"""Pull the recorded results and keep those that match the current params.yaml and code."""

from __future__ import annotations

import argparse
from pathlib import Path

from ctxgcd.config import read
from ctxgcd.pipeline.restore import restore
from ctxgcd.utils.reporting import reported


def main() -> None:
    argparse.ArgumentParser(description=__doc__).parse_args()
    restore(read(Path("params.yaml")))


if __name__ == "__main__":
    with reported():
        main()
