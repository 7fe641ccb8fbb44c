"""`ctxgcd sort`: copies the images of a discovery into one folder for each class."""

from __future__ import annotations

import argparse
from pathlib import Path

from ctxgcd import api
from ctxgcd.cli.common import Commands, add_command, note, print_json
from ctxgcd.names import counted


def add(commands: Commands) -> None:
    """Add the command."""
    parser = add_command(
        commands,
        "sort",
        "copy the images of a discovery into one folder for each class",
        "Copy or link the images of a discovery, labelled ones too, into FOLDER/CLASS/. No file is overwritten. "
        "FOLDER/sorted.csv lists what was written, and --undo deletes these files if they were not changed since.",
        [
            "ctxgcd sort birds sorted_birds",
            "ctxgcd sort birds sorted_birds --link",
            "ctxgcd sort birds sorted_birds --undo",
        ],
    )
    parser.add_file("out", type=Path, metavar="OUT", help="the folder of the results of a discovery")
    parser.add_file("folder", type=Path, metavar="FOLDER", help="a folder outside that of the images")
    parser.add_argument("--link", action="store_true", help="make symbolic links instead of copies")
    parser.add_argument("--undo", action="store_true", help="delete the files that were written, if they are unchanged")
    parser.add_json()
    parser.set_defaults(call=_call)


def _call(arguments: argparse.Namespace) -> None:
    from ctxgcd.utils.user_tables import listed

    done = api.sort(arguments.out, arguments.folder, link=arguments.link, undo=arguments.undo)
    if done["absent"]:
        note(f"{counted(len(done['absent']), 'image')} not found and skipped: {listed(done['absent'])}")
    if done["kept"]:
        note(f"{counted(len(done['kept']), 'file')} changed since and kept: {listed(done['kept'])}")
    if arguments.json:
        print_json(done)
    elif arguments.undo:
        print(f"{counted(done['images'], 'file')} deleted from {arguments.folder}")
    else:
        where = f"{counted(done['classes'], 'folder')} of {arguments.folder}"
        written, there = done["written"], done["images"] - done["written"]
        before = f"; {counted(there, 'image')} {'was' if there == 1 else 'were'} there already" if there else ""
        print(f"{counted(written, 'image')} {'linked' if arguments.link else 'copied'} into {where}{before}")
