"""`ctxgcd benchmark`: adds a folder of images to params.yaml as a benchmark."""

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
        "benchmark",
        "add a folder of images to params.yaml as a benchmark",
        "Add images whose classes are all known to params.yaml: the section of a benchmark, with training values that "
        "fit the number of images, and its main table. Other lines and comments are kept.",
        [
            "ctxgcd benchmark flowers ~/pictures/flowers",
            "ctxgcd benchmark flowers_vit ~/pictures/flowers --labelled known.txt --like cub50_vit",
        ],
    )
    parser.add_argument("name", metavar="NAME", help="the benchmark's name: letters, digits and _")
    parser.add_file("folder", type=Path, metavar="FOLDER", help="one folder of images for each class")
    parser.add_file(
        "--labelled",
        default="labelled.txt",
        metavar="FILE",
        help="text file with one labelled class or image per line; the other classes are to be discovered; default: "
        "labelled.txt in FOLDER",
    )
    parser.add_file(
        "--listing", default="", metavar="FILE", help="CSV with path and class of the images, instead of class folders"
    )
    parser.add_argument(
        "--like",
        default="cub50",
        metavar="BENCHMARK",
        help="benchmark of params.yaml whose protocol, length in steps and values of the methods are used; default: "
        "cub50",
    )
    parser.add_file("--params", type=Path, default=Path("params.yaml"), help="default: ./params.yaml")
    parser.add_json()
    parser.set_defaults(call=_call)


def _call(arguments: argparse.Namespace) -> None:
    names = ("labelled", "listing", "like", "params")
    added = api.benchmark(arguments.name, arguments.folder, **{name: getattr(arguments, name) for name in names})
    if arguments.json:
        print_json(added)
        return
    section, name = added["section"], arguments.name
    images = counted(section["images"]["train"] + section["images"]["test"], "image")
    print(
        f"{arguments.params}: added benchmarks.{name} ({images} of {section['classes']} classes, {added['old']} of "
        f"them labelled) and tables.{added['table']}"
    )
    for line in added["adapted"]:
        print(line)
    print(f"next: snakemake check_data results/splits/{name}.csv, then snakemake results/{added['table']}.csv")
