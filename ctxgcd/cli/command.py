"""Entry point of `ctxgcd`: parses the arguments and calls the subcommand."""

from __future__ import annotations

import argparse
import os
import sys

from ctxgcd import __version__
from ctxgcd.cli import benchmark, completion, convert, diff, discover, evaluate, export, label, predict, sort
from ctxgcd.cli.common import Parser
from ctxgcd.errors import UserError, nearest
from ctxgcd.utils.files import refusals_named
from ctxgcd.utils.reporting import reported

# Each module has a function add(commands), which adds its parser. Dependencies are imported when a command is called.
COMMANDS = (discover, label, sort, predict, export, convert, evaluate, benchmark, diff, completion)
CLOSED_PIPE = 141  # the exit status of a program that SIGPIPE ends


def parser() -> Parser:
    """Return the parser of all commands; the parsed arguments hold the function to call as `call`."""
    root = Parser(
        prog="ctxgcd",
        description="Generalized category discovery with contextual losses.",
        epilog="`ctxgcd COMMAND --help` explains a command, with examples.",
    )
    root.add_argument("--version", action="version", version=f"ctxgcd {__version__}")
    commands = root.add_subparsers(required=True, metavar="COMMAND", title="commands")
    for command in COMMANDS:
        command.add(commands)
    root.set_defaults(root=root, commands=tuple(commands.choices))
    return root


def main() -> None:
    """Entry point of the `ctxgcd` command.

    Exit status: 0 success, 1 a negative result, 2 invalid input, 130 interrupted, 141 closed pipe.
    """
    with reported():
        try:
            try:
                arguments = _parsed(parser(), sys.argv[1:])
                with refusals_named():
                    arguments.call(arguments)
            finally:
                print(end="", flush=True)  # here, because an error at Python's exit cannot be caught
        except OSError as error:
            if error.filename is not None:  # the error of a file, not of stdout
                raise
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # discards the remaining output
            if isinstance(error, BrokenPipeError):  # the reader has ended, as in `| head -1`
                sys.exit(CLOSED_PIPE)
            raise UserError(
                f"the results cannot be written to stdout ({error.strerror}); redirect them to another place"
            ) from error


def _parsed(root: Parser, words: list[str]) -> argparse.Namespace:
    commands = root.get_default("commands")
    if words and not words[0].startswith("-") and words[0] not in commands:
        raise UserError(f"unknown command '{words[0]}'{nearest(words[0], commands)}; valid: {', '.join(commands)}")
    return root.parse_args(words)
