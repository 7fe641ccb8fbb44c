"""The cost of runs that share the trunk, counted by hand."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from ctxgcd.config import Images, Params
from ctxgcd.pipeline.resolve import resolve
from ctxgcd.pipeline.runs import Run
from ctxgcd.plan import rates
from ctxgcd.plan.lines import plan
from ctxgcd.plan.plan import write_plan
from ctxgcd.plan.rates import Measured
from ctxgcd.plan.shared import bounds, trained_together
from ctxgcd.plan.work import Work, work_of
from tests.unit.plan.conftest import shortened

NOTHING = Measured([], {}, None)
DEMO = Images(train=2000, test=500)
EVERY = DEMO.train + DEMO.test


@pytest.fixture
def fresh(committed: dict[str, Any]) -> Params:
    """fashion with new views of a ViT: 15 steps of 128 images in each of 8 epochs, context terms from epoch 2."""
    return shortened(committed, view_bank=0, backbone="dino_vitb16", crop=224, resize=256)


def test_sampled_views_are_computed_once(fresh: Params) -> None:
    """Around 6 queries of 10 images from epoch 2, of 5 images from epoch 4: at least 60 other images, at most 120."""
    rows = ["simgcd", "gcd+epochs=10", "full-paper", "full-paper+k=5+T_warm=4+neighbour_images=60"]
    runs = [resolve(fresh, "fashion", row, 0) for row in rows]
    low, high = bounds(DEMO, runs)
    steps = 2 * 15
    assert low == Work(baseline=steps * (2 + 2) * 128, contextual=steps * 6 * (128 + 60), test=EVERY)
    assert high == Work(baseline=steps * (2 + 2) * 128, contextual=steps * (6 * 128 + 2 * 60 + 4 * 120), test=EVERY)
    assert bounds(DEMO, runs[:1]) == (work_of(DEMO, 10, runs[0]), work_of(DEMO, 10, runs[0]))


def test_test_views_that_are_too_large_are_counted_again(fresh: Params) -> None:
    """1.3 million test views of 197 tokens are not kept: the lists of full-paper need them before each of 6 epochs."""
    large = Images(train=1_200_000, test=100_000)
    full, released, simgcd, orca = (
        resolve(fresh, "fashion", row, 0)
        for row in ("full-paper", "full-mended+neighbour_lists=released", "simgcd", "orca")
    )
    every = large.train + large.test
    tests = [work_of(large, 10, p).test for p in (full, released, simgcd, orca)]
    assert tests == [every + 6 * large.train, every, every, every + 8 * large.train]
    assert work_of(large, 10, full | {"view_bank": 2}).test == every
    assert work_of(DEMO, 10, full).test == EVERY
    assert {work.test for work in bounds(large, [full, simgcd])} == {2 * every + 6 * large.train}
    assert {work.test for work in bounds(large, [full, simgcd, full, orca])} == {4 * every + 8 * large.train}


def test_the_plan_has_both_costs(fresh: Params, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv(rates.VARIABLE, "500")
    runs = [Run("fashion", row, seed) for row in ("kmeans", "simgcd", "full-paper") for seed in (0, 1)]
    [found] = trained_together(fresh, plan(fresh, runs, Measured([], {}, 500.0)))
    sampled, around, kept = 2 * 15 * 8 * 128, 2 * 15 * 6 * 60, EVERY
    assert found.sharing == 4
    assert found.alone.views == 2 * (2 * sampled + around + 2 * EVERY) + kept
    assert found.least == found.most  # only one row has neighbours
    assert found.least.views == 2 * (sampled + around + EVERY) + kept
    assert found.least.hours == pytest.approx(found.least.views / 500 / 3600)
    assert "trained by `snakemake together`:" in write_plan(fresh, runs, tmp_path / "plan.csv")
    alone = [Run("fashion", row, 0) for row in ("simgcd", "full-paper+precision=bf16", "gcd+batch_size=64")]
    assert trained_together(fresh, plan(fresh, alone, NOTHING)) == []
    assert "together" not in write_plan(fresh, alone, tmp_path / "plan.csv")
