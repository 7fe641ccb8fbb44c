"""Renders a long table in the wide form of the paper, as Markdown, LaTeX (booktabs) and HTML."""

from __future__ import annotations

import html
import re
from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import pandas as pd
from jinja2 import Environment, FileSystemLoader, StrictUndefined

from ctxgcd.errors import UserError
from ctxgcd.names import number_text
from ctxgcd.tables.aggregate import COMPARED, NO_TEST
from ctxgcd.tables.display import SYMBOL, benchmark_name, method_name
from ctxgcd.tables.published import QUANTITIES
from ctxgcd.utils.files import write_text

Kind = Literal["main", "ablation", "sensitivity"]
HEADS = {"main": "Method", "ablation": "Method", "sensitivity": "Setting"}
GAP = "–"
NBSP = "\u00a0"  # a narrow screen may break before ±, never after it
VERDICTS = {"inside": "≈", "above": "↑", "below": "↓"}

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

# Jinja's own braces would read like TeX groups.
LATEX_DELIMITERS: dict[str, Any] = {
    "variable_start_string": "<<",
    "variable_end_string": ">>",
    "block_start_string": "<%",
    "block_end_string": "%>",
}


@dataclass
class Cell:
    """A mean with its std (percent, one decimal), its place in the column, the published value."""

    text: str = GAP
    mark: Literal["", "best", "second"] = ""
    published: str = ""


@dataclass
class Row:
    """One method or setting: its cells go benchmark by benchmark, All, Old, New."""

    label: str
    n: str
    cells: list[Cell]
    first_of_group: bool = False

    @property
    def has_published(self) -> bool:
        return any(cell.published for cell in self.cells)


@dataclass
class Table:
    """All that a template shows, in plain text; each template escapes it in its own way."""

    title: str
    head: str
    benchmarks: list[str]
    rows: list[Row]
    seeds: list[list[str]]
    notes: list[str]
    label: str

    @property
    def seeds_head(self) -> list[str]:
        return [self.head, *(["Benchmark"] if len(self.benchmarks) > 1 else []), "Seeds", "All", "Old", "New"]


def _symbols(text: object, escape: Callable[[str], str], symbol: Callable[[str, str], str]) -> str:
    """Escape a text, but for symbols such as L_n, which get the format's own subscript."""
    parts = SYMBOL.split(str(text))  # text, L or lambda, n or c, text, ...
    out = escape(parts[0])
    for base, index, rest in zip(parts[1::3], parts[2::3], parts[3::3], strict=True):
        out += symbol(base, index) + escape(rest)
    return out


def as_html(text: object) -> str:
    """Escape for HTML text and quoted attributes."""
    return _symbols(text, html.escape, lambda base, i: f"{base.replace('lambda', 'λ')}<sub>{i}</sub>")


def as_markdown(text: object) -> str:
    """Escape for a Markdown table's cell: HTML, pipes, emphasis, links and line ends."""

    def escape(part: str) -> str:
        plain = html.escape(re.sub(r"\s+", " ", part), quote=False)
        return re.sub(r"([\\`*_\[\]|~$])", r"\\\1", plain)

    return _symbols(text, escape, lambda base, i: f"{base.replace('lambda', 'λ')}<sub>{i}</sub>")


def as_latex(text: object) -> str:
    """Escape for LaTeX text."""
    return _symbols(
        text,
        lambda part: "".join(LATEX_SPECIAL.get(c, c) for c in re.sub(r"\s+", " ", part)),
        lambda base, i: f"${base.replace('lambda', chr(92) + 'lambda')}_{i}$",
    )


Format = Literal["md", "tex", "html"]
FORMATS: dict[Format, Callable[[object], str]] = {"md": as_markdown, "tex": as_latex, "html": as_html}


def _number(mean: float, std: float) -> str:
    return GAP if pd.isna(mean) else f"{mean:.1f}" if pd.isna(std) else f"{mean:.1f} ±{NBSP}{std:.1f}"


def _cell(line: pd.Series | None, quantity: str) -> Cell:
    if line is None:
        return Cell()
    published = line[f"{quantity}_published"]
    sign = VERDICTS.get(line[f"{quantity}_verdict"], "")
    return Cell(
        text=_number(line[f"{quantity}_mean"], line[f"{quantity}_std"]),
        published="" if pd.isna(published) else f"{published:.1f}{NBSP}{sign}".strip(),
    )


def _mark(cells: Iterable[Cell]) -> None:
    """Mark the best and second of a column by the decimal that the reader sees, ties alike."""
    measured = [(float(cell.text.split(" ")[0]), cell) for cell in cells if cell.text != GAP]
    places = sorted({value for value, _ in measured}, reverse=True)[:2]
    for value, cell in measured:
        if value in places:
            cell.mark = "best" if value == places[0] else "second"


def _label(line: pd.Series, kind: Kind) -> str:
    if kind != "sensitivity":
        return method_name(line["method"])
    return f"{line['parameter']} = {number_text(line['value'])}" + ("" if "+" in line["method"] else " (main run)")


def _list(lines: pd.DataFrame) -> str:
    return ", ".join(dict.fromkeys(lines["label"]))


def _said(lines: pd.DataFrame, what: pd.Series) -> str:
    """Say a property once when all rows share it, else each value with the rows that have it."""
    groups = [(str(value), lines.loc[group.index]) for value, group in what.groupby(what, sort=False)]
    return " and ".join(value if len(groups) == 1 else f"{value} ({_list(group)})" for value, group in groups)


def _benchmark_note(key: str, lines: pd.DataFrame) -> str:
    """Name what the numbers of one benchmark were measured on: images, K and its source, epoch."""
    made = lines[lines["n"] > 0]
    if made.empty:
        return f"{benchmark_name(key)}: no runs yet."
    epochs = made["epoch"].dropna()
    facts = [
        _said(made, made["images"].map("{:,}".format)) + " images",
        "K = " + _said(made, made["K"].astype(str) + " (" + made["K_source"] + ")"),
        *(["scored at epoch " + _said(made, epochs.astype(str))] if len(epochs) else []),
    ]
    return f"{benchmark_name(key)}: {'; '.join(facts)}."


def collapsed_note(lines: pd.DataFrame) -> list[str]:
    """Name the runs whose projections collapsed; lines have `label`, `benchmark` and `collapsed` (seeds)."""
    several = lines["benchmark"].nunique() > 1
    groups = lines[lines["collapsed"] != ""].groupby(["benchmark", "collapsed"], sort=False)
    said = [
        f"{_list(group)}{f' on {benchmark_name(str(b))}' if several else ''}: seed {str(seeds).replace(' ', ', ')}"
        for (b, seeds), group in groups
    ]
    what = "Collapsed (all projections alike at the end, so that contrastive and context losses train next to nothing)"
    return [f"{what}: {'; '.join(said)}."] if said else []


def _missing_note(lines: pd.DataFrame) -> list[str]:
    """Name the rows without runs, benchmark by benchmark where the table has several."""
    several = lines["benchmark"].nunique() > 1
    gaps = [
        _list(group) + (f" on {benchmark_name(str(key))}" if several else "")
        for key, group in lines[lines["n"] == 0].groupby("benchmark", sort=False)
    ]
    return [f"Missing: {'; '.join(gaps)}."] if gaps else []


def _environment_note(lines: pd.DataFrame) -> list[str]:
    """Flag what differs between the runs' environments; a run without a library can't differ in it."""
    pairs = [
        {"key": key, "value": value, "label": line["label"], "benchmark": benchmark_name(line["benchmark"])}
        for _, line in lines.iterrows()
        for key, _, values in (part.partition("=") for part in line["environment"].split("; ") if part)
        for value in values.split("|")
    ]
    frame = pd.DataFrame(pairs, columns=["key", "value", "label", "benchmark"])
    said = []
    for key, group in frame.groupby("key", sort=False):
        if group["value"].nunique() > 1:
            several = group["benchmark"].nunique() > 1
            if several and group.groupby("benchmark")["value"].nunique().max() == 1:
                named = group.assign(label=group["benchmark"])  # each benchmark is all of one kind: say it shortly
            else:
                named = group.assign(label=group["label"] + (" on " + group["benchmark"] if several else ""))
            said.append(f"{key} {_said(named, named['value'])}")
    return [f"Mixed environments: {'; '.join(said)}."] if said else []


def _test_note(long: pd.DataFrame) -> str:
    """Say where the official test part is, or for which benchmarks there is none."""
    absent = [benchmark_name(b) for b in dict.fromkeys(long.loc[long["note"] == NO_TEST, "benchmark"])]
    without = f"; {', '.join(absent)}: {NO_TEST}, so its inductive values are empty" if absent else ""
    return (
        f"Other metrics and the official test part are in the CSV beside this table{without}. Whether rows differ by "
        "more than chance is said by statistics_BENCHMARK."
    )


def _notes(lines: pd.DataFrame, kind: Kind, note: str, has_published: bool) -> list[str]:
    scope = "each group" if kind == "sensitivity" else "each column"
    measure = (
        "Clustering accuracy v2 in percent on the unlabelled training images, mean ± std over n seeds "
        "(ddof = 1; no std at n = 1; n is a/b where it differs by benchmark). "
        f"Bold: best measured value of {scope}; underlined: second."
    )
    notes = [note, measure]
    if has_published:
        notes.append(
            "Published: as printed in the paper; ≈ our mean is inside, ↑ above, ↓ below the band of two "
            "standard errors (SimGCD's published std stands in for the paper's); no sign: no band."
        )
    notes += [_benchmark_note(str(key), group) for key, group in lines.groupby("benchmark", sort=False)]
    notes += collapsed_note(lines) + _environment_note(lines[lines["n"] > 0]) + _missing_note(lines)
    return list(filter(None, notes))


def _per_seed(lines: pd.DataFrame) -> list[list[str]]:
    """One line a row and benchmark with runs: label, benchmark (of several), seeds, then All, Old, New."""

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


def wide_table(long: pd.DataFrame, *, title: str, note: str, kind: Kind, label: str) -> Table:
    """Lay a long table out as the paper does: a row a method or setting, All, Old, New a benchmark."""
    if kind == "sensitivity" and "parameter" not in long:
        raise UserError(
            f"the table '{label}' is not a sensitivity table, because it has no columns parameter and value"
        )
    lines = long[(long["set"] == COMPARED[0]) & (long["metric"] == COMPARED[1])].reset_index(drop=True)
    lines["label"] = [_label(line, kind) for _, line in lines.iterrows()]
    lines["group"] = lines["parameter"] if kind == "sensitivity" else ""
    benchmarks = list(dict.fromkeys(long["benchmark"]))
    rows: list[Row] = []
    groups: list[list[Row]] = []
    for _, group in lines.groupby("group", sort=False):
        groups.append([])
        for name, own in group.groupby("label", sort=False):
            by_benchmark: dict[Hashable, pd.Series] = {line["benchmark"]: line for _, line in own.iterrows()}
            cells = [_cell(by_benchmark.get(b), quantity) for b in benchmarks for quantity in QUANTITIES]
            counts = [str(by_benchmark[b]["n"]) if b in by_benchmark else "0" for b in benchmarks]
            n = counts[0] if len(set(counts)) == 1 else "/".join(counts)
            groups[-1].append(Row(str(name), n, cells, first_of_group=bool(rows) and not groups[-1]))
            rows.append(groups[-1][-1])
        for column in zip(*(row.cells for row in groups[-1]), strict=True):
            _mark(column)
    has_published = any(row.has_published for row in rows)
    return Table(
        title=title,
        head=HEADS[kind],
        benchmarks=[benchmark_name(b) for b in benchmarks],
        rows=rows,
        seeds=_per_seed(lines),
        notes=[*_notes(lines, kind, note, has_published), _test_note(long)],
        label=re.sub(r"[^A-Za-z0-9]+", "-", label),
    )


def rendered(template: str, suffix: Format, **content: Any) -> str:
    """Fill a template of a format; every text goes through that format's escape."""
    escape = FORMATS[suffix]
    delimiters = LATEX_DELIMITERS if suffix == "tex" else {}
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent / "templates"),
        undefined=StrictUndefined,
        finalize=escape,
        autoescape=False,  # finalize escapes every expression instead, in LaTeX and Markdown too
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        **delimiters,
    )
    return environment.get_template(f"{template}.{suffix}.j2").render(**content)


def write_table(long: pd.DataFrame, out_stem: Path, *, title: str, note: str, kind: Kind) -> None:
    """Write STEM.csv (long, full precision) and STEM.md, .tex and .html (wide), each atomically."""
    table = wide_table(long, title=title, note=note, kind=kind, label=out_stem.name)
    out_stem.parent.mkdir(parents=True, exist_ok=True)
    texts = {"csv": long.to_csv(index=False)} | {suffix: rendered("table", suffix, table=table) for suffix in FORMATS}
    for suffix, text in texts.items():
        write_text(out_stem.with_name(f"{out_stem.name}.{suffix}"), text)
