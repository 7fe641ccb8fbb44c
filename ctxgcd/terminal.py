"""Colours, for people only: where the stream is a terminal and NO_COLOR is not set."""

from __future__ import annotations

import os
from typing import TextIO

BOLD, RED = "1", "31"


def styled(text: str, style: str, stream: TextIO | None) -> str:
    """Return `text` as it should look on `stream`: in a style of ANSI codes, or as it is."""
    colours = stream is not None and stream.isatty() and not os.environ.get("NO_COLOR")
    return f"\x1b[{style}m{text}\x1b[0m" if colours else text
