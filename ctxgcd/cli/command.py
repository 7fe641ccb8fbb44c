"""The words of a call of `ctxgcd`, and the command that they name."""

from __future__ import annotations

import argparse
import os
import sys

from ctxgcd import __version__
from ctxgcd.cli import completion, diff, discover, evaluate, export, predict
from ctxgcd.cli.common import Parser
from ctxgcd.errors import UserError, nearest
from ctxgcd.utils.files import refusals_named
from ctxgcd.utils.reporting import reported

# Each has a function add(commands), which adds its parser; what a command needs is imported when it is called.
COMMANDS = (discover, predict, export, evaluate, diff, completion)
CLOSED_PIPE = 141  # the exit status of any program that SIGPIPE ends


def parser() -> Parser:
    """Return the parser of all commands; `call` of what it parsed is the function to call with it."""
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

    Exit status: 0 done, 1 something was judged negative, 2 a mistake of the user's, 130 stopped, 141 a closed pipe.
    """
    with reported():
        try:
            try:
                arguments = _parsed(parser(), sys.argv[1:])
                with refusals_named():
                    arguments.call(arguments)
            finally:
                print(end="", flush=True)  # here, and not at Python's end, where nothing can catch it
        except OSError as error:
            if error.filename is not None:  # of a file, so not of stdout
                raise
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # what is left goes nowhere
            if isinstance(error, BrokenPipeError):  # as by `| head -1`: nobody reads on
                sys.exit(CLOSED_PIPE)
            raise UserError(f"the results cannot be written ({error.strerror}); send them elsewhere") from error


def _parsed(root: Parser, words: list[str]) -> argparse.Namespace:
    commands = root.get_default("commands")
    if words and not words[0].startswith("-") and words[0] not in commands:
        raise UserError(f"no command '{words[0]}'{nearest(words[0], commands)}; commands: {', '.join(commands)}")
    return root.parse_args(words)
