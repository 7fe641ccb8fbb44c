"""Parsing and printing shared by all commands."""

from __future__ import annotations

import argparse
import json
import sys
import textwrap
from collections.abc import Sequence
from itertools import takewhile
from typing import Any, NoReturn, TypeAlias

from ctxgcd.errors import UserError, nearest, shown
from ctxgcd.utils.terminal import BOLD, styled

Commands: TypeAlias = "argparse._SubParsersAction[Parser]"


class Parser(argparse.ArgumentParser):
    """A parser that raises UserError for invalid arguments and keeps the lines of the examples.

    Options cannot be abbreviated: an abbreviation could mean another option in a later version.
    """

    def __init__(self, **options: Any) -> None:
        super().__init__(formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False, **options)

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Parse as argparse does, but refuse unknown arguments here, so that the message names this command's help."""
        words = list(sys.argv[1:] if args is None else args)
        later = {"--", *(self.get_default("commands") or ())}  # words after a command are those of its own parser
        for word in takewhile(lambda word: word not in later, words):
            name = word.partition("=")[0]
            if name.startswith("--") and " " not in name and name not in self._option_string_actions:
                self.error(f"unknown option '{name}'{nearest(name, self._option_string_actions)}")
        found, unknown = super().parse_known_args(words, namespace)
        for action in self._get_positional_actions():
            if action.nargs == "*" and not any(word.startswith("-") for word in unknown):  # words after an option
                setattr(found, action.dest, [*(getattr(found, action.dest) or ()), *unknown])
                unknown = []
        if unknown:
            self.error(f"unrecognized arguments: {' '.join(unknown)}")
        return found, unknown

    def error(self, message: str) -> NoReturn:
        raise UserError(f"{message}; see {self.prog} --help")

    def add_file(self, *names: str, **options: Any) -> None:
        """Add an argument that is a file name, with file completion in shells."""
        self.add_argument(*names, **options).complete = "file"  # type: ignore[attr-defined]

    def add_json(self) -> None:
        """Add --json, an option of every command that prints results."""
        self.add_argument("--json", action="store_true", help="print JSON with full precision")


def add_command(commands: Commands, name: str, purpose: str, details: str, examples: Sequence[str]) -> Parser:
    """Add a command's parser, with a line for the list of commands, a description and runnable examples."""
    shown = "\n  ".join(["examples:", *examples])
    return commands.add_parser(name, help=purpose, description=textwrap.fill(details, 80), epilog=shown)


def print_json(content: Any) -> None:
    """Print as JSON."""
    print(json.dumps(content, indent=1, ensure_ascii=False))


def print_table(head: Sequence[str], rows: Sequence[Sequence[str]], numbers: bool = False) -> None:
    """Print aligned columns below a bold header; with `numbers`, all columns except the first are right-aligned."""
    widths = [max(map(len, column)) for column in zip(head, *rows, strict=True)]
    for row in (head, *rows):
        cells = [
            cell.rjust(width) if numbers and place else cell.ljust(width)
            for place, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        line = "  ".join(cells).rstrip()
        print(styled(line, BOLD, sys.stdout) if row is head else line)


def note(text: str) -> None:
    """Print a note on stderr, separate from the results on stdout."""
    print(f"note: {shown(text)}", file=sys.stderr, flush=True)
