"""`ctxgcd discover`: finds the classes of a folder of images from a few labels."""

from __future__ import annotations

import argparse
import sys
from contextlib import redirect_stdout
from pathlib import Path
from typing import Literal

from ctxgcd import api
from ctxgcd.cli.common import Commands, add_command, print_json
from ctxgcd.discover.sentences import on_estimate
from ctxgcd.errors import UserError
from ctxgcd.names import counted


def add(commands: Commands) -> None:
    """Add the command."""
    parser = add_command(
        commands,
        "discover",
        "find the classes of your own images from a few labels",
        "Assign a class to every image of a folder: one of the labelled classes, or a new class. Writes "
        "predictions.csv, report.html and a reusable model to OUT. Run an interrupted command again to resume it. "
        "After corrections with `ctxgcd label`, the same OUT continues from its model and learns from them.",
        [
            "ctxgcd discover photos --labels labels.csv --classes 50 --out birds",
            "ctxgcd discover photos --labels folders --out birds",
            "ctxgcd discover photos --classes 50 --out birds",
        ],
    )
    parser.add_file("folder", type=Path, metavar="FOLDER", help="images at any depth")
    parser.add_file(
        "--labels",
        type=Path,
        help="CSV with path (relative to FOLDER) and class of labelled images; or the word folders: the folders "
        "directly in FOLDER are the classes of their images, except `unlabelled` and `new-1`, `new-2`, ...; without "
        "it, --classes is required and all classes are new; if OUT has corrections, the default are its labels",
    )
    parser.add_file("--out", type=Path, required=True, help="a new folder, or the folder of the discovery to resume")
    parser.add_argument(
        "--classes",
        type=_classes,
        default="auto",
        metavar="K",
        help="number of known and new classes together; default: auto, a rough estimate, or that of OUT if it has "
        "corrections",
    )
    parser.add_argument("--preset", default="quick", help="quick (default), or long: the full schedule, for a GPU")
    parser.add_argument(
        "--backbone",
        help="efficientnet_lite0, dino_vitb16, dinov2_vits14_focus or, with --weights, a timm model; default: set by "
        "--preset",
    )
    parser.add_file("--weights", type=Path, help="file with the backbone's weights")
    parser.add_argument("--size", type=int, metavar="PIXELS", help="side of the square views; default: set by --preset")
    parser.add_argument(
        "--balance",
        type=float,
        metavar="WEIGHT",
        help="weight of the entropy term, which favours classes of equal size, 0 or more; decrease it for classes of "
        "very unequal sizes; default: 1 in both presets",
    )
    parser.add_argument("--seed", type=int, default=0, help="training seed, 0 to 4294967295; default: 0")
    parser.add_json()
    parser.set_defaults(call=_call)


def _classes(text: str) -> int | Literal["auto"]:
    if text == "auto":
        return "auto"
    if not text.isdecimal():
        raise UserError(f"--classes is {text!r}; give auto or the number of known and new classes together")
    return int(text)


def _call(arguments: argparse.Namespace) -> None:
    names = ("classes", "preset", "backbone", "weights", "size", "balance", "seed")
    with redirect_stdout(sys.stderr):  # progress
        found = api.discover(
            arguments.folder, arguments.labels, arguments.out, **{name: getattr(arguments, name) for name in names}
        )
    if arguments.json:
        print_json(found)
        return
    unlabelled = found["images"] - found["labelled"]
    before = f"known before: {found['known']}" if found["known"] else f"no labels: all {found['K']} classes are new"
    classes = f"{counted(found['found'], 'class')}; {before}"
    print(f"{counted(unlabelled, 'image', 'unlabelled')} in {classes}")
    checked = [] if found["changed"] else found["check"]["said"]  # it is one of the discovery that is continued
    for line in (*on_estimate(found), *checked, *found["corrected"], *found["changed"]):
        print(line)
    print(f"report: {arguments.out / 'report.html'}; predictions: {arguments.out / 'predictions.csv'}")
