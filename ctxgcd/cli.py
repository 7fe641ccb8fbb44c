"""The `ctxgcd` command."""

from __future__ import annotations

import argparse
import re
from pathlib import Path

from ctxgcd.config import Params, read
from ctxgcd.errors import UserError, nearest, reported
from ctxgcd.names import METHODS, NOT_IN_PAPER
from ctxgcd.runs import ROW, resolve

REMARKS = dict.fromkeys(NOT_IN_PAPER, "not in the paper")
REMARKS["variant"] = "other formulas of L_n, L_c and the batch: docs/methods.md"


def main() -> None:
    """Entry point of the `ctxgcd` command."""
    parser = argparse.ArgumentParser(
        prog="ctxgcd", description="Generalized category discovery with contextual losses."
    )
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    diff = commands.add_parser("diff", help="print what differs between two settings, or between two rows")
    diff.add_argument("first", help="a name under `settings` in params.yaml, or a row such as full-paper")
    diff.add_argument("second", help="another one of the same kind")
    diff.add_argument("--benchmark", help="with the values that hold for this benchmark; needed for rows")
    diff.add_argument("--params", type=Path, default=Path("params.yaml"), help="default: ./params.yaml")
    diff.set_defaults(
        call=lambda a: print(differences(read(a.params), a.first, a.second, a.benchmark)),
    )
    arguments = parser.parse_args()
    with reported():
        arguments.call(arguments)


def differences(params: Params, first: str, second: str, benchmark: str | None) -> str:
    """A table of every value that differs between two named settings or two rows.

    Values that the paper does not give are marked. Raises UserError for an unknown name.
    """
    kinds = [name in params.settings for name in (first, second)]
    if benchmark is not None and kinds[0] != kinds[1]:
        named, row = (first, second) if kinds[0] else (second, first)
        raise UserError(f"'{named}' names settings and '{row}' is a row; give two of one kind")
    both = [values_of(params, name, benchmark) for name in (first, second)]
    missing = "-"  # the row does not read this value
    lines = [
        (key, *(str(values.get(key, missing)) for values in both), REMARKS.get(key, ""))
        for key in dict.fromkeys([*both[0], *both[1]])
        if key != "row" and both[0].get(key, missing) != both[1].get(key, missing)
    ]
    if not lines:
        return f"{first} and {second} have the same values"
    rows = [("value", first, second, ""), *lines]
    widths = [max(len(row[column]) for row in rows) for column in range(3)]
    return "\n".join("  ".join([*map(str.ljust, row, widths), row[3]]).rstrip() for row in rows)


def values_of(params: Params, name: str, benchmark: str | None) -> dict[str, object]:
    """The values of named settings, or of a row of a benchmark, by key."""
    if name not in params.settings:
        if benchmark is None:
            if ROW.fullmatch(name) and re.split("[-+]", name)[0] in METHODS:
                raise UserError(f"'{name}' is a row, whose values depend on the benchmark; add --benchmark NAME")
            raise UserError(
                f"'{name}' is no name under settings{nearest(name, params.settings)}; give one of "
                f"{', '.join(params.settings)}, or a row together with --benchmark"
            )
        return resolve(params, benchmark, name, params.seeds[0])
    if benchmark is None:
        return params.settings[name].model_dump()
    row = resolve(params, benchmark, f"full-paper+settings={name}", params.seeds[0])
    return {key: row[key] for key in row if key in type(params.settings[name]).model_fields}


if __name__ == "__main__":
    main()
