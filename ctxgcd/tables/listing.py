"""Tables of texts, written as CSV, Markdown, LaTeX and HTML."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pandas as pd

from ctxgcd.tables.render import ESCAPES, rendered
from ctxgcd.utils.files import write_text


@dataclass(frozen=True)
class Listing:
    """Texts in lines under a head; columns from `numbers_from` on are right-aligned."""

    title: str
    head: list[str]
    lines: list[list[str]]
    notes: list[str]
    numbers_from: int


def write_listing(frame: pd.DataFrame, listing: Listing, stem: Path) -> None:
    """Write STEM.csv with all of `frame`, and STEM.md, .tex and .html with the listing, each atomically."""
    write_text(stem.with_name(f"{stem.name}.csv"), frame.to_csv(index=False, lineterminator="\n"))
    for suffix in ESCAPES:
        write_text(stem.with_name(f"{stem.name}.{suffix}"), rendered("listing", suffix, listing=listing))
