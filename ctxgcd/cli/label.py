"""`ctxgcd label`: names, merges and corrects the classes of a discovery."""

from __future__ import annotations

import argparse
import sys
from contextlib import redirect_stdout
from pathlib import Path

from ctxgcd import api
from ctxgcd.cli.common import Commands, add_command, print_json
from ctxgcd.names import counted


def add(commands: Commands) -> None:
    """Add the command."""
    parser = add_command(
        commands,
        "label",
        "name, merge and correct the classes of a discovery",
        "Correct the results of `ctxgcd discover`. predictions.csv, report.html and the model's names change at once, "
        "without training; the corrections are added to OUT/corrections.csv. Then `ctxgcd discover` with the same OUT "
        "learns from the images that you moved or confirmed.",
        [
            "ctxgcd label birds new-5=sunflower new-2,new-7=leopard",
            "ctxgcd label birds birds/predictions.csv",
            "ctxgcd label birds --undo",
        ],
    )
    parser.add_file("out", type=Path, metavar="OUT", help="the folder of the results of a discovery")
    parser.add_file(
        "corrections",
        nargs="*",
        metavar="CORRECTION",
        help="NUMBER=NAME names a class; NUMBER,NUMBER=NAME merges the first into the last one; or one file: the "
        "corrections.csv of the report, an edited predictions.csv, or a CSV with path and class",
    )
    parser.add_argument("--undo", action="store_true", help="take back the last correction that is not taken back yet")
    parser.add_json()
    parser.set_defaults(call=_call)


def _call(arguments: argparse.Namespace) -> None:
    with redirect_stdout(sys.stderr):  # progress
        found = api.label(arguments.out, *arguments.corrections, undo=arguments.undo)
    if arguments.json:
        print_json(found)
        return
    for line in found["corrected"] or ["No corrections."]:
        print(line)
    unlabelled = found["images"] - found["labelled"]
    print(f"{counted(unlabelled, 'image', 'unlabelled')} in {counted(found['found'], 'class')}")
    print(f"report: {arguments.out / 'report.html'}; predictions: {arguments.out / 'predictions.csv'}")
