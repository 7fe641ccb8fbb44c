"""Rendered tables: marks, missing values, notes, malicious names."""

from __future__ import annotations

import re
import shutil
import subprocess
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from ctxgcd.errors import UserError
from ctxgcd.tables import aggregate, escapes, layout, render
from ctxgcd.tables.display import method_name
from tests.helpers.tables import HOSTILE, MAIN_ROWS, long, run, three, with_published

# Rendering


def wide(table: pd.DataFrame, **changes: Any) -> layout.Table:
    return layout.wide_table(table, **({"title": "t", "note": "", "kind": "main", "label": "x"} | changes))


def test_best_and_second_are_marked_with_ties_of_displayed_values() -> None:
    values = {
        "kmeans": 60.04,
        "simgcd": 59.96,
        "full-paper": 59.0,
        "full-released": 58.0,
        "full-mended": 59.0,
    }
    runs = [run(row, 0, (value, 50.0, None)) for row, value in values.items()]
    rows = wide(long(runs, list(values))).rows
    assert [row.cells[0].mark for row in rows] == ["best", "best", "second", "", "second"]  # 60.0 twice
    assert {row.cells[1].mark for row in rows} == {"best"}
    assert {(row.cells[2].mark, row.cells[2].text) for row in rows} == {("", layout.GAP)}


def test_markdown_marks_and_published_line() -> None:
    table = wide(long(three("simgcd", 60.0) + three("full-released", 62.0), MAIN_ROWS))
    text = render.rendered("table", "md", table=table)
    lines = text.splitlines()
    assert "| SimGCD | 3 | <u>60.0 ± 1.0</u> | <u>65.0 ± 1.0</u> | <u>57.0 ± 1.0</u> |" in lines
    assert "| Full method (released) | 3 | **62.0 ± 1.0** | **67.0 ± 1.0** | **59.0 ± 1.0** |" in lines
    at = next(i for i, line in enumerate(lines) if line.startswith("| SimGCD"))
    assert lines[at + 1] == "| <sub>published</sub> | | <sub>60.3 ≈</sub> | <sub>65.6 ≈</sub> | <sub>57.7 ≈</sub> |"
    assert "- Missing: k-means, GCD, Full method (paper)." in lines
    assert "- CUB: 4,496 images; K = 200 (true); scored at epoch 199." in lines
    assert "| SimGCD | 0, 1, 2 | 59.0, 60.0, 61.0 | 64.0, 65.0, 66.0 | 56.0, 57.0, 58.0 |" in lines


def test_a_mechanism_without_effect_is_named_with_its_seeds() -> None:
    runs = three("simgcd", 60.0) + three("kmeans", 30.0)
    assert not [note for note in wide(long(runs, MAIN_ROWS)).notes if "effect" in note]
    for seed in (0, 2):
        runs[seed]["idle"] = "no pairs in any epoch"
    table = long(runs, MAIN_ROWS)
    sentence = "Mechanism without effect: SimGCD{}: no pairs in any epoch (seed 0, 2)."
    assert sentence.format("") in wide(table).notes
    assert "Missing: GCD, Full method (paper), Full method (released)." in wide(table).notes
    runs.append(run("simgcd", 0, (50.0, 70.0, 40.0), benchmark="scars"))
    assert sentence.format(" on CUB") in wide(long(runs, ["simgcd"], ("cub", "scars"))).notes


def test_missing_rows_are_named_by_benchmark_with_n_if_it_differs() -> None:
    runs = three("simgcd", 60.0) + three("kmeans", 30.0)
    runs.append(run("simgcd", 0, (50.0, 70.0, 40.0), benchmark="scars"))
    table = wide(long(runs, ["kmeans", "simgcd", "full-paper"], ("cub", "scars")))
    assert "Missing: Full method (paper) on CUB; k-means, Full method (paper) on Stanford Cars." in table.notes
    assert [row.n for row in table.rows] == ["3/0", "3/1", "0"]


def test_what_differs_between_rows_is_named() -> None:
    runs = three("simgcd", 60.0) + three("kmeans", 30.0, K=231, K_source="estimated", epoch=None, environment={})
    runs += three("full-paper", 60.0, environment={"torch": "2.13.0", "device": "cpu: x"})
    notes = wide(long(runs, ["kmeans", "simgcd", "full-paper"])).notes
    k = "K = 231 (estimated) (k-means) and 200 (true) (SimGCD, Full method (paper))"
    assert f"CUB: 4,496 images; {k}; scored at epoch 199." in notes
    assert "Different environments: torch 2.12.0 (SimGCD) and 2.13.0 (Full method (paper))." in notes


def test_precision_is_noted_beside_published_numbers() -> None:
    def notes(*runs: dict[str, Any]) -> list[str]:
        rows = list(dict.fromkeys(one["row"] for one in runs))
        benchmarks = tuple(dict.fromkeys(one["benchmark"] for one in runs))
        return [note for note in wide(long(list(runs), rows, benchmarks)).notes if note.startswith("Precision")]

    half, full = {"parameters": {"precision": "bf16"}}, {"parameters": {"precision": "float32"}}
    start, end = "Precision of the rows with published numbers: ", "; the published numbers were computed in float32."
    values = (60.0, 65.0, 57.0)
    published, other = run("simgcd", 0, values, **half), run("full-released", 0, values, **half)
    assert notes(published) == notes(published, other) == [f"{start}bf16{end}"]
    assert notes(other) == notes(run("simgcd", 0, values, **full), other) == notes(run("simgcd", 0, values)) == []
    mixed = f"{start}float32 (k-means) and bf16 (SimGCD){end}"
    assert notes(run("kmeans", 0, values, **full), published) == [mixed]
    scars = run("simgcd", 0, values, benchmark="scars", **full)
    assert notes(published, scars) == [f"{start}bf16 (SimGCD on CUB) and float32 (SimGCD on Stanford Cars){end}"]
    earlier = wide(long([published], ["simgcd"]).drop(columns="precision")).notes
    assert not any(note.startswith("Precision") for note in earlier)


def test_the_note_comes_first_and_equal_environments_are_not_noted() -> None:
    notes = wide(long(three("simgcd", 60.0), ["simgcd"]), note="The backbone saw ImageNet labels.").notes
    assert notes[0] == "The backbone saw ImageNet labels."
    assert not any(note.startswith(("Mixed", "Missing")) for note in notes)


def test_sensitivity_marks_within_each_parameter() -> None:
    runs = three("full-paper", 60.0) + three("full-paper+k=20", 61.0) + three("full-paper+lambda_n=0.3", 59.0)
    rows = ["full-paper", "full-paper+lambda_n=0.3", "full-paper+k=20"]
    table = aggregate.sensitivity_table(runs, rows=rows, benchmarks=["cub"])
    shown = [(r.label, r.cells[0].mark, r.first_of_group) for r in wide(table, kind="sensitivity").rows]
    assert shown == [
        ("lambda_n = 0.1 (main run)", "best", False),
        ("lambda_n = 0.3", "second", False),
        ("k = 10 (main run)", "second", True),
        ("k = 20", "best", False),
    ]
    with pytest.raises(UserError, match="not a sensitivity table"):
        wide(long(runs, rows[:1]), kind="sensitivity")


@pytest.mark.parametrize(
    ("row", "name"),
    [
        ("kmeans", "k-means"),
        ("full-paper", "Full method (paper)"),
        ("full-paper-without-n", "Full method (paper), without L_n"),
        ("full-paper-zero", "Full method (paper), both weights 0"),
        ("full-paper+lambda_n=0.3", "Full method (paper), lambda_n = 0.3"),
        ("mine", "mine"),
    ],
)
def test_method_names(row: str, name: str) -> None:
    assert method_name(row) == name


class Outline(HTMLParser):
    """Collects the tags, attributes and text of a page; tags that are not closed remain on the stack."""

    VOID = ("meta", "br")

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: set[str] = set()
        self.open: list[str] = []
        self.text = ""
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes |= {name for name, _ in attrs}
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data


@pytest.fixture
def hostile() -> layout.Table:
    table = long(three(HOSTILE, 60.0, benchmark=HOSTILE), [HOSTILE, "kmeans"], (HOSTILE, "cub"))
    return wide(table, title=HOSTILE, note=HOSTILE, label=HOSTILE)


def test_html_is_escaped_whole_and_self_contained(hostile: layout.Table) -> None:
    page = render.rendered("table", "html", table=hostile)
    outline = Outline(page)
    assert outline.open == []
    assert "i" not in outline.tags
    assert not outline.attributes & {"onload", "src", "href"}
    assert "http" not in page
    assert outline.tags.count("caption") == 2
    assert outline.text.count(HOSTILE) >= 6  # title, caption, head, label, note, seeds
    assert '<meta name="viewport"' in page


def test_every_markdown_line_has_the_columns_of_its_head(hostile: layout.Table) -> None:
    text = render.rendered("table", "md", table=hostile)
    tables = [block.splitlines() for block in text.split("\n\n") if block.startswith("|")]
    widths = [{len(re.findall(r"(?<!\\)\|", line)) for line in table} for table in tables]
    assert widths == [{2 + 6 + 1}, {6 + 1}]
    assert "<i" not in text
    assert r"\*d\* \[e\](f) \`g\`" in text


def latex_cells(line: str) -> int:
    line = re.sub(r"\\multicolumn\{(\d+)\}", lambda m: "&" * (int(m[1]) - 1), line)
    return len(re.findall(r"(?<!\\)&", line)) + 1


def test_latex_is_balanced_and_has_its_columns(hostile: layout.Table) -> None:
    text = render.rendered("table", "tex", table=hostile)
    body = "\n".join(line for line in text.splitlines() if not line.startswith("%"))
    bare = re.sub(r"\\[\\{}%&$#_]", "", body)
    depth = 0
    for letter in bare:
        depth += {"{": 1, "}": -1}.get(letter, 0)
        assert depth >= 0
    assert depth == 0
    assert bare.count("$") % 2 == 0
    assert re.findall(r"\\begin\{(\w+)\}", body) == ["table", "tabular", "minipage"]
    assert re.findall(r"\\end\{(\w+)\}", body) == ["tabular", "minipage", "table"]
    columns = re.search(r"\\begin\{tabular\}\{(\w+)\}", body)
    assert columns is not None
    assert {latex_cells(line) for line in body.splitlines() if line.endswith(r"\\")} == {len(columns[1])}
    label = re.search(r"\\label\{tab:(.*)\}", body)
    assert label is not None
    assert re.fullmatch(r"[A-Za-z0-9-]+", label[1])
    assert not re.search(r"[±≈↑↓–]", body)


def test_symbols_get_the_subscript_of_each_format() -> None:
    assert escapes.as_latex("without L_n, lambda_c = 0.3, my_x") == r"without $L_n$, $\lambda_c$ = 0.3, my\_x"
    assert escapes.as_html("without L_n, lambda_c < 1") == "without L<sub>n</sub>, λ<sub>c</sub> &lt; 1"
    assert escapes.as_markdown("L_c a_b|c") == r"L<sub>c</sub> a\_b\|c"


PUBLISHED_HEAD = "Published, not run here"


def test_published_rows_are_apart_and_not_ranked() -> None:
    table = wide(with_published(three("simgcd", 60.0), MAIN_ROWS))
    assert [line[0] for line in table.published] == [
        f"{name} (published)" for name in ("RS+", "UNO+", "ORCA", "XCon", "PromptCAL", "DCCL")
    ]
    assert table.published[0][1:] == ["33.3", "51.6", "24.2", "28.3", "61.8", "12.1", "26.9", "36.4", "22.2"]
    assert table.published[-1][1:] == ["63.5", "60.8", "64.9", "43.1", "55.7", "36.2", *[layout.GAP] * 3]
    rows = {row.label: row for row in table.rows}
    assert list(rows) == [method_name(row) for row in MAIN_ROWS]
    assert [cell.mark for cell in rows["SimGCD"].cells[:3]] == ["best"] * 3  # DCCL's published 63.5 is higher
    missing = next(note for note in table.notes if note.startswith("Missing"))
    assert "RS+" not in missing
    assert sum(note.startswith(PUBLISHED_HEAD) for note in table.notes) == 1
    assert [line[0] for line in table.seeds] == ["SimGCD"]
    without = wide(long(three("simgcd", 60.0), ["simgcd"]))
    assert without.published == []
    assert not any(note.startswith(PUBLISHED_HEAD) for note in without.notes)
    assert all(PUBLISHED_HEAD not in render.rendered("table", suffix, table=without) for suffix in render.ESCAPES)


def test_published_rows_in_each_format() -> None:
    table = wide(with_published(three("simgcd", 60.0), MAIN_ROWS))
    markdown, latex, page = (render.rendered("table", suffix, table=table) for suffix in ("md", "tex", "html"))
    lines = markdown.splitlines()
    at = lines.index(f"| *{PUBLISHED_HEAD}:* | |{' |' * 9}")
    values = " | ".join(f"<sub>{value}</sub>" for value in ("33.3", "51.6", "24.2", "28.3"))
    assert lines[at + 1].startswith(f"| <sub>RS+ (published)</sub> | | {values} | ")
    assert lines[at - 1].startswith("| Full method (released) |")
    assert lines[at + 6].startswith("| <sub>DCCL (published)</sub>")
    assert lines[at + 7] == ""
    assert {len(re.findall(r"(?<!\\)\|", line)) for line in lines[2 : at + 7]} == {2 + 9 + 1}
    body = latex.partition("\\toprule")[2].partition("\\bottomrule")[0]
    assert {latex_cells(line) for line in body.splitlines() if line.endswith(r"\\")} == {2 + 9}
    assert f"\\midrule\n\\multicolumn{{11}}{{l}}{{\\emph{{{PUBLISHED_HEAD}}}}} \\\\\n" in body
    outline = Outline(page)
    assert outline.open == []
    assert outline.tags.count("tbody") == 3  # ours, the published rows, the values per seed
    assert page.count('<tr class="published"><th scope="row">published</th>') == 4
    assert page.partition('<tbody class="apart">')[2].count("(published)</th>") == 6


def test_the_column_changed_is_empty_for_published_rows() -> None:
    changed = {("cub", "full-paper"): 1.5}
    measured = long(three("full-paper", 60.0), ["full-paper"], changed=changed)
    table = wide(aggregate.with_published_rows(measured, table="main_ssb"))
    assert table.columns[-1] == "Changed"
    assert table.published[0] == ["k-means (published)", "34.3", "38.9", "32.1", ""]


@pytest.mark.skipif(shutil.which("pdflatex") is None, reason="pdflatex is not installed")
def test_latex_compiles(hostile: layout.Table, tmp_path: Path) -> None:
    found = subprocess.run(["kpsewhich", "booktabs.sty"], capture_output=True, check=False)
    if found.returncode:
        pytest.skip("booktabs is not installed")
    table = render.rendered("table", "tex", table=hostile)
    head = "\\documentclass{article}\\usepackage[T1]{fontenc}\\usepackage{booktabs,graphicx}\\begin{document}\n"
    (tmp_path / "x.tex").write_text(head + table + "\\end{document}\n", encoding="utf-8")
    command = ["pdflatex", "-interaction=nonstopmode", "-halt-on-error", "-draftmode", "x.tex"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, errors="replace", check=False)
    assert done.returncode == 0, done.stdout[-2000:]
