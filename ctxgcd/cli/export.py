"""`ctxgcd export`: writes the model of a discovery as ONNX."""

from __future__ import annotations

import argparse
import sys
from contextlib import redirect_stdout
from pathlib import Path

from ctxgcd import api
from ctxgcd.cli.common import Commands, add_command, print_json


def add(commands: Commands) -> None:
    """Add the command."""
    parser = add_command(
        commands,
        "export",
        "write the model of a discovery as ONNX",
        "Write the model of `ctxgcd discover` to one ONNX file and compare its outputs with PyTorch's. Requires the "
        "extra `export`.",
        ["ctxgcd export birds/model birds.onnx", "ctxgcd export birds/model birds.onnx --json"],
    )
    parser.add_file("model", type=Path, metavar="MODEL", help="the folder OUT/model of a discovery")
    parser.add_file("out", type=Path, metavar="FILE", help="the ONNX file to write")
    parser.add_json()
    parser.set_defaults(call=_call)


def _call(arguments: argparse.Namespace) -> None:
    with redirect_stdout(sys.stderr):  # the exporter's messages
        about = api.export(arguments.model, arguments.out)
    if arguments.json:
        print_json({"out": str(arguments.out), **about})
    else:
        print(f"{arguments.out} written; its outputs differ from PyTorch's by at most {about['difference']:.1g}")
