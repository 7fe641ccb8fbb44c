"""Download backbone weights to the data folder and verify their SHA-256."""

from __future__ import annotations

import argparse

from ctxgcd.models.pretrained import fetch_weights
from ctxgcd.utils.reporting import reported


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--weights", required=True, help="URL of the weights")
    parser.add_argument("--sha256", required=True, help="SHA-256 of the file")
    arguments = parser.parse_args()
    print(f"{fetch_weights(arguments.weights, arguments.sha256)} is available and verified")


if __name__ == "__main__":
    with reported():
        main()
