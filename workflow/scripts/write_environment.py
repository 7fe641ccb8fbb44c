"""Write workflow/envs/ctxgcd.yaml, the environment of the rules, from the lock file."""

from __future__ import annotations

import argparse
from pathlib import Path

import yaml

from ctxgcd.utils.files import write_text


def environment(lock: str) -> str:
    """Return the conda environment with the packages of a lock file."""
    pins = [line for line in lock.splitlines() if line and not line.startswith("#")]
    content = {"channels": ["conda-forge"], "dependencies": ["python=3.11", "pip", {"pip": pins}]}
    header = "# Generated from requirements.lock by `make lock`; a test compares the two.\n"
    return header + yaml.safe_dump(content, width=200)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--lock", type=Path, default=Path("requirements.lock"))
    parser.add_argument("--out", type=Path, default=Path("workflow/envs/ctxgcd.yaml"))
    arguments = parser.parse_args()
    write_text(arguments.out, environment(arguments.lock.read_text(encoding="utf-8")))


if __name__ == "__main__":
    main()
