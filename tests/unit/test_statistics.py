"""Paired differences, Holm's correction and the audit of published rows."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from ctxgcd.errors import UserError
from ctxgcd.tables.audit import audit, audit_listing
from ctxgcd.tables.listing import Listing, write_listing
from ctxgcd.tables.statistics import against_baseline, holm, paired, statistics, statistics_listing


def test_paired_is_the_t_test() -> None:
    draw = np.random.RandomState(0)
    for n in (2, 3, 10):
        base, other = draw.randn(2, n)
        found = paired(other - base)
        expected = stats.ttest_rel(other, base)
        assert found["p"] == pytest.approx(expected.pvalue, rel=1e-9)
        low, high = expected.confidence_interval(0.95)
        assert (found["low"], found["high"]) == (pytest.approx(low), pytest.approx(high))
        assert found["detectable"] == pytest.approx((high - low) / 2)


@pytest.mark.parametrize(
    ("differences", "verdict"),
    [
        ([0.0, 0.0, 0.0], "no difference seen"),
        ([1.0, 1.1, 0.9], "helps"),
        ([-1.0, -1.1, -0.9], "hurts"),
        ([1.0, -1.0, 0.5], "no difference seen"),
        ([0.5, 0.5], "helps"),
        ([3.0], "one seed"),
    ],
)
def test_verdicts(differences: list[float], verdict: str) -> None:
    assert paired(np.array(differences))["verdict"] == verdict


def test_holm() -> None:
    # Worked by hand: 4 * 0.005, 3 * 0.01, 2 * 0.03, then never less than the one before.
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert holm([0.9, 0.8]) == [1.0, 1.0]
    assert holm([]) == []


def run(row: str, seed: int, value: float, **changes: Any) -> dict[str, Any]:
    score = {"set": "unlabelled", "metric": "v2", "n": 50, "all": value, "old": value + 1, "new": value - 1}
    return {
        **{"schema": 1, "benchmark": "cub50", "row": row, "seed": seed, "split_sha256": "a", "K": 50},
        **{"K_source": "true", "epoch": 9, "scores": [score, {**score, "set": "test", "all": 0.0}]},
        **changes,
    }


def test_statistics_pairs_common_seeds() -> None:
    metrics = [run("simgcd", seed, 40.0 + seed) for seed in (0, 1, 2, 3)]
    metrics += [run("full-paper", seed, 41.0 + seed + 0.1 * seed) for seed in (3, 1, 2, 7)]
    metrics += [run("full-paper-zero", seed, 40.0 + seed) for seed in (0, 1)]
    frame = statistics(
        metrics, pairs=against_baseline(["simgcd", "full-paper", "full-paper-zero", "full-mended"]), benchmark="cub50"
    )
    full, zero, mended = (row for _, row in frame.iterrows())
    assert (full["n"], full["seeds"]) == (3, "1 2 3")
    assert [float(v) for v in full["all_per_seed"].split()] == pytest.approx([1.1, 1.2, 1.3])
    assert full["all_verdict"] == "helps"
    assert full["all_p_holm"] == pytest.approx(2 * full["all_p"])
    assert (zero["n"], zero["all_difference"], zero["all_verdict"]) == (2, 0.0, "no difference seen")
    assert mended["n"] == 0
    assert pd.isna(mended["all_difference"])
    listing = statistics_listing(frame, "cub50")
    assert [line[:3] for line in listing.lines[:2]] == [
        ["Full method (paper)", "All", "3"],
        ["Full method (paper)", "Old", "3"],
    ]
    assert listing.lines[-1][-1] == "not run"


def test_runs_of_other_splits_cannot_be_compared() -> None:
    metrics = [run("simgcd", 0, 40.0), run("full-paper", 0, 41.0, split_sha256="b")]
    with pytest.raises(UserError, match="differ in split_sha256"):
        statistics(metrics, pairs={"full-paper": "simgcd"}, benchmark="cub50")


def test_audit_of_every_published_row() -> None:
    rows = audit().set_index(["table", "benchmark", "method"])
    assert len(rows) == 99
    assert rows.notna().all(axis=None)
    full = rows.loc[("ssb", "cub", "full")]
    assert full["expected_least"] == pytest.approx(63.9, abs=0.01)
    assert full["difference"] == pytest.approx(0.6, abs=0.01)
    assert not full["consistent"]
    assert not rows.loc[("generic", "cifar10", "dccl"), "consistent"]  # All below Old and New alike
    assert rows.loc[[key for key in rows.index if key[2] == "simgcd"], "consistent"].all()
    assert rows.loc[("ssb", "cub", "simgcd"), "expected_least"] == pytest.approx(60.3, abs=0.05)
    exact = rows[rows["w_old_least"] == rows["w_old_most"]]
    assert set(exact.index.get_level_values("benchmark")) == {"cifar10", "cifar100", "cub", "scars", "aircraft"}


def test_audit_listing(tmp_path: Path) -> None:
    rows = audit()
    listing = audit_listing(rows)
    assert len(listing.lines) == (~rows["consistent"]).sum()
    write_listing(rows, listing, tmp_path / "audit")
    assert pd.read_csv(tmp_path / "audit.csv").shape == rows.shape
    assert "41 of 99" in (tmp_path / "audit.md").read_text()


def test_a_listing_escapes_its_texts(tmp_path: Path) -> None:
    listing = Listing("<b> & 100%", ["a|b"], [["x_1 <i>"], ["$&#"]], ["{n}"], numbers_from=1)
    write_listing(pd.DataFrame({"a": ["x,1"]}), listing, tmp_path / "t")
    page, text, tex = ((tmp_path / f"t.{suffix}").read_text() for suffix in ("html", "md", "tex"))
    assert "<b>" not in page
    assert "<i>" not in page
    assert "a\\|b" in text
    assert r"100\%" in tex
    assert r"\{n\}" in tex
