"""The plan of a method whose steps depend on the images: a lower bound, and the steps of a finished run."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest

from ctxgcd.config import Images, Params
from ctxgcd.pipeline.resolve import resolve
from ctxgcd.pipeline.runs import Run
from ctxgcd.plan import rates
from ctxgcd.plan.lines import plan
from ctxgcd.plan.plan import write_plan
from ctxgcd.plan.rates import measured
from ctxgcd.plan.work import Work, work_of

RUN = Run("cub50", "xcon", 0)


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv(rates.VARIABLE, raising=False)


def finish(params: Params, run: Run, largest: int, seconds: float = 36.0) -> None:
    metrics = {
        **{"benchmark": run.benchmark, "row": run.row, "seed": run.seed, "seconds": seconds, "processes": 1},
        **{"peak_memory_mb": 900, "environment": {"device": "cpu: x"}},
        "parameters": resolve(params, run.benchmark, run.row, run.seed),
    }
    Path(run.folder).mkdir(parents=True, exist_ok=True)
    Path(run.file("metrics.json")).write_text(json.dumps(metrics), encoding="utf-8")
    lines = ["epoch,smallest_subset,median_subset,largest_subset,loss", f"0,3,9,{largest},1.5", f"1,3,9,{largest},1.2"]
    Path(run.file("history.csv")).write_text("\n".join([*lines, ""]), encoding="utf-8")


def work(params: Params, row: str = "xcon", **known: int) -> Work:
    return work_of(Images(train=1500, test=1389), 50, resolve(params, "cub50", row, 0), known)


def test_equal_subsets_are_counted_until_the_largest_is_known(params: Params) -> None:
    """A step has 256 images of all and 32 of each of 8 subsets; 1,500 images fill 5 steps, or a subset's 188 do."""
    assert work(params) == Work(contextual=2 * 55 * 5 * 512, test=2889)
    assert work(params, largest_subset=400) == Work(contextual=2 * 55 * 12 * 512, test=2889)
    assert work(params, "xcon+steps=global", largest_subset=400) == work(params)


def test_a_finished_run_tells_the_steps_of_other_seeds(params: Params) -> None:
    def line(row: str, seed: int = 1) -> tuple[int, str]:
        [found] = (one for one in plan(params, [Run("cub50", row, seed)], measured(params)) if one.seed is not None)
        return found.work.contextual, found.least

    bound, why = line("xcon")
    assert bound == work(params).contextual
    assert why.startswith("the steps of an epoch depend on the largest subset")
    finish(params, RUN, largest=400)
    assert line("xcon") == (work(params, largest_subset=400).contextual, "")
    assert line("xcon+experts=4")[1] == why
    assert line("simgcd")[1] == ""
    rate = measured(params).rate("cub50", resolve(params, "cub50", "xcon", 1))
    assert rate.baseline == pytest.approx(work(params, largest_subset=400).views / 36)


def test_the_plan_marks_a_lower_bound(params: Params) -> None:
    runs = [Run("cub50", row, seed) for row in ("xcon", "simgcd") for seed in (0, 1)]
    text = write_plan(params, runs, Path("plan.csv"))
    listed = next(line for line in text.splitlines() if line.startswith("cub50      xcon"))
    assert listed.count(">= ") == 2
    assert ">=: a lower bound, and so is a sum with it: the steps of an epoch depend on the largest subset" in text
    with open("plan.csv", newline="", encoding="utf-8") as file:
        assert [row["bound"] for row in csv.DictReader(file)][:4] == ["lower", "lower", "", ""]
    finish(params, RUN, largest=400)
    assert ">=" not in write_plan(params, runs, Path("plan.csv"))
