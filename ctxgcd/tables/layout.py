"""The wide layout of a long table, as in the paper: one row per method or setting; All, Old, New per benchmark."""

from __future__ import annotations

import re
from collections.abc import Hashable, Iterable
from dataclasses import dataclass
from typing import Literal

import pandas as pd

from ctxgcd.errors import UserError
from ctxgcd.names import number_text
from ctxgcd.tables.aggregate import COMPARED, PUBLISHED_ONLY
from ctxgcd.tables.display import benchmark_name, method_name, published_name
from ctxgcd.tables.notes import knows_changed, notes_of, percent_text
from ctxgcd.tables.published import QUANTITIES

Kind = Literal["main", "ablation", "sensitivity"]
ROW_HEADS = {"main": "Method", "ablation": "Method", "sensitivity": "Setting"}
ACCURACIES = [quantity.capitalize() for quantity in QUANTITIES]
GAP = "–"
NBSP = "\u00a0"  # allows a line break before ± but not after it
VERDICT_SIGNS = {"inside": "≈", "above": "↑", "below": "↓"}


@dataclass
class Cell:
    """A mean with its std (percent, one decimal), its rank in the column, and the published value."""

    text: str = GAP
    mark: Literal["", "best", "second"] = ""
    published: str = ""


@dataclass
class Row:
    """One method or setting, with a cell for each of Table.columns per benchmark."""

    label: str
    n: str
    cells: list[Cell]
    first_of_group: bool = False

    @property
    def has_published(self) -> bool:
        return any(cell.published for cell in self.cells)


@dataclass
class Table:
    """The content of a template as plain text, which each template escapes for its format.

    columns: heads of the cells of one benchmark: All, Old, New, and Changed where it is known.
    published: the paper's rows that were not run here, below the others: a label, then a text for each cell.
    """

    title: str
    head: str
    benchmarks: list[str]
    columns: list[str]
    rows: list[Row]
    published: list[list[str]]
    seeds: list[list[str]]
    notes: list[str]
    label: str

    @property
    def published_head(self) -> str:
        """Return the heading over the rows of `published`, with a capital."""
        return PUBLISHED_ONLY.capitalize()

    @property
    def seeds_head(self) -> list[str]:
        return [self.head, *(["Benchmark"] if len(self.benchmarks) > 1 else []), "Seeds", *ACCURACIES]


def _number(mean: float, std: float) -> str:
    return GAP if pd.isna(mean) else f"{mean:.1f}" if pd.isna(std) else f"{mean:.1f} ±{NBSP}{std:.1f}"


def _cell(line: pd.Series | None, quantity: str) -> Cell:
    if line is None:
        return Cell()
    published = line[f"{quantity}_published"]
    sign = VERDICT_SIGNS.get(line[f"{quantity}_verdict"], "")
    return Cell(
        text=_number(line[f"{quantity}_mean"], line[f"{quantity}_std"]),
        published="" if pd.isna(published) else f"{published:.1f}{NBSP}{sign}".strip(),
    )


def _cells(line: pd.Series | None, has_changed: bool) -> list[Cell]:
    """Return the cells of one row and benchmark."""
    cells = [_cell(line, quantity) for quantity in QUANTITIES]
    return [*cells, Cell(percent_text(None if line is None else line["changed"]))] if has_changed else cells


def _mark(cells: Iterable[Cell]) -> None:
    """Mark the best and second-best values of a column as displayed (one decimal); ties are marked equally."""
    measured = [(float(cell.text.split(" ")[0]), cell) for cell in cells if cell.text != GAP]
    places = sorted({value for value, _ in measured}, reverse=True)[:2]
    for value, cell in measured:
        if value in places:
            cell.mark = "best" if value == places[0] else "second"


def _label(line: pd.Series, kind: Kind) -> str:
    if kind != "sensitivity":
        return method_name(line["method"])
    return f"{line['parameter']} = {number_text(line['value'])}" + ("" if "+" in line["method"] else " (main run)")


def _per_seed(lines: pd.DataFrame) -> list[list[str]]:
    """Return one line per row and benchmark with runs: label, benchmark (if several), seeds, All, Old, New."""

    def rounded(values: str) -> str:
        return ", ".join(GAP if v == "-" else f"{float(v):.1f}" for v in values.split()) or GAP

    several = lines["benchmark"].nunique() > 1
    return [
        [
            line["label"],
            *([benchmark_name(line["benchmark"])] if several else []),
            line["seeds"].replace(" ", ", "),
            *(rounded(line[f"{quantity}_per_seed"]) for quantity in QUANTITIES),
        ]
        for _, line in lines[lines["n"] > 0].drop_duplicates(["benchmark", "label"]).iterrows()
    ]


def _published_rows(lines: pd.DataFrame, benchmarks: Iterable[str], columns: Iterable[str]) -> list[list[str]]:
    """Return one line per row of the paper: its name, marked as published, and its values; other columns are empty."""
    values = {
        (line["method"], line["benchmark"], quantity.capitalize()): f"{line[f'{quantity}_published']:.1f}"
        for _, line in lines.iterrows()
        for quantity in QUANTITIES
    }
    gaps = {column: GAP if column in ACCURACIES else "" for column in columns}
    return [
        [f"{published_name(key)} (published)"]
        + [values.get((key, b, column), gap) for b in benchmarks for column, gap in gaps.items()]
        for key in dict.fromkeys(lines["method"])
    ]


def wide_table(long: pd.DataFrame, *, title: str, note: str, kind: Kind, label: str) -> Table:
    """Return the wide layout of a long table: one row per method or setting; All, Old, New per benchmark.

    Changed stands beside them if the long table has it for any row. Rows of the paper that were not run here are apart.
    """
    if kind == "sensitivity" and "parameter" not in long:
        raise UserError(
            f"the table '{label}' is not a sensitivity table, because it has no columns parameter and value"
        )
    benchmarks = list(dict.fromkeys(long["benchmark"]))
    printed = long[long["note"] == PUBLISHED_ONLY]
    long = long.drop(printed.index)
    lines = long[(long["set"] == COMPARED[0]) & (long["metric"] == COMPARED[1])].reset_index(drop=True)
    lines["label"] = [_label(line, kind) for _, line in lines.iterrows()]
    lines["group"] = lines["parameter"] if kind == "sensitivity" else ""
    has_changed = knows_changed(lines)
    columns = [*ACCURACIES, *["Changed"] * has_changed]
    rows: list[Row] = []
    groups: list[list[Row]] = []
    for _, group in lines.groupby("group", sort=False):
        groups.append([])
        for name, own in group.groupby("label", sort=False):
            by_benchmark: dict[Hashable, pd.Series] = {line["benchmark"]: line for _, line in own.iterrows()}
            cells = [cell for b in benchmarks for cell in _cells(by_benchmark.get(b), has_changed)]
            counts = [str(by_benchmark[b]["n"]) if b in by_benchmark else "0" for b in benchmarks]
            n = counts[0] if len(set(counts)) == 1 else "/".join(counts)
            groups[-1].append(Row(str(name), n, cells, first_of_group=bool(rows) and not groups[-1]))
            rows.append(groups[-1][-1])
        for at, column in enumerate(zip(*(row.cells for row in groups[-1]), strict=True)):
            if columns[at % len(columns)] in ACCURACIES:
                _mark(column)
    published = _published_rows(printed, benchmarks, columns)
    has_published = any(row.has_published for row in rows)
    scope = "each group" if kind == "sensitivity" else "each column"
    return Table(
        title=title,
        head=ROW_HEADS[kind],
        benchmarks=[benchmark_name(b) for b in benchmarks],
        columns=columns,
        rows=rows,
        published=published,
        seeds=_per_seed(lines),
        notes=notes_of(long, lines, note=note, scope=scope, has_published=has_published, alone=bool(published)),
        label=re.sub(r"[^A-Za-z0-9]+", "-", label),
    )
