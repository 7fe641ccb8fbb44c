"""What all commands have in common: how they are parsed and how they print."""

from __future__ import annotations

import argparse
import json
import sys
import textwrap
from collections.abc import Sequence
from typing import Any, NoReturn, TypeAlias

from ctxgcd.errors import UserError, shown
from ctxgcd.utils.terminal import BOLD, styled

Commands: TypeAlias = "argparse._SubParsersAction[Parser]"


class Parser(argparse.ArgumentParser):
    """A parser whose mistakes are UserErrors, and whose examples keep their lines."""

    def __init__(self, **options: Any) -> None:
        super().__init__(formatter_class=argparse.RawDescriptionHelpFormatter, **options)

    def error(self, message: str) -> NoReturn:
        raise UserError(f"{message}; see {self.prog} --help")

    def add_file(self, *names: str, **options: Any) -> None:
        """Add an argument that is a file's name; a shell completes it as one."""
        self.add_argument(*names, **options).complete = "file"  # type: ignore[attr-defined]

    def add_json(self) -> None:
        """Add --json, which every command that prints results has."""
        self.add_argument("--json", action="store_true", help="print JSON for programs, with all digits")


def add_command(commands: Commands, name: str, purpose: str, details: str, examples: Sequence[str]) -> Parser:
    """Add a command's parser: a line for the list of commands, a paragraph, and examples that run as they are."""
    shown = "\n  ".join(["examples:", *examples])
    return commands.add_parser(name, help=purpose, description=textwrap.fill(details, 80), epilog=shown)


def print_json(content: Any) -> None:
    """Print as JSON for programs."""
    print(json.dumps(content, indent=1, ensure_ascii=False))


def print_table(head: Sequence[str], rows: Sequence[Sequence[str]], numbers: bool = False) -> None:
    """Print aligned columns below a bold head: all but the first to the right where they are `numbers`."""
    widths = [max(map(len, column)) for column in zip(head, *rows, strict=True)]
    for row in (head, *rows):
        cells = [
            cell.rjust(width) if numbers and place else cell.ljust(width)
            for place, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        line = "  ".join(cells).rstrip()
        print(styled(line, BOLD, sys.stdout) if row is head else line)


def note(text: str) -> None:
    """Print a remark on stderr, beside the results."""
    print(f"note: {shown(text)}", file=sys.stderr, flush=True)
