"""The exception for invalid user input, and helpers for its message."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable

# Control characters, line separators, and surrogates, which represent bytes that are not UTF-8.
UNPRINTED = re.compile("[\0-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]")


class UserError(Exception):
    """Invalid input. The message is one line: what is wrong, where, what was expected and what to do."""

    def __init__(self, sentence: str) -> None:
        super().__init__(shown(sentence))


def shown(text: str) -> str:
    """Return text on one line: a line break as \\n, ESC as \\x1b, a byte that is not UTF-8 as \\xff."""
    return UNPRINTED.sub(lambda found: _escaped(ord(found[0])), text)


def _escaped(code: int) -> str:
    byte = 0xDC00 if 0xDC80 <= code <= 0xDCFF else 0  # a byte that is not UTF-8
    return chr(code - byte).encode("unicode_escape").decode()


def nearest(word: str, valid: Iterable[str]) -> str:
    """Return `; did you mean 'x'?` for the valid word closest to `word` (ignoring case), or an empty string."""
    return f"; did you mean '{meant}'?" if (meant := closest(word, valid)) else ""


def closest(word: str, valid: Iterable[str]) -> str | None:
    """Return the valid word closest to `word` (ignoring case), or None if none is close."""
    spelling = {name.casefold(): name for name in valid}
    match = difflib.get_close_matches(word.casefold(), spelling, n=1, cutoff=0.5)
    return spelling[match[0]] if match else None
