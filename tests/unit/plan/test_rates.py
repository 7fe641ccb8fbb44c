"""Cost and disk space of runs with an adapter."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from ctxgcd.config import Images, Params, parse
from ctxgcd.pipeline.resolve import resolve
from ctxgcd.pipeline.runs import Run
from ctxgcd.plan import rates
from ctxgcd.plan.lines import KEPT, plan
from ctxgcd.plan.rates import Finished, Measured
from ctxgcd.plan.sizes import disk_of
from ctxgcd.plan.work import Work, cached_views, work_of

IMAGES = Images(train=1500, test=1389)
ROW = "simgcd+tail=adapter+view_bank=4+epochs=50+precision=float32+batch_size=128"
DIM, CPU = 1280, "cpu: made up"


@pytest.fixture
def params(committed: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Params:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv(rates.VARIABLE, raising=False)
    blocks = {"tail": "blocks", "tail_blocks": 1, "precision": "float32", "view_bank": 4}
    committed["benchmarks"]["cub50"]["overrides"] |= blocks
    return parse(committed)


def finished(params: Params, row: str, seconds: float) -> Finished:
    p = resolve(params, "cub50", row, 0)
    return Finished("cub50", p, work_of(IMAGES, 50, p), seconds, CPU, 900.0, None)


def test_cached_features_are_those_of_the_whole_backbone(params: Params) -> None:
    runs = [resolve(params, "cub50", row, 0) for row in ("kmeans", ROW)]
    assert cached_views(IMAGES, runs) == {
        "test_view-tail0-float32": 2889,
        "view_bank-tail0-views4-seed0-float32": 6000,
    }
    disk = disk_of(params.benchmarks["cub50"], IMAGES, 256, runs[1:])
    assert disk.kept == (2889 + 6000) * DIM * 4
    blocks = disk_of(params.benchmarks["cub50"], IMAGES, 256, [resolve(params, "cub50", "simgcd+epochs=50", 0)])
    assert (disk.results or 0) - (blocks.results or 0) == 4 * (DIM * (DIM + 1) - 320 * DIM)
    assert disk.scratch == (blocks.scratch or 0) + 2 * 4 * (DIM * (DIM + 1) - 320 * DIM)


def test_steps_on_cached_features_are_cheap_and_views_cost_the_whole_backbone(params: Params) -> None:
    run, kept = plan(params, [Run("cub50", ROW, 0)], Measured([], {}, None))
    assert (run.views, run.rate.baseline) == (2 * 50 * 11 * 128 + 2889, 5000)
    assert "only pass through an adapter" in run.rate.source
    assert (kept.row, kept.views, kept.rate.baseline) == (KEPT, 8889, 1000)
    fresh = Measured([], {}, None).rate("cub50", resolve(params, "cub50", ROW.replace("view_bank=4", "view_bank=0"), 0))
    assert (fresh.baseline, fresh.source) == (1000, "assumed, not measured")


def test_an_adapter_is_measured_by_runs_with_an_adapter(params: Params) -> None:
    adapter, blocks = finished(params, ROW, 10.0), finished(params, "simgcd", 100.0)
    past = Measured([adapter, blocks], {}, None)
    found = past.rate("cub50", resolve(params, "cub50", f"{ROW}+lr=0.2", 1))
    assert found.hours(Work(baseline=adapter.work.views)) == pytest.approx(10 / 3600)
    assert past.memory("cub50", adapter.p).host == 900
    of_blocks = past.rate("cub50", resolve(params, "cub50", "simgcd+lr=0.2", 1))
    assert of_blocks.hours(Work(baseline=blocks.work.views)) == pytest.approx(100 / 3600)


def test_the_bench_of_a_trained_block_is_not_used_for_an_adapter(committed: dict[str, Any]) -> None:
    row = {"ours": "4.0", "device": CPU}
    bench = {f"training step, contextual phase, {way}, float32": row for way in ("exact", "view bank")}
    past = Measured([], bench, None)
    params = parse(committed)
    assert past.rate("cub", resolve(params, "cub", "simgcd", 0)).baseline == 4
    assert past.rate("cub", resolve(params, "cub", "simgcd+tail=adapter", 0)).baseline == 1000
