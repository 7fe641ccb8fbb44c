"""Load a backbone's weights, check every key, and write them with timm's keys."""

from __future__ import annotations

import argparse
from pathlib import Path

from ctxgcd.models.weights import prepare
from ctxgcd.pipeline import code
from ctxgcd.utils.reporting import reported


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", required=True, help="a timm model name")
    parser.add_argument("--crop", type=int, required=True, help="pixels of the square crop")
    parser.add_argument("--weights", required=True, help="hub, package, a URL, or the path of a file")
    parser.add_argument("--sha256", required=True, help="SHA-256 of the file; empty: not checked")
    parser.add_argument("--code", required=True, help="hash of the code, contained in the file name")
    parser.add_argument("--out", type=Path, required=True)
    arguments = parser.parse_args()
    code.refuse_changed(arguments.code, code.script(code.WEIGHTS))
    digest = prepare(arguments.model, arguments.weights, arguments.crop, arguments.out, arguments.sha256)
    print(f"weights of {arguments.model}: all keys match, sha256 {digest}")


if __name__ == "__main__":
    with reported():
        main()
