"""Output for terminals only: progress bars, and colours unless NO_COLOR is set."""

from __future__ import annotations

import os
import shutil
from typing import TextIO

BOLD, RED = "1", "31"
ABOVE = "\x1b[1A\x1b[2K"  # moves up one line and erases it
BAR = 16  # characters


def styled(text: str, style: str, stream: TextIO | None) -> str:
    """Return `text` with an ANSI style if `stream` supports it, else unchanged."""
    colours = stream is not None and stream.isatty() and not os.environ.get("NO_COLOR")
    return f"\x1b[{style}m{text}\x1b[0m" if colours else text


def bar(share: float, text: str, *, again: bool) -> str:
    """Return a line with a bar, filled by `share`, and `text`, cut to the width of the terminal.

    With `again`, the line overwrites the previous one. It ends with a line break, so that the next output, such as an
    error, starts on its own line.
    """
    filled = int(share * BAR)
    line = f"[{'#' * filled}{'.' * (BAR - filled)}] {text}"[: shutil.get_terminal_size().columns - 1]
    return f"{ABOVE if again else ''}{line}"
