"""Write dvc.yaml from params.yaml, or check that it is up to date."""

from __future__ import annotations

import argparse
from pathlib import Path

import yaml

from ctxgcd.config import read
from ctxgcd.errors import UserError
from ctxgcd.pipeline.dvc_stages import stages
from ctxgcd.utils.files import write_text
from ctxgcd.utils.reporting import reported

HEADER = "# Generated from params.yaml by `make dvc.yaml`; do not edit. The stages: ctxgcd/pipeline/dvc_stages.py.\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--params", type=Path, default=Path("params.yaml"))
    parser.add_argument("--out", type=Path, default=Path("dvc.yaml"))
    parser.add_argument("--check", action="store_true", help="write nothing; exit status 2 if the file is out of date")
    arguments = parser.parse_args()
    text = HEADER + yaml.safe_dump(stages(read(arguments.params)), sort_keys=False, default_flow_style=None, width=1000)
    if not arguments.check:
        write_text(arguments.out, text)
    elif not arguments.out.is_file() or arguments.out.read_text(encoding="utf-8") != text:
        raise UserError(f"{arguments.out} is out of date with {arguments.params}; run `make dvc.yaml`")


if __name__ == "__main__":
    with reported():
        main()
