"""Tables: aggregation and verdicts worked by hand, published numbers, hostile names in a render."""

from __future__ import annotations

import math
import re
import shutil
import subprocess
from html.parser import HTMLParser
from math import sqrt
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from ctxgcd.errors import UserError
from ctxgcd.tables import aggregate, published, render
from ctxgcd.tables.display import method_name
from ctxgcd.tables.verify import compare, read_means, verdict

MAIN_ROWS = ["kmeans", "gcd", "simgcd", "full-paper", "full-released"]
LOSS_ROWS = ["simgcd", "full-paper-without-n", "full-paper-without-c", "full-paper"]
SENSITIVITY_ROWS = [
    "full-paper",
    *(f"full-paper+lambda_n={v}" for v in ("0.3", "0.5", "0.7")),
    *(f"full-paper+lambda_c={v}" for v in ("0.1", "0.5", "0.7")),
    *(f"full-paper+k={v}" for v in ("20", "30")),
]
HOSTILE = 'a|b <i onload="x">&_$%#{c}~^\\ *d* [e](f)\n`g` – é'


def run(row: str, seed: int, values: tuple[float, Any, Any], benchmark: str = "cub", **changes: Any) -> dict[str, Any]:
    """Give the metrics of one run, with the scores v2 (both sets) and nmi."""
    all_, old, new = values
    metrics: dict[str, Any] = {
        "schema": 1,
        "benchmark": benchmark,
        "row": row,
        "seed": seed,
        "split_sha256": "f" * 64,
        "K": 200,
        "K_source": "true",
        "epoch": 199,
        "environment": {"torch": "2.12.0", "device": "cpu: x"},
        "parameters": {"lambda_n": 0.1, "lambda_c": 0.3, "k": 10},
    } | changes
    shared = {key: metrics[key] for key in ("K", "K_source", "epoch")}
    full = {"all": all_, "old": old, "new": new}
    metrics["scores"] = [
        {"set": "test", "metric": "v2", "n": 600, **shared, **full},
        {"set": "unlabelled", "metric": "nmi", "n": 4496, **shared, "all": 70.0, "old": None, "new": None},
        {"set": "unlabelled", "metric": "v2", "n": 4496, **shared, **full},
    ]
    return metrics


def three(row: str, base: float, **changes: Any) -> list[dict[str, Any]]:
    return [run(row, s, (base + d, base + d + 5, base + d - 3), **changes) for s, d in enumerate((-1.0, 0.0, 1.0))]


def long(metrics: list[dict[str, Any]], rows: list[str], benchmarks: tuple[str, ...] = ("cub",)) -> pd.DataFrame:
    return aggregate.long_table(metrics, table="main_ssb", rows=rows, benchmarks=list(benchmarks))


def v2(table: pd.DataFrame) -> pd.DataFrame:
    return table[(table["set"] == "unlabelled") & (table["metric"] == "v2")].reset_index(drop=True)


# Published numbers


def test_every_published_row_is_reached_or_belongs_to_a_compared_method() -> None:
    reached = set()
    benchmarks = {t: list(g["benchmark"].unique()) for t, g in published.load().groupby("table")}
    wanted = dict.fromkeys(("main_ssb", "main_generic", "main_challenging"), MAIN_ROWS)
    wanted |= {"ablation_cub": LOSS_ROWS, "sensitivity_cub": SENSITIVITY_ROWS}
    for table, rows in wanted.items():
        own = published.paper_table(table)
        reached |= {(own, b, key) for b in benchmarks[own] for row in rows for key in published.paper_keys(table, row)}
    rest = published.load().set_index(["table", "benchmark", "method"]).index.difference(list(reached))
    assert len(published.load()) == 99
    assert set(rest.get_level_values("method")) == {"rs_plus", "uno_plus", "orca", "xcon", "promptcal", "dccl"}


def test_every_sensitivity_row_shows_the_value_that_the_paper_prints() -> None:
    table = aggregate.sensitivity_table([], rows=SENSITIVITY_ROWS, benchmarks=["cub", "imagenet_100"])
    shown = {
        (line["benchmark"], f"full[{line['parameter']}={line['value']:g}]"): line["all_published"]
        for _, line in table.iterrows()
    }
    printed = published.load().query("table == 'sensitivity'")
    assert shown == dict(zip(zip(printed["benchmark"], printed["method"], strict=True), printed["all"], strict=True))


@pytest.mark.parametrize(
    ("table", "benchmark", "row", "expected"),
    [
        ("main_ssb", "cub", "full-paper", (64.5, 68.7, 61.5)),
        ("ssb", "scars", "kmeans", (12.8, 10.6, 13.8)),
        ("ablation_imagenet_100", "imagenet_100", "full-paper-without-n", (83.5, 93.4, 79.1)),
        ("sensitivity_cub", "cub", "full-paper+k=20", (63.4, 67.8, 60.8)),
        ("sensitivity_cub", "cub", "full-paper+lambda_n=0.30", (64.7, 68.9, 61.6)),
        ("main_ssb", "cub", "full-released", None),
        ("main_ssb", "cub", "full-mended", None),
        ("ablation_cub", "cub", "full-paper-zero", None),
        ("main_ssb", "cub", "full-paper+k=20", None),
        ("main_fashion", "fashion", "simgcd", None),
        ("main_cub50", "cub50", "full-paper", None),
    ],
)
def test_published_value(table: str, benchmark: str, row: str, expected: tuple[float, ...] | None) -> None:
    value = published.published_value(table, benchmark, row)
    assert value == (expected and dict(zip(("all", "old", "new"), expected, strict=True)))


def test_published_spread() -> None:
    assert published.published_spread("scars") == {"all": 2.2, "old": 1.7, "new": 2.4, "n": 3}
    assert published.published_spread("fashion") is None


# Aggregation


def test_mean_std_difference_and_verdict_by_hand() -> None:
    table = long(three("simgcd", 60.0), ["simgcd"])
    line = v2(table).iloc[0]
    assert (line["n"], line["seeds"], line["K"], line["epoch"], line["images"]) == (
        3,
        "0 1 2",
        200,
        199,
        4496,
    )
    assert (line["all_mean"], line["all_std"]) == (60.0, 1.0)  # of 59, 60, 61 with ddof = 1
    assert line["all_per_seed"] == "59.0 60.0 61.0"
    assert line["all_published"] == 60.3
    assert line["all_difference"] == pytest.approx(-0.3)
    assert line["all_verdict"] == "inside"  # 0.3 <= 2 sqrt(0.01/3 + 1/3) = 1.16
    assert line["old_verdict"] == "inside"  # 65 - 65.6, band 2 sqrt(0.81/3 + 1/3) = 1.55
    assert line["new_verdict"] == "inside"  # 57 - 57.7, band 2 sqrt(0.16/3 + 1/3) = 1.24


def test_published_values_stand_beside_v2_of_the_unlabelled_set_only() -> None:
    table = long(three("simgcd", 60.0), ["simgcd"])
    others = table[(table["set"] != "unlabelled") | (table["metric"] != "v2")]
    assert list(zip(table["set"], table["metric"], strict=True)) == [
        ("unlabelled", "v2"),
        ("unlabelled", "nmi"),
        ("test", "v2"),
    ]
    assert others[["all_published", "all_difference"]].isna().all(axis=None)
    assert set(others["all_verdict"]) == {""}
    assert others["old_mean"].isna().tolist() == [True, False]
    assert others["old_per_seed"].iloc[0] == ""


@pytest.mark.parametrize(
    ("difference", "expected"),
    [
        (2 * sqrt(0.5), "inside"),
        (-2 * sqrt(0.5), "inside"),
        (1.42, "above"),
        (-1.42, "below"),
        (0.0, "inside"),
    ],
)
def test_verdict_at_the_edge_of_its_band(difference: float, expected: str) -> None:
    assert aggregate.verdict(difference, 1.0, 4, sqrt(0.75), 3) == expected  # band: 2 sqrt(0.75/3 + 1/4)


def test_no_band_without_a_spread_or_with_one_seed() -> None:
    assert aggregate.verdict(0.0, 1.0, 3, None, 0) == "no band"
    line = v2(long([run("simgcd", 0, (60.0, 65.0, 57.0))], ["simgcd"])).iloc[0]
    assert pd.isna(line["all_std"])
    assert line["all_difference"] == pytest.approx(-0.3)
    assert line["all_verdict"] == "no band"


def test_a_row_without_runs_and_a_score_without_a_value_are_gaps() -> None:
    runs = [run("kmeans", 0, (34.0, 38.0, None)), run("kmeans", 1, (35.0, 39.0, 31.0))]
    table = v2(long(runs, ["kmeans", "full-paper"]))
    kmeans, missing = table.iloc[0], table.iloc[1]
    assert (missing["n"], missing["all_published"], missing["all_verdict"]) == (0, 64.5, "")
    assert pd.isna(missing["all_mean"])
    assert pd.isna(missing["K"])
    assert pd.isna(kmeans["new_mean"])  # a mean of half the seeds would pass for one of all
    assert (kmeans["new_per_seed"], kmeans["all_mean"]) == ("- 31.0", 34.5)


@pytest.mark.parametrize("change", [{"K": 231}, {"epoch": 3}, {"split_sha256": "0" * 64}, {"K_source": "estimated"}])
def test_runs_that_differ_are_not_averaged(change: dict[str, Any]) -> None:
    runs = [run("simgcd", 0, (60.0, 65.0, 57.0)), run("simgcd", 1, (60.0, 65.0, 57.0), **change)]
    key, value = next(iter(change.items()))
    with pytest.raises(UserError, match=rf"cub.*different {key} .*simgcd/seed0 has .*simgcd/seed1 has {value}"):
        long(runs, ["simgcd"])


def test_rows_of_one_benchmark_must_share_the_split_but_not_K() -> None:
    first = run("simgcd", 0, (60.0, 65.0, 57.0))
    other = run("kmeans", 0, (34.0, 38.0, 32.0), K=231, K_source="estimated")
    assert v2(long([first, other], ["kmeans", "simgcd"]))["K"].tolist() == [231, 200]
    with pytest.raises(UserError, match="split_sha256"):
        long([first, other | {"split_sha256": "0"}], ["kmeans", "simgcd"])


def test_bad_input_is_refused_in_one_sentence() -> None:
    good = run("simgcd", 0, (60.0, 65.0, 57.0))
    with pytest.raises(UserError, match="have a duplicate"):
        long([good, good], ["simgcd"])
    with pytest.raises(UserError, match="schema 2"):
        long([good | {"schema": 2}], ["simgcd"])
    with pytest.raises(UserError, match="no K_source"):
        long([{k: v for k, v in good.items() if k != "K_source"}], ["simgcd"])
    with pytest.raises(UserError, match="changes several"):
        aggregate.sensitivity_table([], rows=["full-paper+k=20+lambda_n=0.3"], benchmarks=["cub"])
    with pytest.raises(UserError, match="has an invalid override"):
        aggregate.sensitivity_table([], rows=["full-paper+k=many"], benchmarks=["cub"])


def test_sensitivity_repeats_the_main_run_under_each_parameter() -> None:
    rows = ["full-paper", "full-paper+k=5", "full-paper+lambda_n=0.3"]
    runs = [r for row in rows for r in three(row, 60.0, parameters={"lambda_n": 0.1, "lambda_c": 0.3, "k": 8})]
    table = v2(aggregate.sensitivity_table(runs, rows=rows, benchmarks=["cub"]))
    assert list(zip(table["method"], table["parameter"], table["value"], strict=True)) == [
        ("full-paper", "lambda_n", 0.1),
        ("full-paper+lambda_n=0.3", "lambda_n", 0.3),
        ("full-paper+k=5", "k", 5),
        ("full-paper", "k", 8),  # as its run resolved it
    ]


def test_a_written_table_reads_back_equal(tmp_path: Path) -> None:
    runs = three("simgcd", 60 + 1 / 3, benchmark=HOSTILE)
    runs.append(run("kmeans", 0, (1 / 3, None, None), benchmark=HOSTILE))
    table = long(runs, ["simgcd", "kmeans", "full-paper"], (HOSTILE,))
    render.write_table(table, tmp_path / "new" / "main_x", title="t", note="", kind="main")
    pd.testing.assert_frame_equal(aggregate.read_long(tmp_path / "new" / "main_x.csv"), table, check_exact=True)
    assert sorted(p.name for p in (tmp_path / "new").iterdir()) == [f"main_x.{s}" for s in ("csv", "html", "md", "tex")]


# Rendering


def wide(table: pd.DataFrame, **changes: Any) -> render.Table:
    return render.wide_table(table, **({"title": "t", "note": "", "kind": "main", "label": "x"} | changes))


def test_best_and_second_are_marked_with_ties_as_the_reader_sees_them() -> None:
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
    assert {(row.cells[2].mark, row.cells[2].text) for row in rows} == {("", render.GAP)}


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


def test_gaps_are_named_by_benchmark_and_n_where_it_differs() -> None:
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
    assert "Mixed environments: torch 2.12.0 (SimGCD) and 2.13.0 (Full method (paper))." in notes


def test_the_note_comes_first_and_an_unmixed_table_flags_nothing() -> None:
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
    """Collect the tags, attributes and text of a page; a tag that is never closed stays on the stack."""

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
def hostile() -> render.Table:
    table = long(three(HOSTILE, 60.0, benchmark=HOSTILE), [HOSTILE, "kmeans"], (HOSTILE, "cub"))
    return wide(table, title=HOSTILE, note=HOSTILE, label=HOSTILE)


def test_html_is_escaped_whole_and_self_contained(hostile: render.Table) -> None:
    page = render.rendered("table", "html", table=hostile)
    outline = Outline(page)
    assert outline.open == []
    assert "i" not in outline.tags
    assert not outline.attributes & {"onload", "src", "href"}
    assert "http" not in page
    assert outline.tags.count("caption") == 2
    assert outline.text.count(HOSTILE) >= 6  # title, caption, head, label, note, seeds
    assert '<meta name="viewport"' in page


def test_every_markdown_line_has_the_columns_of_its_head(hostile: render.Table) -> None:
    text = render.rendered("table", "md", table=hostile)
    tables = [block.splitlines() for block in text.split("\n\n") if block.startswith("|")]
    widths = [{len(re.findall(r"(?<!\\)\|", line)) for line in table} for table in tables]
    assert widths == [{2 + 6 + 1}, {6 + 1}]
    assert "<i" not in text
    assert r"\*d\* \[e\](f) \`g\`" in text


def latex_cells(line: str) -> int:
    line = re.sub(r"\\multicolumn\{(\d)\}", lambda m: "&" * (int(m[1]) - 1), line)
    return len(re.findall(r"(?<!\\)&", line)) + 1


def test_latex_is_balanced_and_has_its_columns(hostile: render.Table) -> None:
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
    assert render.as_latex("without L_n, lambda_c = 0.3, my_x") == r"without $L_n$, $\lambda_c$ = 0.3, my\_x"
    assert render.as_html("without L_n, lambda_c < 1") == "without L<sub>n</sub>, λ<sub>c</sub> &lt; 1"
    assert render.as_markdown("L_c a_b|c") == r"L<sub>c</sub> a\_b\|c"


@pytest.mark.skipif(shutil.which("pdflatex") is None, reason="pdflatex is not installed")
def test_latex_compiles(hostile: render.Table, tmp_path: Path) -> None:
    found = subprocess.run(["kpsewhich", "booktabs.sty"], capture_output=True, check=False)
    if found.returncode:
        pytest.skip("booktabs is not installed")
    table = render.rendered("table", "tex", table=hostile)
    head = "\\documentclass{article}\\usepackage[T1]{fontenc}\\usepackage{booktabs,graphicx}\\begin{document}\n"
    (tmp_path / "x.tex").write_text(head + table + "\\end{document}\n", encoding="utf-8")
    command = ["pdflatex", "-interaction=nonstopmode", "-halt-on-error", "-draftmode", "x.tex"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, errors="replace", check=False)
    assert done.returncode == 0, done.stdout[-2000:]


# -- verify ----------------------------------------------------------------------------------------------


def means(*values: float) -> pd.DataFrame:
    row = {"benchmark": "fashion", "set": "unlabelled", "metric": "v2", "K": 10, "n": 3, "old_mean": math.nan}
    return pd.DataFrame([row | {"method": f"row{i}", "all_mean": v, "new_mean": v / 2} for i, v in enumerate(values)])


def test_verify_tells_equal_near_and_far() -> None:
    reference = means(60.0, 70.0)
    for value, equal, farthest, good in ((70.0, 4, "0.00", True), (71.5, 2, "1.50", True), (67.9, 2, "2.10", False)):
        said, found = verdict({"main": compare(means(60.0, value), reference, "main")})
        assert found == good
        assert f"main: {equal} of 4 means equal, farthest {farthest} points" in said
        assert ("NOT all within 2 points" in said) == (not good)
        assert ("(row1, unlabelled v2, all_mean)" in said) == (value != 70.0)


def test_verify_refuses_other_rows() -> None:
    with pytest.raises(
        UserError, match=r"two tables: row1 on fashion \(unlabelled v2, all_mean, K = 10, n = 3\); row1 on"
    ):
        compare(means(60.0), means(60.0, 70.0), "main")


@pytest.mark.parametrize("text", ["", "method\n", "a\x00b\n", "word", "head alone", "no means", "a folder"])
def test_verify_refuses_what_is_no_table(tmp_path: Path, text: str) -> None:
    file, good = tmp_path / "main.csv", means(60.0).to_csv(index=False)
    file.write_text(good)
    assert compare(read_means(file), read_means(file), "main").difference.tolist() == [0, 0]
    file.unlink()
    if text == "a folder":
        file.mkdir()
    else:
        other = {"word": good.replace("60.0", "sixty"), "head alone": good.splitlines()[0] + "\n"}
        other["no means"] = means(math.nan).to_csv(index=False)
        file.write_text(other.get(text, text))
    with pytest.raises(UserError, match=r"main\.csv (is damaged; make it again|cannot be read)"):
        read_means(file)
