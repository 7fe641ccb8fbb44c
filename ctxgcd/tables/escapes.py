"""Escapes of a text for HTML, Markdown and LaTeX; symbols such as L_n are rendered with subscripts."""

from __future__ import annotations

import html
import re
from collections.abc import Callable

from ctxgcd.tables.display import SYMBOL

LATEX_SPECIAL = {c: f"\\{c}" for c in "&%$#_{}"} | {
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "|": r"\textbar{}",
    '"': r"\textquotedbl{}",
    "±": r"$\pm$",
    "–": "--",
    "≈": r"$\approx$",
    "↑": r"$\uparrow$",
    "↓": r"$\downarrow$",
}


def _symbols(text: object, escape: Callable[[str], str], symbol: Callable[[str, str], str]) -> str:
    """Escape a text, and render symbols such as L_n with subscripts."""
    parts = SYMBOL.split(str(text))  # text, L or lambda, n or c, text, ...
    out = escape(parts[0])
    for base, index, rest in zip(parts[1::3], parts[2::3], parts[3::3], strict=True):
        out += symbol(base, index) + escape(rest)
    return out


def as_html(text: object) -> str:
    """Escape a text for HTML content and quoted attributes."""
    return _symbols(text, html.escape, lambda base, i: f"{base.replace('lambda', 'λ')}<sub>{i}</sub>")


def as_markdown(text: object) -> str:
    """Escape a text for a cell of a Markdown table: HTML, pipes, emphasis, links and line ends."""

    def escape(part: str) -> str:
        plain = html.escape(re.sub(r"\s+", " ", part), quote=False)
        return re.sub(r"([\\`*_\[\]|~$])", r"\\\1", plain)

    return _symbols(text, escape, lambda base, i: f"{base.replace('lambda', 'λ')}<sub>{i}</sub>")


def as_latex(text: object) -> str:
    """Escape a text for LaTeX."""
    return _symbols(
        text,
        lambda part: "".join(LATEX_SPECIAL.get(c, c) for c in re.sub(r"\s+", " ", part)),
        lambda base, i: f"${base.replace('lambda', chr(92) + 'lambda')}_{i}$",
    )
