"""`ctxgcd convert`: writes predictions in the formats of other programs."""

from __future__ import annotations

import argparse
from pathlib import Path

from ctxgcd import api
from ctxgcd.cli.common import Commands, add_command, print_json
from ctxgcd.names import counted


def add(commands: Commands) -> None:
    """Add the command."""
    parser = add_command(
        commands,
        "convert",
        "write predictions in the formats of other programs",
        "Write the predictions of `ctxgcd discover` or `ctxgcd predict` for another program: fiftyone, a JSON file for "
        "FiftyOne; xmp, a sidecar file PATH.xmp in the folder OUT for each image, with the class as a keyword, for "
        "photo managers. Existing files are never overwritten.",
        [
            "ctxgcd convert birds/predictions.csv labels.json --to fiftyone",
            "ctxgcd convert birds/predictions.csv photos --to xmp",
        ],
    )
    parser.add_file("predictions", type=Path, metavar="PREDICTIONS", help="CSV with path and name (or class)")
    parser.add_file("out", type=Path, metavar="OUT", help="the JSON file, or the folder of the images for sidecars")
    parser.add_argument("--to", required=True, metavar="FORMAT", help="fiftyone or xmp")
    parser.add_json()
    parser.set_defaults(call=_call)


def _call(arguments: argparse.Namespace) -> None:
    images = api.convert(arguments.predictions, arguments.out, arguments.to)
    if arguments.json:
        print_json({"images": images, "out": str(arguments.out)})
    else:
        print(f"{counted(images, 'sidecar file' if arguments.to == 'xmp' else 'image')} written to {arguments.out}")
