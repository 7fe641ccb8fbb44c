"""Published numbers: each is used, in the right row."""

from __future__ import annotations

import pytest

from ctxgcd.tables import aggregate, published
from tests.helpers.tables import LOSS_ROWS, MAIN_ROWS, SENSITIVITY_ROWS

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
