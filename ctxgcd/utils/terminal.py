"""What people see on a terminal and no file or pipe gets: colours, where NO_COLOR is not set, and bars."""

from __future__ import annotations

import os
import shutil
from typing import TextIO

BOLD, RED = "1", "31"
ABOVE = "\x1b[1A\x1b[2K"  # to the line above, which is erased
BAR = 16  # characters


def styled(text: str, style: str, stream: TextIO | None) -> str:
    """Return `text` as it should look on `stream`: in a style of ANSI codes, or as it is."""
    colours = stream is not None and stream.isatty() and not os.environ.get("NO_COLOR")
    return f"\x1b[{style}m{text}\x1b[0m" if colours else text


def bar(share: float, text: str, *, again: bool) -> str:
    """Return a line of a bar, filled by a share, and `text`; `again` over the last one. It fits the terminal.

    Each ends as any other line, so that what is printed next, such as an error, stands below it.
    """
    filled = int(share * BAR)
    line = f"[{'#' * filled}{'.' * (BAR - filled)}] {text}"[: shutil.get_terminal_size().columns - 1]
    return f"{ABOVE if again else ''}{line}"
