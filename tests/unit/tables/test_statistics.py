"""Paired differences, Holm's correction and the audit of published rows."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from ctxgcd.errors import UserError
from ctxgcd.names import TERM_SIZES
from ctxgcd.tables.audit import audit, audit_listing
from ctxgcd.tables.listing import Listing, write_listing
from ctxgcd.tables.statistics import holm, paired, statistics, statistics_listing
from ctxgcd.tables.status import status, status_listing
from ctxgcd.tables.term_sizes import terms_listing, terms_table


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
    # By hand: 4 * 0.005, 3 * 0.01, 2 * 0.03, then at least the previous value.
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
        metrics, pairs=dict.fromkeys(["full-paper", "full-paper-zero", "full-mended"], "simgcd"), benchmark="cub50"
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
    with pytest.raises(UserError, match="different split_sha256"):
        statistics(metrics, pairs={"full-paper": "simgcd"}, benchmark="cub50")


def test_undefined_values_are_not_compared() -> None:
    assert paired(np.array([np.nan, np.nan, np.nan])) == {"verdict": "not defined"}
    metrics = [run(row, seed, 40.0 + seed) for row in ("simgcd", "full-paper") for seed in range(3)]
    for metric in metrics:
        metric["scores"][0]["new"] = None  # no New image in this set
    frame = statistics(metrics, pairs={"full-paper": "simgcd", "full-mended": "simgcd"}, benchmark="cub50")
    assert frame["new_verdict"][0] == "not defined"
    assert frame["new_p"].isna().all()
    assert frame["new_p_holm"].isna().all()
    assert frame["all_verdict"][0] == "no difference seen"
    assert (frame["K"].dtype, frame["epoch"][0]) == ("Int64", 9)  # integers, although one row is missing
    new = statistics_listing(frame, "Title").lines[2]
    assert new[3:] == ["–", "–", "–", "–", "–", "not defined"]
    assert statistics_listing(frame, "Title").lines[0][3] == "41.0 / 41.0"


@pytest.mark.parametrize(
    ("changes", "words"),
    [({"K": 51}, "different K"), ({"epoch": 8}, "different epoch"), ({"seed": 0}, "have a duplicate")],
)
def test_runs_of_one_row_must_agree(changes: dict[str, Any], words: str) -> None:
    metrics = [run("simgcd", seed, 40.0) for seed in (0, 1)] + [run("full-paper", 0, 41.0)]
    metrics += [run("full-paper", 1, 41.0) | changes]
    with pytest.raises(UserError, match=words):
        statistics(metrics, pairs={"full-paper": "simgcd"}, benchmark="cub50")


def test_seeds_whose_projections_collapsed_are_named() -> None:
    metrics = [run(row, seed, 40.0 + seed) for row in ("simgcd", "full-paper", "full-mended") for seed in range(3)]
    metrics[5]["collapsed"] = True  # full-paper, seed 2
    frame = statistics(metrics, pairs={"full-paper": "simgcd", "full-mended": "simgcd"}, benchmark="cub50")
    assert list(frame["collapsed"]) == ["2", ""]
    notes = [note for note in statistics_listing(frame, "Title").notes if note.startswith("Collapsed")]
    assert len(notes) == 1
    assert notes[0].endswith("had almost no effect): Full method (paper): seed 2.")


def test_audit_of_every_published_row() -> None:
    rows = audit().set_index(["table", "benchmark", "method"])
    assert len(rows) == 99
    assert rows.notna().all(axis=None)
    full = rows.loc[("ssb", "cub", "full")]
    assert full["expected_least"] == pytest.approx(63.9, abs=0.01)
    assert full["difference"] == pytest.approx(0.6, abs=0.01)
    assert not full["consistent"]
    assert not rows.loc[("generic", "cifar10", "dccl"), "consistent"]  # All is below both Old and New
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


def test_any_row_can_be_compared_with_any_other() -> None:
    metrics = [run("full-paper", seed, 40.0 + seed) for seed in range(3)]
    metrics += [run("full-paper+K=60", seed, 39.0 + 1.1 * seed, K=60, K_source="given") for seed in range(3)]
    metrics += [run("full-paper+tau=1.0", seed, 40.0 + seed) for seed in range(3)]
    pairs = {"full-paper+K=60": "full-paper", "full-paper+tau=1.0": "full-paper+K=60"}
    frame = statistics(metrics, pairs=pairs, benchmark="cub50")
    assert list(frame["against"]) == ["full-paper", "full-paper+K=60"]
    assert [float(v) for v in frame["all_per_seed"][0].split()] == pytest.approx([-1.0, -0.9, -0.8])
    assert [float(v) for v in frame["all_per_seed"][1].split()] == pytest.approx([1.0, 0.9, 0.8])
    listing = statistics_listing(frame, "Title")
    assert listing.lines[0][0] == "Full method (paper), K = 60 against Full method (paper)"
    note = (
        "K = 60 (given) against 50: Full method (paper), K = 60; 50 (true) against 60: Full method (paper), tau = 1.0."
    )
    assert listing.notes[-1] == note


# -- size of the terms -----------------------------------------------------------------------------------


def shares(epoch: int, share: float) -> dict[str, Any]:
    def sizes(weight: float, of: float) -> dict[str, float]:
        values = {f"{size}{kind}": of * 2 if not kind else of for size in TERM_SIZES for kind in ("", "_share")}
        return {"weight": weight, **values}

    return {"epoch": epoch, "terms": {"cls": sizes(0.35, 1 - share), "L_c": sizes(0.3, share)}}


def test_terms_are_averaged_over_seeds() -> None:
    metrics = [
        run("full-paper", seed, 1.0, shares=[shares(2, 0.1), shares(9, 0.2 * seed)], active_from={"cls": 0, "L_c": 2})
        for seed in (0, 1, 2)
    ]
    frame = terms_table(metrics, rows=["full-paper", "full-mended"], benchmark="cub50")
    assert [(row["epoch"], row["term"], row["n"]) for _, row in frame.iterrows()] == [
        (2, "cls", 3),
        (2, "L_c", 3),
        (9, "cls", 3),
        (9, "L_c", 3),
    ]
    last = frame.iloc[3]
    assert (last["weight"], last["active_from"]) == (0.3, 2)
    assert (last["gradient_share_mean"], last["gradient_share_std"]) == (pytest.approx(0.2), pytest.approx(0.2))
    assert last["loss_mean"] == pytest.approx(0.4)
    listing = terms_listing(frame, "Title")
    assert listing.head == ["Row", "Epoch", "n", "CE", "L_c"]
    assert listing.lines[1] == ["Full method (paper)", "9", "3", "80/80/80", "20/20/20"]
    assert listing.notes[-1] == "Terms that start after epoch 0: L_c of Full method (paper) from epoch 2."
    assert len(terms_table([], rows=["simgcd"], benchmark="cub50")) == 0
    with pytest.raises(UserError, match="full-paper, seed 0 have no sizes of the terms"):
        terms_table([run("full-paper", 0, 1.0)], rows=["full-paper"], benchmark="cub50")


# -- state of the published rows -------------------------------------------------------------------------


def test_every_published_row_has_a_state() -> None:
    planned = [
        {"table": table, "benchmark": "cub", "row": row, "seeds": [0, 1]}
        for table, row in (("main_ssb", "simgcd"), ("main_ssb", "kmeans"), ("ablation_cub", "full-paper"))
    ]
    made = {"environment": {"device": "card A"}, "parameters": {"precision": "bf16"}}
    metrics = [run("simgcd", seed, 60.0 + seed, benchmark="cub", **made) for seed in (0, 1, 7)]
    metrics += [run("kmeans", 1, 34.0, benchmark="cub", **made)]
    frame = status(planned, metrics, built=["kmeans", "simgcd", "full"])
    assert len(frame) == 99
    by_key = frame.set_index(["table", "benchmark", "method"])
    done = by_key.loc[("ssb", "cub", "simgcd")]
    assert (done["state"], done["n"], done["device"], done["row"]) == ("reproduced", 2, "card A", "simgcd")
    assert done["all_difference"] == pytest.approx(60.5 - 60.3)
    begun = by_key.loc[("ssb", "cub", "kmeans")]
    assert (begun["state"], begun["why"]) == ("planned", "1 of 2 runs exist")
    planned_only = by_key.loc[("losses", "cub", "full")]
    assert (planned_only["state"], planned_only["why"]) == ("planned", "0 of 2 runs exist")
    assert by_key.loc[("ssb", "cub", "dccl"), "why"] == "this method is not implemented"
    assert by_key.loc[("ssb", "scars", "simgcd"), "why"] == "params.yaml lists no such row for this benchmark"
    assert by_key.loc[("sensitivity", "cub", "full[k=20]"), "why"] == "params.yaml lists no such row for this benchmark"
    assert (frame["state"] == "reproduced").sum() == 1
    mixed = [metrics[0], metrics[1] | {"K": 180}]  # made with two values of K
    mixed_row = (
        status(planned, mixed, built=[]).set_index(["table", "benchmark", "method"]).loc[("ssb", "cub", "simgcd")]
    )
    assert mixed_row["state"] == "planned"
    assert "different K" in mixed_row["why"]
    listing = status_listing(frame)
    assert "1 reproduced, 2 planned, 96 not supported" in listing.title
    assert all(len(line) == len(listing.head) for line in listing.lines)
    assert (done["precision"], begun["precision"]) == ("bf16", "bf16")
    assert sum("reproduced on card A in bf16" in line for line in listing.lines) == 1
    assert listing.notes[-1] == "The published numbers were computed in float32."
    assert "float32" not in status_listing(frame.assign(precision="float32")).notes[-1]
