"""Published numbers: each is used, in the right row."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest

from ctxgcd.tables import aggregate, published
from ctxgcd.tables.make import make_table
from ctxgcd.tables.status import status
from tests.helpers.tables import LOSS_ROWS, MAIN_ROWS, SENSITIVITY_ROWS, long, three, with_published

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


MAIN = ("main_ssb", "main_generic", "main_challenging")
COMPARED = ["rs_plus", "uno_plus", "orca", "xcon", "promptcal", "dccl"]


def test_the_main_tables_have_every_row_of_the_paper() -> None:
    """38 of them are not run here; the others stand beside our rows."""
    tables = {table: with_published([], MAIN_ROWS, table) for table in MAIN}
    alone = {table: found[found["note"] == aggregate.PUBLISHED_ONLY] for table, found in tables.items()}
    assert sum(map(len, alone.values())) == 38
    assert list(dict.fromkeys(alone["main_ssb"]["method"])) == COMPARED
    assert list(alone["main_challenging"]["method"]) == ["rs_plus", "uno_plus", "orca"]
    shown = pd.concat(
        found.dropna(subset="all_published").assign(table=published.paper_table(table))
        for table, found in tables.items()
    )
    columns = ["benchmark", *(f"{q}_published" for q in published.QUANTITIES)]
    printed = published.load().query("table in ['ssb', 'generic', 'challenging']")
    expected = printed[["table", "benchmark", *published.QUANTITIES]].to_numpy().tolist()
    assert sorted(shown[["table", *columns]].to_numpy().tolist()) == sorted(expected)


def test_a_published_row_has_nothing_that_is_measured() -> None:
    runs = three("simgcd", 60.0)
    table = with_published(runs, MAIN_ROWS)
    alone = table["note"] == aggregate.PUBLISHED_ONLY
    assert not alone[: alone.argmax()].any()
    assert alone[alone.argmax() :].all()  # below all of our rows
    pd.testing.assert_frame_equal(table[~alone], long(runs, MAIN_ROWS, ("cub", "scars", "aircraft")))
    given = ["benchmark", "method", "set", "metric", "n", *(f"{q}_published" for q in published.QUANTITIES), "note"]
    empty = table.loc[alone].drop(columns=given)
    assert (empty.isna() | (empty == "")).all(axis=None)
    assert set(table.loc[alone, "n"]) == {0}
    assert table.loc[alone, given[:5]].drop_duplicates().shape == (17, 5)
    assert not table.loc[alone, "method"].isin(MAIN_ROWS).any()
    first = table[alone].iloc[0]
    assert [first[column] for column in given[:4]] == ["cub", "rs_plus", *aggregate.COMPARED]
    assert [first[f"{q}_published"] for q in published.QUANTITIES] == [33.3, 51.6, 24.2]


def test_a_row_that_is_run_takes_the_place_of_the_published_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(published.PAPER_KEYS, "rsplus", "rs_plus")
    table = with_published(three("rsplus", 30.0), [*MAIN_ROWS, "rsplus"])
    alone = table[table["note"] == aggregate.PUBLISHED_ONLY]
    assert list(dict.fromkeys(alone["method"])) == COMPARED[1:]
    own = table.query("benchmark == 'cub' and method == 'rsplus' and set == 'unlabelled' and metric == 'v2'").iloc[0]
    assert (own["n"], own["all_mean"], own["all_published"]) == (3, 30.0, 33.3)
    without_gcd = with_published([], ["simgcd"])
    assert "gcd" in set(without_gcd.loc[without_gcd["note"] == aggregate.PUBLISHED_ONLY, "method"])


@pytest.mark.parametrize("kind", ["main", "ablation", "sensitivity"])
def test_only_the_main_tables_of_the_paper_have_published_rows(tmp_path: Path, kind: str) -> None:
    rows = ["full-paper", "full-paper+k=20"] if kind == "sensitivity" else ["simgcd", "full-paper"]
    metrics = [run for row in rows for run in three(row, 60.0)]
    request = {"kind": kind, "rows": rows, "benchmarks": ["cub"], "note": "", "absent": [], "pairs": {}}
    for table in ("main_ssb", "main_mine") if kind == "main" else (f"{kind}_cub",):
        make_table(metrics, request | {"table": table}, tmp_path / table, {})
        found = aggregate.read_long(tmp_path / f"{table}.csv")
        alone = set(found.loc[found["note"] == aggregate.PUBLISHED_ONLY, "method"])
        assert alone == ({"kmeans", "gcd", *COMPARED} if table == "main_ssb" else set())


def test_published_rows_are_not_counted_as_made_or_planned() -> None:
    planned = [{"table": "main_ssb", "benchmark": "cub", "row": row, "seeds": [0, 1, 2]} for row in MAIN_ROWS]
    states = status(planned, three("simgcd", 60.0), published.PAPER_KEYS.values())["state"].value_counts()
    assert states.to_dict() == {"reproduced": 1, "planned": 3, "not supported": 95}


def test_published_spread() -> None:
    assert published.published_spread("scars") == {"all": 2.2, "old": 1.7, "new": 2.4, "n": 3}
    assert published.published_spread("fashion") is None
