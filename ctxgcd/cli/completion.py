"""`ctxgcd completion`: prints a shell's completion script for commands, options and files."""

from __future__ import annotations

import argparse

from ctxgcd.cli.common import Commands, add_command

SHELLS = ("bash", "zsh", "fish", "tcsh")


def add(commands: Commands) -> None:
    """Add the command."""
    parser = add_command(
        commands,
        "completion",
        "print the shell completion script",
        "Print a completion script. Save it where your shell loads completions from, as in the examples.",
        [
            "ctxgcd completion bash >> ~/.bash_completion",
            "ctxgcd completion zsh > ~/.zfunc/_ctxgcd    # a folder of your fpath",
            "ctxgcd completion fish > ~/.config/fish/completions/ctxgcd.fish",
        ],
    )
    parser.add_argument("shell", choices=SHELLS, help="one of " + ", ".join(SHELLS), metavar="SHELL")
    parser.set_defaults(call=_call)


def _call(arguments: argparse.Namespace) -> None:
    import shtab

    print(shtab.complete(arguments.root, arguments.shell))
