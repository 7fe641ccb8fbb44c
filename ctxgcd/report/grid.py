"""Sortable tables of the report."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

from ctxgcd.tables.layout import Table
from ctxgcd.tables.listing import Listing


@dataclass(frozen=True)
class Cell:
    """A text; `share` (0..1) adds a bar of that length behind it, `published` the paper's value below it."""

    text: str
    mark: Literal["", "best", "second"] = ""
    published: str = ""
    share: float | None = None


@dataclass(frozen=True)
class Grid:
    """Lines of cells under a head; columns from `numbers_from` on are right-aligned.

    Attributes:
        over: headings over equally many columns each, from the third column on; empty for a single heading.
        apart: lines below the others, which sorting leaves there; `apart_head` is the heading over them.
    """

    kind: ClassVar[str] = "grid"
    title: str
    head: Sequence[str]
    lines: Sequence[Sequence[Cell]]
    numbers_from: int
    notes: Sequence[str] = ()
    over: Sequence[str] = ()
    apart: Sequence[Sequence[Cell]] = ()
    apart_head: str = ""


def grid_of_table(table: Table) -> list[Grid]:
    """Return a table of accuracies and a table of the values per seed."""
    several = len(table.benchmarks) > 1
    lines = [
        [Cell(row.label), Cell(row.n), *(Cell(cell.text, cell.mark, cell.published) for cell in row.cells)]
        for row in table.rows
    ]
    head = [table.head, "n", *table.columns * len(table.benchmarks)]
    over = table.benchmarks if several else ()
    apart = _plain([label, "", *texts] for label, *texts in table.published)
    grid = Grid(table.title, head, lines, 1, table.notes, over, apart, table.published_head)
    per_seed = Grid("Values per seed", table.seeds_head, _plain(table.seeds), 2 if several else 1)
    return [grid, per_seed] if table.seeds else [grid]


def grid_of_listing(listing: Listing) -> Grid:
    """Return a table of texts."""
    return Grid(listing.title, listing.head, _plain(listing.lines), listing.numbers_from, listing.notes)


def _plain(lines: Iterable[Sequence[str]]) -> list[list[Cell]]:
    return [[Cell(text) for text in line] for line in lines]
