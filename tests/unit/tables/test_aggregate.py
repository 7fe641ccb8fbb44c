"""Aggregation and verdicts, computed by hand."""

from __future__ import annotations

from math import sqrt
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from ctxgcd.errors import UserError
from ctxgcd.names import TERM_SIZES
from ctxgcd.tables import aggregate, render
from ctxgcd.tables.make import make_table
from tests.helpers.tables import HOSTILE, long, run, three, v2

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


def test_a_row_without_runs_and_a_score_without_a_value_are_empty() -> None:
    runs = [run("kmeans", 0, (34.0, 38.0, None)), run("kmeans", 1, (35.0, 39.0, 31.0))]
    table = v2(long(runs, ["kmeans", "full-paper"]))
    kmeans, missing = table.iloc[0], table.iloc[1]
    assert (missing["n"], missing["all_published"], missing["all_verdict"]) == (0, 64.5, "")
    assert pd.isna(missing["all_mean"])
    assert pd.isna(missing["K"])
    assert pd.isna(kmeans["new_mean"])  # a mean of half the seeds would look like one of all
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
    with pytest.raises(UserError, match="duplicate"):
        long([good, good], ["simgcd"])
    with pytest.raises(UserError, match="schema 2"):
        long([good | {"schema": 2}], ["simgcd"])
    with pytest.raises(UserError, match="no K_source"):
        long([{k: v for k, v in good.items() if k != "K_source"}], ["simgcd"])
    with pytest.raises(UserError, match="changes several"):
        aggregate.sensitivity_table([], rows=["full-paper+k=20+lambda_n=0.3"], benchmarks=["cub"])
    with pytest.raises(UserError, match="write key=number"):
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


@pytest.mark.parametrize("precision", ["bf16", "float32"])
def test_every_csv_has_the_precision_of_its_rows(tmp_path: Path, precision: str) -> None:
    sizes = {"weight": 1.0} | {f"{size}{of}": 1.0 for size in TERM_SIZES for of in ("", "_share")}
    more = {"shares": [{"epoch": 9, "terms": {"cls": sizes}}], "active_from": {"cls": 0}}
    numbers = {"lambda_n": 0.1, "lambda_c": 0.3, "k": 10}
    rows = ["simgcd", "full-paper", "full-paper+k=20"]
    metrics = [run(row, 0, (60.0, 65.0, 57.0), parameters={"precision": precision, **numbers}, **more) for row in rows]
    for kind in ("main", "ablation", "sensitivity", "statistics", "unknowns", "speed", "terms"):
        of_kind = rows[1:] if kind == "sensitivity" else rows[:2]
        table = "main_ssb" if kind == "main" else f"{kind}_cub"
        request = {"table": table, "kind": kind, "rows": of_kind, "benchmarks": ["cub"], "note": ""}
        request |= {"absent": [], "pairs": {"full-paper": "simgcd"}}
        make_table(metrics, request, tmp_path / kind, {})
        found = pd.read_csv(tmp_path / f"{kind}.csv")
        assert len(found)
        assert set(found.loc[found["n"] > 0, "precision"] if "note" in found else found["precision"]) == {precision}, (
            kind
        )
        if "against" in found:
            assert set(found["precision_against"]) == {precision}
        text = (tmp_path / f"{kind}.md").read_text()
        assert ("published numbers were computed in float32" in text) == (
            precision == "bf16" and kind in ("main", "ablation", "sensitivity")
        )


def test_runs_of_one_row_have_one_precision() -> None:
    different = [{"precision": "bf16"}, {"precision": "float32"}]
    runs = [run("simgcd", seed, (60.0, 65.0, 57.0), parameters=p) for seed, p in enumerate(different)]
    with pytest.raises(UserError, match=r"different precision cannot be in one table .*seed0 has bf16"):
        long(runs, ["simgcd"])
