"""Published numbers of newer methods: values, units and sources, and that no table of results reads them."""

from __future__ import annotations

import re

import pytest

from ctxgcd.config import Params
from ctxgcd.pipeline import code
from ctxgcd.tables.display import BENCHMARKS
from ctxgcd.tables.field import BACKBONES, METHODS, load_field
from ctxgcd.tables.published import HERE, QUANTITIES, load

KEY = ["method", "benchmark", "backbone", "source"]
SOURCE = re.compile(r"arXiv \d{4}\.\d{5}|github\.com/\S+ at [0-9a-f]{7}|wizwand\.com page of the \w+ paper")


def test_every_number_is_in_percent_with_a_source() -> None:
    rows = load_field()
    assert len(rows) == 271
    assert not rows[KEY].duplicated().any()
    assert rows["source"].map(lambda source: bool(SOURCE.search(source))).all()
    assert rows["all"].notna().all()
    values = rows[[*QUANTITIES]].stack().dropna()
    assert values.between(1, 100).all()  # a share would be at most 1
    assert (values * 10).round(6).mod(1).eq(0).all()  # as printed, with one decimal
    between = rows["all"].between(rows[["old", "new"]].min(axis=1), rows[["old", "new"]].max(axis=1))
    assert between[rows[[*QUANTITIES]].notna().all(axis=1)].all()


def test_every_key_has_a_name(params: Params) -> None:
    rows = load_field()
    assert set(rows["method"]) == set(METHODS)
    assert set(rows["backbone"]) == set(BACKBONES)
    assert {"dino_vitb16", "dinov2_vitb14"} <= set(params.backbones)
    assert set(rows["benchmark"]) == set(load()["benchmark"]) <= set(BENCHMARKS)


@pytest.mark.parametrize(
    ("method", "benchmark", "backbone", "source", "expected"),
    [
        ("hyp_selex", "cub", "dinov2_vitb14", "HypCD", (90.7, 85.3, 93.4)),
        ("simgcd_rerun", "imagenet_1k", "dino_vitb16", "SimGCD README", (57.0, 77.1, 46.9)),
        ("trm_gcd", "herbarium_19", "dino_vitb16", "TRM-GCD README", (48.4, 58.7, 42.9)),
    ],
)
def test_numbers_by_hand(
    method: str, benchmark: str, backbone: str, source: str, expected: tuple[float, float, float]
) -> None:
    rows = load_field()
    of = rows[(rows["method"] == method) & (rows["benchmark"] == benchmark) & (rows["backbone"] == backbone)]
    (found,) = of[of["source"].str.startswith(source)][[*QUANTITIES]].to_numpy().tolist()
    assert tuple(found) == expected


def test_the_numbers_of_the_papers_own_baselines_agree() -> None:
    """GCD and SimGCD on DINO are in both files."""
    printed = load().query("table in ['ssb', 'generic', 'challenging']")
    rows = load_field().query("method in ['gcd', 'simgcd'] and backbone == 'dino_vitb16'")
    both = rows.merge(printed, on=["method", "benchmark"], suffixes=("", "_printed"), validate="many_to_one")
    assert len(both) == len(rows) == 22
    for quantity in QUANTITIES:
        assert both[quantity].tolist() == both[f"{quantity}_printed"].tolist()


def test_inconsistent_numbers_are_found() -> None:
    """The check needs all three values and D^u, so not those of the test part."""
    rows = load_field()
    assert rows.loc[rows["on_test_part"], "method"].unique().tolist() == ["cms_inductive"]
    wrong = rows[rows["inconsistent"]]
    assert len(wrong) == 15
    assert wrong["new"].notna().all()
    # 0.3334 * 68.8 + 0.6666 * 65.1 = 66.3
    assert set(zip(wrong["method"], wrong["benchmark"], strict=True)) >= {("sptnet", "cub"), ("gpc", "imagenet_100")}


def test_no_step_reads_them() -> None:
    """So a number added to the file makes no table of results again, and is never mixed with measured ones."""
    assert (HERE / "published_newer.csv").is_file()
    reached = {name: code.reached(*roots).modules for name, roots in code.steps().items()}
    assert [name for name, modules in reached.items() if "ctxgcd.tables.field" in modules] == []
    assert "ctxgcd.tables.published" in reached["make_table"]
    data = {
        name: {path for one in patterns for path in code.ROOT.joinpath("ctxgcd").glob(one)}
        for name, patterns in code.DATA.items()
    }
    assert [name for name, files in data.items() if HERE / "published_newer.csv" in files] == ["ctxgcd.tables.field"]
