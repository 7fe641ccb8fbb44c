"""`ctxgcd predict`: predicts the classes of new images with the model of a discovery."""

from __future__ import annotations

import argparse
import sys
from contextlib import nullcontext, redirect_stdout
from pathlib import Path

from ctxgcd import api
from ctxgcd.cli.common import Commands, add_command, note, print_json
from ctxgcd.discover.columns import EARLIER, PREDICTED
from ctxgcd.errors import UserError
from ctxgcd.names import counted


def add(commands: Commands) -> None:
    """Add the command."""
    parser = add_command(
        commands,
        "predict",
        "predict the classes of new images",
        "Predict one of the classes that `ctxgcd discover` found for each image of a folder, with a confidence and a "
        "score. An image with a low similarity to all training images is marked as none of these classes.",
        [
            "ctxgcd predict birds/model more_photos",
            "ctxgcd predict birds/model more_photos --false-alarms 0.05 --out more.csv",
        ],
    )
    parser.add_file("model", type=Path, metavar="MODEL", help="the folder OUT/model of a discovery")
    parser.add_file("folder", type=Path, metavar="FOLDER", help="images at any depth")
    parser.add_file("--out", type=Path, default=Path("predictions.csv"), help="default: ./predictions.csv")
    parser.add_argument(
        "--threshold",
        type=float,
        help="similarity below which an image is none of the classes; default: set by --false-alarms",
    )
    parser.add_argument(
        "--false-alarms",
        type=float,
        metavar="SHARE",
        help="share of the images of these classes that may be marked as none of them, 0 to 1; default: 0.01. A larger "
        "share marks more images of other classes",
    )
    parser.add_json()
    parser.set_defaults(call=_call)


def _call(arguments: argparse.Namespace) -> None:
    from ctxgcd.utils.files import replacing, require_writable

    out = arguments.out
    if out.exists() and not out.is_dir() and not _is_a_prediction(out):
        raise UserError(f"{out} exists and was not written by `ctxgcd predict`; choose another file with --out")
    require_writable(out)
    with redirect_stdout(sys.stderr):  # progress
        table, about = api.predict(
            arguments.model, arguments.folder, threshold=arguments.threshold, false_alarms=arguments.false_alarms
        )
    for path, reason in about["unreadable"].items():
        note(f"{path} is skipped: {reason}")
    with replacing(arguments.out) as temporary:
        table.to_csv(temporary, index=False, lineterminator="\n")
    none = int(table["none_of_these"].sum())
    if arguments.json:
        print_json({"images": len(table), "none_of_these": none, "out": str(arguments.out), **about})
        return
    print(
        f"{counted(len(table), 'image')} classified, {none:,} of them none of these classes ({about['by']} below "
        f"{about['threshold']:.4f}); written to {arguments.out}"
    )


def _is_a_prediction(file: Path) -> bool:
    with open(file, encoding="utf-8", errors="replace") if file.is_file() else nullcontext(("",)) as lines:
        return next(iter(lines), "").rstrip("\n") in (",".join(PREDICTED), ",".join(EARLIER))
