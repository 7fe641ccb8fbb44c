"""`ctxgcd diff`: prints the values that differ between two settings or two rows."""

from __future__ import annotations

import argparse
from pathlib import Path

from ctxgcd import api
from ctxgcd.cli.common import Commands, add_command, print_json, print_table
from ctxgcd.names import NOT_IN_PAPER

REMARKS = dict.fromkeys(NOT_IN_PAPER, "not in the paper")
REMARKS["variant"] = "different formulas of L_n and L_c and a different batch: docs/methods.md"
NOT_READ = "-"


def add(commands: Commands) -> None:
    """Add the command."""
    parser = add_command(
        commands,
        "diff",
        "print the values that differ between two settings or two rows",
        "Print every value that differs between two named settings of params.yaml or two rows of a benchmark.",
        [
            "ctxgcd diff default scripts",
            "ctxgcd diff default scripts --benchmark cub",
            "ctxgcd diff full-paper full-paper+tau=1.0 --benchmark cub --json",
        ],
    )
    parser.add_argument("first", help="a name under `settings` in params.yaml, or a row such as full-paper")
    parser.add_argument("second", help="another name of the same kind")
    parser.add_argument("--benchmark", help="compare the values for this benchmark; required for rows")
    parser.add_file("--params", type=Path, default=Path("params.yaml"), help="default: ./params.yaml")
    parser.add_json()
    parser.set_defaults(call=_call)


def _call(arguments: argparse.Namespace) -> None:
    first, second = arguments.first, arguments.second
    found = api.diff(first, second, benchmark=arguments.benchmark, params=arguments.params)
    if arguments.json:
        print_json({key: {"first": values[0], "second": values[1]} for key, values in found.items()})
    elif not found:
        print(f"{first} and {second} have the same values")
    else:
        rows = [
            (
                key,
                *(NOT_READ if value is None else str(value) for value in values),
                REMARKS.get(key.rpartition(".")[2], ""),
            )
            for key, values in found.items()
        ]
        print_table(("value", first, second, ""), rows)
