"""The plan: views counted by hand, sources of rates; available tables."""

from __future__ import annotations

import csv
import json
import shutil
from dataclasses import astuple, replace
from pathlib import Path
from typing import Any

import pytest
import torch

from ctxgcd.bench.training import CROP, MODEL, works
from ctxgcd.config import Images, Params, parse
from ctxgcd.errors import UserError
from ctxgcd.pipeline import code
from ctxgcd.pipeline.available import Available, available
from ctxgcd.pipeline.identity import identity
from ctxgcd.pipeline.resolve import resolve
from ctxgcd.pipeline.runs import Run
from ctxgcd.pipeline.tables import table_runs
from ctxgcd.pipeline.targets import refuse_unknown_rules, runs_behind
from ctxgcd.plan import rates
from ctxgcd.plan.lines import KEPT, plan
from ctxgcd.plan.plan import write_plan
from ctxgcd.plan.rates import Measured, measured
from ctxgcd.plan.work import Work, cached_views, trunk_views, work_of
from tests.helpers.places import ROOT

NOTHING = Measured([], {}, None)
DEMO = Images(train=2000, test=500)
CPU = "cpu: x"
MAIN = ("main_ssb", "main_generic", "main_challenging")


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv(rates.VARIABLE, raising=False)


def finish(params: Params, run: Run, seconds: float, **changes: Any) -> None:
    """Write the metrics of a run, as train and score do."""
    metrics = {
        **{"benchmark": run.benchmark, "row": run.row, "seed": run.seed, "seconds": seconds, "processes": 1},
        **{"training_seconds": seconds / 2, "peak_memory_mb": 900, "environment": {"device": CPU}},
        "parameters": resolve(params, run.benchmark, run.row, run.seed),
    }
    Path(run.folder).mkdir(parents=True, exist_ok=True)
    Path(run.file("metrics.json")).write_text(json.dumps(metrics | changes), encoding="utf-8")


# -- work --------------------------------------------------------------------------------------------------


def test_work_by_hand(demo: Params) -> None:
    def work(row: str) -> Work:
        return work_of(DEMO, 10, resolve(demo, "fashion", row, 0))

    # 15 steps of 128 images an epoch, 8 epochs; context terms from epoch 2, around 6 queries of 10 images.
    assert work("simgcd") == work("gcd") == Work(baseline=2 * 15 * 8 * 128, test=2500)
    assert work("full-paper") == Work(baseline=2 * 15 * 2 * 128, contextual=2 * 15 * 6 * (128 + 60), test=2500)
    assert work("full-paper+k=30").contextual == 2 * 15 * 6 * (128 + 60)
    # Released lists: one more train view of 2,000 images in each of the 6 epochs with context terms.
    assert work("full-mended+neighbour_lists=released") == replace(
        work("full-mended"), contextual=work("full-mended").contextual + 6 * 2000
    )
    assert work("kmeans") == Work(distances=2000 * 10 * 10)


def test_cached_features_are_made_once_for_all_runs(demo: Params) -> None:
    rows = ["kmeans", "simgcd", "full-paper", "simgcd+view_bank=0"]
    runs = [resolve(demo, "fashion", row, seed) for row in rows for seed in (0, 1)]
    expected = {"test_view-tail0-float32": 2500, "test_view-tail1-float32": 2500}
    assert cached_views(DEMO, runs) == expected | {"view_bank-tail1-views4-seed0-float32": 8000}
    assert trunk_views(DEMO, runs) == 2500 + 8000  # the frozen features are made from the tail's cached input
    assert trunk_views(DEMO, [runs[0]]) == 2500
    assert cached_views(DEMO, [resolve(demo, "fashion", "simgcd+view_bank=0", 0)]) == {}
    estimated = resolve(demo, "fashion", "simgcd+view_bank=0+K=estimated", 0)
    assert cached_views(DEMO, [estimated]) == {"test_view-tail0-float32": 2500}


def test_all_tables_cost_what_the_readme_says(params: Params) -> None:
    lines = plan(params, runs_behind(params, "all_tables"), NOTHING)
    trained = [line for line in lines if line.seed is not None]
    assert sum(line.row != "kmeans" for line in trained) == 528
    assert sum(line.row == "kmeans" for line in trained) == 24
    hours = {name: sum(line.hours for line in lines if line.benchmark == name) for name in params.benchmarks}
    assert sum(hours.values()) == pytest.approx(21_057.6, abs=0.05)
    assert hours["imagenet_1k"] / sum(hours.values()) == pytest.approx(0.84, abs=0.005)


# -- rates and memory --------------------------------------------------------------------------------------


def test_rates_by_source_most_specific_first(params: Params, monkeypatch: pytest.MonkeyPatch) -> None:
    p = resolve(params, "cub", "full-paper", 0)

    def rate() -> rates.Rate:
        return measured(params).rate("cub", p)

    assert (rate().baseline, rate().source) == (1000, "assumed, not measured")
    Path("results/bench").mkdir(parents=True)
    shutil.copy(ROOT / "docs/measured/bench_steps.csv", "results/bench/steps.csv")
    assert (rate().baseline, rate().contextual) == (4.365, 4.06)
    assert rate().source.startswith("make bench, exact, float32; cpu: ")
    # Each phase has its own cost: 10 baseline views, 5 of the evaluation and 20 contextual ones.
    hours = rate().hours(Work(baseline=10, contextual=20, test=5))
    assert hours == pytest.approx((15 / 4.365 + 20 / 4.06) / 3600)

    def views(benchmark: str, row: str) -> int:
        images = params.benchmarks[benchmark].images
        assert isinstance(images, Images)
        return work_of(images, 1, resolve(params, benchmark, row, 0)).views

    finish(params, Run("scars", "simgcd", 0), views("scars", "simgcd") / 50)
    assert rate().baseline == pytest.approx(50)
    assert rate().source == f"measured: 1 run of simgcd on scars; {CPU}"
    finish(params, Run("scars", "full-paper", 0), views("scars", "full-paper") / 40)
    assert rate().source == f"measured: 1 run of full on scars; {CPU}"
    finish(params, Run("cub", "full-paper", 0), views("cub", "full-paper") / 20)
    finish(params, Run("cub", "full-paper", 1), views("cub", "full-paper") / 60)
    assert rate().baseline == pytest.approx(30)  # of both runs' views over both runs' seconds
    assert rate().source == f"measured: 2 runs of full on cub; {CPU}"
    assert measured(params).rate("cub", resolve(params, "cub", "simgcd+view_bank=2", 0)).source.startswith("make bench")

    monkeypatch.setenv(rates.VARIABLE, "700")
    assert (rate().baseline, rate().source) == (700, rates.VARIABLE)
    for text in ("-1", "0", "1e-320", "1_000", "inf", "nan", "fast", ""):
        monkeypatch.setenv(rates.VARIABLE, text)
        with pytest.raises(UserError, match=f"is '{text}'; give a positive number"):
            rate()


@pytest.mark.parametrize("ours", ["abc", "0", "", "-4", "inf", "nan", "1_000"])
def test_a_damaged_line_of_the_bench_is_skipped(params: Params, capsys: pytest.CaptureFixture[str], ours: str) -> None:
    p = resolve(params, "cub", "full-paper", 0)
    file = Path("results/bench/steps.csv")
    file.parent.mkdir(parents=True)
    text = (ROOT / "docs/measured/bench_steps.csv").read_text().replace(",0.1379,", ",0,")  # a share may be 0
    file.write_text(text.replace(",4.365,", f",{ours},"))
    rate = measured(params).rate("cub", p)
    assert (rate.baseline, rate.contextual) == (4.06, 4.06)  # of the remaining line
    warning = f"'training step, baseline phase, exact, float32' is skipped, because ours is '{ours}'"
    assert capsys.readouterr().err.startswith(f"warning: {file}: {warning}")


@pytest.mark.parametrize("content", [b"", b"\x00\xff\n", b"work,unit\na,b\n"])
def test_a_damaged_bench_is_ignored_with_a_warning(
    params: Params, capsys: pytest.CaptureFixture[str], content: bytes
) -> None:
    Path("results/bench").mkdir(parents=True)
    Path("results/bench/steps.csv").write_bytes(content)
    found = measured(params)
    assert found.rate("cub", resolve(params, "cub", "full-paper", 0)).source == "assumed, not measured"
    assert capsys.readouterr().err.startswith("warning: the bench is ignored: results/bench/steps.csv is damaged")


def test_device_seconds_of_shared_and_of_interrupted_runs(params: Params) -> None:
    p = resolve(params, "fashion", "simgcd", 0)
    views = work_of(DEMO, 10, p).views
    finish(params, Run("fashion", "simgcd", 0), 10.0, processes=2)
    assert measured(params).rate("fashion", p).baseline == pytest.approx(views / 20)
    finish(params, Run("fashion", "simgcd", 0), 10.0, training_seconds=40.0)  # resumed after an interruption
    assert measured(params).rate("fashion", p).baseline == pytest.approx(views / 40)


def test_kmeans_scales_with_its_distances_or_is_unknown(params: Params) -> None:
    p, other = (resolve(params, benchmark, "kmeans", 0) for benchmark in ("cub", "scars"))
    assert NOTHING.rate("cub", p).baseline is None
    assert NOTHING.rate("cub", p).hours(Work(distances=9)) == 0
    finish(params, Run("scars", "kmeans", 0), 36.0)
    assert other["K"] == 196
    rate = measured(params).rate("cub", p)
    assert rate.hours(Work(distances=8144 * 196 * 10)) == pytest.approx(0.01)


def test_memory_by_source(params: Params) -> None:
    p = resolve(params, "cub", "full-paper", 0)
    assert NOTHING.memory("cub", p) == rates.Memory(None, None, "")
    bench = {rates.BENCHED_MEMORY: {"ours": "3939", "device": "NVIDIA X"}}
    assert Measured([], bench, None).memory("cub", p).device == 3939
    assert Measured([], bench, None).memory("imagenet_1k", resolve(params, "imagenet_1k", "simgcd", 0)).device is None
    finish(params, Run("cub", "simgcd", 0), 1.0, peak_device_memory_mb=5000)
    finish(params, Run("cub", "full-paper", 0), 1.0, peak_memory_mb=950, peak_device_memory_mb=6000)
    finish(params, Run("cub", "full-paper", 1), 1.0, peak_memory_mb=970, peak_device_memory_mb=5900)
    found = measured(params).memory("cub", p)
    assert (found.host, found.device) == (970, 6000)


def test_the_bench_still_measures_what_the_plan_reads() -> None:
    made = {work.name for work in works(torch.device("cpu"))}
    read = {f"training step, {phase} phase, exact, float32" for phase in ("baseline", "contextual")}
    assert read | {"training step, contextual phase, view bank, float32", rates.BENCHED_MEMORY} <= made
    assert rates.BENCHED == {"model": MODEL, "crop": CROP, "tail_blocks": 1}


def test_a_damaged_run_is_named(params: Params) -> None:
    finish(params, Run("cub", "simgcd", 0), 1.0)
    Path("results/runs/cub/simgcd/seed0/metrics.json").write_text("{}")
    with pytest.raises(UserError, match=r"seed0/metrics\.json is damaged; delete it"):
        measured(params)


# -- the whole -----------------------------------------------------------------------------------------------


def test_done_runs_cost_nothing_and_every_run_is_listed(demo: Params) -> None:
    runs = runs_behind(demo, "results/main_fashion.csv")
    for seed in (0, 1):
        finish(demo, Run("fashion", "simgcd", seed), 36.0)
    finish(demo, Run("fashion", "simgcd", 2), 36.0, parameters={"lr": 9})  # made with other parameters
    with pytest.raises(UserError, match="damaged"):
        write_plan(demo, runs, Path("plan.csv"))
    other = resolve(demo, "fashion", "simgcd", 2) | {"lr": 9.0}
    finish(demo, Run("fashion", "simgcd", 2), 36.0, parameters=other)
    text = write_plan(demo, [*runs, *runs], Path("work/plan.csv"))
    with open("work/plan.csv", encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 27 + 1  # nine rows, three seeds, and what they share
    states = [row["state"] for row in rows if row["row"] == "simgcd"]
    assert states == ["done", "done", "to train"]
    hours = {(row["row"], row["seed"]): float(row["device_hours"]) for row in rows}
    assert hours["simgcd", "0"] == 0
    assert hours["simgcd", "2"] == pytest.approx(0.01)
    shared = next(row for row in rows if row["row"] == KEPT)
    assert int(shared["views"]) == 10_500
    assert "fashion    simgcd             0-2       2         1            0.0         0.010" in text
    assert f"measured: 3 runs of simgcd on fashion; {CPU}" in text
    assert write_plan(demo, [], Path("none.csv")) == "These targets need no run."


def test_cached_features_are_planned_without_other_rows(committed: dict[str, Any]) -> None:
    """For a benchmark too short for the warm-up of simgcd's teacher, and without a section of simgcd."""
    committed["benchmarks"]["cub50"]["overrides"] = {"epochs": 5, "tail": "blocks", "view_bank": 4}
    del committed["methods"]["simgcd"]
    params = parse(committed)
    finish(params, Run("cub50", "gcd+view_bank=0", 0), 36.0)
    shared = plan(params, [Run("cub50", row, 0) for row in ("gcd", "kmeans")], measured(params))[-1]
    assert (shared.row, shared.views) == (KEPT, 8_889)
    assert shared.rate.source == f"measured: 1 run of gcd on cub50; {CPU}"


@pytest.mark.parametrize(
    ("target", "number"),
    [
        ("all_tables", 8 * 23 * 3),
        ("demo", 6 * 5 + 2 * 3 + 3),  # the ablation shares three rows with the main table, the sensitivity one
        ("benchmark_fashion", 6 * 5 + 2 * 3 + 3),
        ("results/ablation_cub.csv", 7 * 3),
        ("results/main_ssb.md", 3 * 11 * 3),
        ("results/runs/cub/simgcd/seed7/metrics.json", 1),
        ("results/figures/curves_fashion.png", 4 * 5),
        ("results/figures/embedding_fashion.png", 1),
        ("results/figures/sensitivity_fashion.png", 6),
        ("results/splits/cub.csv", 0),
        ("check_data", 0),
    ],
)
def test_runs_behind_a_target(params: Params, target: str, number: int) -> None:
    runs = runs_behind(params, target)
    assert len(runs) == len(set(runs)) == number


def test_a_mistyped_rule_is_refused_and_files_are_not() -> None:
    refuse_unknown_rules(["all_tables", "results/odd.csv", "work/x.npy"], ["all_tables", "demo"])
    with pytest.raises(UserError, match="unknown target 'al_tables'; did you mean 'all_tables'"):
        refuse_unknown_rules(["al_tables"], ["all_tables", "demo"])
    with pytest.raises(UserError, match=r"resluts/main_ssb\.csv: unknown folder 'resluts'; did you mean 'results'"):
        refuse_unknown_rules(["resluts/main_ssb.csv"], ["all_tables", "demo"])


# -- available tables -------------------------------------------------------------------------------------------


def here(params: Params, *benchmarks: str) -> Available:
    return available(params, lambda benchmark: "" if benchmark in benchmarks else f"{benchmark} is missing")


def test_available_tables(params: Params) -> None:
    found = here(params, "cub", "herbarium_19", "imagenet_1k")
    files = found.files()
    assert "results/available/main_ssb.csv" in files
    assert {"results/main_challenging.tex", "results/ablation_cub.csv", "results/terms_imagenet_1k.html"} <= set(files)
    assert not [file for file in files if "main_generic" in file or "scars" in file or file == "results/main_ssb.csv"]
    assert found.lacking("main_ssb") == ["scars", "aircraft"]
    assert {run.benchmark for run in found.runs("main_ssb")} == {"cub"}
    assert {run.benchmark for run in found.runs_behind("available_tables")} == {"cub", "herbarium_19", "imagenet_1k"}
    assert "not available: scars: scars is missing" in found.summary()
    assert {run.benchmark for run in found.runs("main_generic")} == {"cifar10", "cifar100", "imagenet_100"}


def test_finished_runs_replace_missing_data(params: Params) -> None:
    with pytest.raises(UserError, match="no benchmark of all_tables has its data and weights, or finished runs"):
        here(params).summary()
    for row in params.rows_of["main_ssb"]:
        for seed in params.seeds:
            assert "results/available/main_ssb.csv" not in here(params).files()
            finish(params, Run("cub", row, seed), 1.0)
    assert here(params).files() == [f"results/available/main_ssb.{suffix}" for suffix in ("csv", "md", "tex", "html")]


def test_a_finished_run_in_the_cache_is_found(params: Params) -> None:
    run = Run("fashion", "simgcd", 0)
    split = Path("results/splits/fashion.sha256")
    split.parent.mkdir(parents=True)
    split.write_text("abc\n")
    assert [line.state for line in plan(params, [run], NOTHING) if line.seed == 0] == ["to train"]
    kept = Path(
        "work/runs",
        f"{identity(resolve(params, *astuple(run)), 'abc', code.run('sheet', 'simgcd').hash)}-simgcd",
        "finished",
    )
    kept.mkdir(parents=True)
    (line,) = plan(params, [run], NOTHING)  # no cached features are requested, either
    assert (line.state, line.hours) == ("in work/runs", 0)


def test_the_cost_of_float32_is_known_only_from_measurements_of_both(
    committed: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def notes(row: str = "simgcd") -> str:
        return " ".join(write_plan(parse(committed), [Run("cub", row, 0)], tmp_path / "plan.csv").split())

    unknown = "Device hours in float32 are unknown: no device has measured rates of both precisions"
    assert unknown in notes()  # assumed
    assert "Precision" not in notes("simgcd+precision=float32")
    assert unknown in notes("kmeans")  # which reads cached features
    monkeypatch.setenv(rates.VARIABLE, "500")
    assert unknown in notes()
    monkeypatch.delenv(rates.VARIABLE)
    file = tmp_path / "results/bench/steps.csv"
    file.parent.mkdir(parents=True)

    def measure(**ours: float) -> None:
        lines = [f'"training step, contextual phase, exact, {of}",{value},{CPU}' for of, value in ours.items()]
        file.write_text("\n".join(["work,ours,device", *lines]) + "\n")

    measure(float32=100.0)
    assert unknown in notes()
    measure(float32=100.0, bf16=250.0)
    views = 2 * 200 * (5994 // 128) * 128 + 5994 + 5794
    hours = [f"{views / rate / 3600:.3f}" for rate in (100, 250)]
    said = f"Precision bf16: in float32, as the published numbers, {hours[0]} device hours instead of {hours[1]}."
    assert said in notes()


def test_one_line_computes_the_main_tables_in_float32(committed: dict[str, Any]) -> None:
    """docs/reproduce.md, "In float32"."""
    params = parse(committed)
    before = {run: resolve(params, *astuple(run)) for table in MAIN for run in table_runs(params, table)}
    committed["protocols"]["official"]["precision"] = "float32"
    params = parse(committed)
    after = {run: resolve(params, *astuple(run)) for run in before}
    assert {p["precision"] for p in before.values()} == {"bf16"}
    assert all(after[run] == p | {"precision": "float32"} for run, p in before.items())
    assert len(before) > 100
