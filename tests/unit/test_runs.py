"""What a run is: row names, precedence of values, identity, which runs the tables need, what is refused."""

from __future__ import annotations

import copy
import json
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ctxgcd.catalogue import entries
from ctxgcd.catalogue.sections import Closed
from ctxgcd.config import Params, completed, parse
from ctxgcd.errors import UserError
from ctxgcd.methods.step import Batch
from ctxgcd.names import NOT_IN_PAPER
from ctxgcd.pipeline import targets
from ctxgcd.pipeline.identity import ESTIMATED, identity, read_estimate
from ctxgcd.pipeline.possible import check_asked
from ctxgcd.pipeline.resolve import backbone_of, limits_of, protocol_of, resolve
from ctxgcd.pipeline.rows import parse_row
from ctxgcd.pipeline.runs import Run
from ctxgcd.pipeline.targets import requested_benchmarks, table_runs
from ctxgcd.plan.sizes import disk_of
from ctxgcd.plan.work import images_around, images_in
from ctxgcd.tables.display import method_name
from ctxgcd.tables.published import published_value

ROOT = Path(__file__).resolve().parents[2]
EIGHT = ["cub", "scars", "aircraft", "cifar10", "cifar100", "imagenet_100", "herbarium_19", "imagenet_1k"]
BOTH = ["L_n", "L_c"]


def edited(committed: dict[str, Any], place: str, value: Any) -> Params:
    *above, last = place.split(".")
    section = committed
    for part in above:
        section = section[part]
    section[last] = value
    return parse(committed)


def told(call: Callable[[], Any]) -> str:
    """The sentence of the UserError that the call raises."""
    with pytest.raises(UserError) as raised:
        call()
    assert "\n" not in str(raised.value)
    return str(raised.value)


# -- row names -------------------------------------------------------------------------------------------

ROWS: list[tuple[str, tuple[str, str | None, dict[str, Any], list[str], list[str]]]] = [
    ("kmeans", ("kmeans", None, {}, [], [])),
    ("simgcd", ("simgcd", None, {}, [], [])),
    ("full-paper", ("full", "paper", {}, BOTH, [])),
    ("full-released", ("full", "released", {}, BOTH, [])),
    ("full-mended", ("full", "mended", {}, BOTH, [])),
    ("full-paper+lambda_n=0.3", ("full", "paper", {"lambda_n": 0.3}, BOTH, [])),
    ("full-paper-without-n", ("full", "paper", {}, ["L_c"], [])),
    ("full-paper-without-c", ("full", "paper", {}, ["L_n"], [])),
    ("full-paper-zero", ("full", "paper", {}, BOTH, BOTH)),
    ("full-mended-without-n", ("full", "mended", {}, ["L_c"], [])),
    ("full-paper+k=20", ("full", "paper", {"k": 20}, BOTH, [])),
    ("full-paper+lambda_n=0.3+lambda_c=0.5", ("full", "paper", {"lambda_n": 0.3, "lambda_c": 0.5}, BOTH, [])),
    ("full-paper+lambda_n=1e-05", ("full", "paper", {"lambda_n": 1e-05}, BOTH, [])),
    ("full-paper+lambda_n=1e-05-without-c", ("full", "paper", {"lambda_n": 1e-05}, ["L_n"], [])),
    ("full-paper+lr=1.0e-3+k=5-zero", ("full", "paper", {"lr": 0.001, "k": 5}, BOTH, BOTH)),
    ("full-paper+settings=stated", ("full", "paper", {"settings": "stated"}, BOTH, [])),
    ("full-paper+settings=stated-without-n", ("full", "paper", {"settings": "stated"}, ["L_c"], [])),
    ("simgcd+settings=stated", ("simgcd", None, {"settings": "stated"}, [], [])),
    ("simgcd+lr=0.05", ("simgcd", None, {"lr": 0.05}, [], [])),
    ("full-paper+reciprocal=dataset", ("full", "paper", {"reciprocal": "dataset"}, BOTH, [])),
]


@pytest.mark.parametrize(("row", "parts"), ROWS, ids=[row for row, _ in ROWS])
def test_rows_that_can_be_read(params: Params, row: str, parts: Any) -> None:
    assert parse_row(row) == (*parts, [])
    resolved = resolve(params, "cub", row, 0)
    assert resolved["row"] == row
    assert resolved["method"] == parts[0]
    for key, value in parts[2].items():
        if key in resolved:
            assert resolved[key] == value
            assert type(resolved[key]) is type(value)


REFUSED_ROWS: list[tuple[str, list[str]]] = [
    ("full-papr", ["unknown variant of full 'papr'", "did you mean 'paper'?", "paper, released, mended"]),
    ("full", ["unknown variant of full", "paper, released, mended"]),
    ("full-realeased", ["did you mean 'released'?"]),
    ("ful-paper", ["unknown method 'ful'", "did you mean 'full'?"]),
    ("simgdc", ["unknown method 'simgdc'", "did you mean 'simgcd'?", "kmeans, gcd, simgcd, full"]),
    ("k-means", ["unknown method 'k'", "kmeans, gcd, simgcd, full"]),
    ("", ["unknown method ''"]),
    ("simgcd-paper", ["simgcd has neither variants nor terms to leave out"]),
    ("simgcd-without-n", ["simgcd has neither variants nor terms to leave out", "write 'simgcd'"]),
    ("kmeans-zero", ["kmeans has neither variants nor terms to leave out"]),
    ("full-paper-without-m", ["is invalid", "-without-n|-without-c|-zero"]),
    ("full-paper-without-n-without-c", ["is invalid"]),
    ("full-paper+lambda_n", ["is invalid", "+key=value"]),
    ("full-paper+lambda_n=0.3-without-n", ["sets lambda_n", "-without-n already changes L_n", "remove one"]),
    ("full-paper+lambda_c=0.3-zero", ["sets lambda_c", "-zero already changes L_c"]),
    ("simgcd+eagc", ["is invalid: '+eagc' has no value; write METHOD[+key=value...]"]),
    ("full-paper+lambda_n=", ["is invalid"]),
    ("full-paper lambda_n=0.3", ["is invalid"]),
    ("full-paper+lamda_n=0.3", ["unknown parameter 'lamda_n'", "did you mean 'lambda_n'?"]),
    ("full-paper+settings=statd", ["unknown settings 'statd'", "did you mean 'stated'?"]),
    ("simgcd+k=8", ["simgcd does not read k, which is a value of full; valid: tail,"]),
    ("simgcd+T_warm=8", ["simgcd does not read T_warm, which is a value of full"]),
    (
        "kmeans+lr=0.1",
        ["kmeans does not read lr, which is a value of gcd, simgcd, full; valid: precision, threads"],
    ),
    ("full-paper+restarts=3", ["full does not read restarts, which is a value of kmeans"]),
    ("full-paper+lambda_n=-0.1", ["lambda_n", "greater than or equal to 0", "found -0.1"]),
    ("full-paper+lambda_n=NaN", ["lambda_n", "finite", "found nan"]),
    ("full-paper+lambda_n=Infinity", ["lambda_n", "finite", "found inf"]),
    ("full-paper+lambda_n=much", ["lambda_n", "number", "found 'much'"]),
    ("full-paper+k=8.5", ["k", "integer", "found 8.5"]),
    ("full-paper+reciprocal=data", ["reciprocal", "'batch'", "'dataset'"]),
]


@pytest.mark.parametrize(("row", "words"), REFUSED_ROWS, ids=[row or "empty" for row, _ in REFUSED_ROWS])
def test_rows_that_are_refused(params: Params, row: str, words: list[str]) -> None:
    sentence = told(lambda: resolve(params, "cub", row, 0))
    assert not [word for word in words if word not in sentence], sentence
    assert row in sentence


def test_unknown_benchmark(params: Params) -> None:
    assert "did you mean 'scars'?" in told(lambda: resolve(params, "cars", "simgcd", 0))


# -- values and their order of precedence ------------------------------------------------------------------


def test_released_k_of_each_benchmark(params: Params) -> None:
    found = {b: resolve(params, b, "full-released", 0)["k"] for b in EIGHT}
    assert found == {b: 8 if b in ("cub", "cifar100") else 4 for b in EIGHT}
    assert {resolve(params, b, "full-paper", 0)["k"] for b in EIGHT} == {10}


def test_settings_of_each_variant(params: Params) -> None:
    names = ("lambda_n", "lambda_c", "k", "context_delay", "settings", "variant", "T_warm")
    table = {row: resolve(params, "scars", row, 0) for row in ("full-paper", "full-released", "full-mended")}
    assert {row: tuple(p[n] for n in names) for row, p in table.items()} == {
        "full-paper": (0.1, 0.3, 10, 0, "default", "paper", 50),
        "full-released": (0.1, 0.1, 4, 1, "scripts", "released", 50),
        "full-mended": (0.1, 0.3, 10, 0, "default", "mended", 50),
    }
    stated = resolve(params, "cub", "full-paper+settings=stated", 0)
    temperatures = ("info_nce_temperature", "sup_con_temperature", "teacher_schedule")
    assert tuple(stated[t] for t in temperatures) == (0.07, 0.1, "cosine")
    baseline = resolve(params, "cub", "simgcd", 0)
    assert tuple(baseline[t] for t in temperatures) == (1.0, 0.07, "linear")
    zero = resolve(params, "cub", "full-paper-zero", 0)
    assert (zero["lambda_n"], zero["lambda_c"], zero["context_terms"]) == (0.0, 0.0, BOTH)


def test_entropy_weight_of_each_benchmark(params: Params) -> None:
    found = {b: resolve(params, b, "simgcd", 0)["entropy_weight"] for b in EIGHT}
    assert found == {b: {"cub": 2.0, "cifar100": 4.0}.get(b, 1.0) for b in EIGHT}


def test_precedence(committed: dict[str, Any]) -> None:
    """Section of the method < settings < the benchmark's values < its values of one settings < the row's own."""
    cub = committed["benchmarks"]["cub"]

    def k(row: str) -> Any:
        return resolve(parse(committed), "cub", row, 0)["k"]

    cub["settings"] = {}
    assert (k("full-paper"), k("full-released"), k("full-mended")) == (10, 4, 10)
    cub["overrides"], cub["methods"] = {"lr": 0.07}, {"full": {"k": 6}}
    assert (k("full-paper"), k("full-released")) == (6, 6)
    cub["settings"] = {"scripts": {"full": {"k": 8}}}
    assert (k("full-paper"), k("full-released")) == (6, 8)
    assert (k("full-paper+k=12"), k("full-released+k=12")) == (12, 12)
    assert k("full-paper+settings=scripts") == 8
    assert resolve(parse(committed), "cub", "simgcd", 0)["lr"] == 0.07
    assert resolve(parse(committed), "cub", "simgcd+lr=0.3", 0)["lr"] == 0.3
    assert resolve(parse(committed), "scars", "simgcd", 0)["lr"] == 0.1


def test_a_wrong_override_is_refused_where_it_stands(committed: dict[str, Any]) -> None:
    changed = edited(committed, "benchmarks.cub.overrides", {"lr": "fast"})
    sentence = told(lambda: resolve(changed, "cub", "simgcd", 0))
    assert "benchmark cub" in sentence
    assert "lr" in sentence
    assert "found 'fast'" in sentence


def test_the_seed_is_part_of_a_run(params: Params) -> None:
    identities = {identity(resolve(params, "cub", "simgcd", seed)) for seed in range(5)}
    assert len(identities) == 5
    assert Run("cub", "simgcd", 3).folder == "results/runs/cub/simgcd/seed3"


# -- identity ----------------------------------------------------------------------------------------------

OF_IMAGES = {
    *("split.seed", "split.labelled_share", "benchmarks.cub.classes", "backbones.dino_vitb16.mean"),
    *("backbones.dino_vitb16.std", "backbones.dino_vitb16.model", "backbones.dino_vitb16.weights"),
    *(
        "protocols.official.backbone",
        "protocols.official.resize",
        "protocols.official.crop",
        "protocols.official.threads",
    ),
}
OF_BASELINE = {
    *("protocols.official.tail_blocks", "protocols.official.tail_lr_factor", "protocols.official.view_bank"),
    *("methods.simgcd.projector_width", "methods.simgcd.projection_dim", "protocols.official.epochs"),
    *(
        "protocols.official.batch_size",
        "protocols.official.lr",
        "protocols.official.lr_floor",
        "protocols.official.momentum",
    ),
    *("protocols.official.weight_decay", "methods.simgcd.supervised_weight", "methods.simgcd.student_temperature"),
    *("methods.simgcd.teacher_temperature_start", "methods.simgcd.teacher_temperature_end"),
    *("methods.simgcd.teacher_warmup_epochs", "benchmarks.cub.methods.simgcd.entropy_weight"),
    *("methods.simgcd.info_nce_temperature", "methods.simgcd.sup_con_temperature", "methods.simgcd.teacher_schedule"),
}
OF_CONTEXT = {
    *("methods.full.T_warm", "methods.full.k", "methods.full.context_delay", "methods.full.neighbour_images"),
    *("methods.full.reciprocal", "methods.full.tau", "methods.full.lambda_c"),
    *("methods.full.lambda_n", "methods.full.delta"),
}
OTHER: dict[str, Any] = {
    **{"split.seed": 1, "split.labelled_share": 0.4, "benchmarks.cub.classes": 150},
    **{"backbones.dino_vitb16.mean": [0.5, 0.5, 0.5], "backbones.dino_vitb16.std": [0.5, 0.5, 0.5]},
    **{"backbones.dino_vitb16.model": "vit_base_patch16_224", "backbones.dino_vitb16.weights": "package"},
    **{
        "protocols.official.backbone": "efficientnet_lite0",
        "protocols.official.resize": 260,
        "protocols.official.crop": 192,
    },
    **{"protocols.official.threads": 2, "methods.kmeans.restarts": 3, "protocols.official.tail_blocks": 2},
    **{
        "protocols.official.tail_lr_factor": 0.5,
        "protocols.official.view_bank": 4,
        "protocols.official.view_bank_seed": 1,
    },
    **{"methods.simgcd.projector_width": 512, "methods.simgcd.projection_dim": 64, "protocols.official.epochs": 190},
    **{"methods.full.T_warm": 40, "protocols.official.batch_size": 64, "protocols.official.lr": 0.2},
    **{"protocols.official.lr_floor": 0.1, "protocols.official.momentum": 0.8, "protocols.official.weight_decay": 0.0},
    **{"methods.simgcd.supervised_weight": 0.5, "methods.simgcd.student_temperature": 0.2},
    **{"methods.simgcd.teacher_temperature_start": 0.08, "methods.simgcd.teacher_temperature_end": 0.05},
    **{"methods.simgcd.teacher_warmup_epochs": 20, "benchmarks.cub.methods.simgcd.entropy_weight": 1.5},
    **{"methods.full.k": 8, "methods.full.lambda_n": 0.2, "methods.full.lambda_c": 0.2},
    **{"methods.full.context_delay": 1, "methods.full.neighbour_images": 64, "methods.full.delta": 2.0},
    **{"methods.full.reciprocal": "dataset", "methods.full.tau": 0.1, "methods.simgcd.teacher_schedule": "cosine"},
    **{"methods.simgcd.info_nce_temperature": 0.5, "methods.simgcd.sup_con_temperature": 0.1},
    # of these no run of `paper` values depends
    **{
        "settings.scripts.full.lambda_c": 0.5,
        "protocols.fashion.lr": 0.5,
        "benchmarks.cub50.methods.simgcd.entropy_weight": 3.0,
    },
    **{
        "benchmarks.cub.folder": "birds",
        "benchmarks.cub.images": {"train": 7000, "test": 1},
    },
    **{"backbones.dino_vitb16.note": "seen", "seeds": [0, 1, 2, 3], "sensitivity.k": [10], "rows.main": ["simgcd"]},
    **{"all_tables.ablation": [], "tables.main_ssb": ["cub"]},
}


@pytest.mark.parametrize(
    ("row", "reads"),
    [
        ("kmeans", OF_IMAGES | {"methods.kmeans.restarts"}),
        ("simgcd", OF_IMAGES | OF_BASELINE),
        ("full-paper", OF_IMAGES | OF_BASELINE | OF_CONTEXT),
        ("full-mended", OF_IMAGES | OF_BASELINE | OF_CONTEXT),
    ],
)
def test_identity_holds_exactly_what_is_read(committed: dict[str, Any], row: str, reads: set[str]) -> None:
    before = identity(resolve(parse(committed), "cub", row, 0))
    changed = set()
    for place, value in OTHER.items():
        *above, last = place.split(".")
        section = committed
        for part in above:
            section = section[part]
        assert section[last] != value, place
        kept, section[last] = section[last], value
        if identity(resolve(parse(committed), "cub", row, 0)) != before:
            changed.add(place)
        section[last] = kept
    assert changed == reads
    assert reads < set(OTHER)


@pytest.mark.parametrize(
    ("row", "unread"), [("full-paper-without-n", "lambda_n"), ("full-paper-without-c", "lambda_c")]
)
def test_weight_of_an_ablated_term_is_no_part_of_the_identity(committed: dict[str, Any], row: str, unread: str) -> None:
    before = identity(resolve(parse(committed), "cub", row, 0))
    assert identity(resolve(edited(committed, f"methods.full.{unread}", 0.9), "cub", row, 0)) == before


def test_identity_does_not_depend_on_the_name_of_the_row(params: Params) -> None:
    def of(row: str) -> str:
        return identity(resolve(params, "cub", row, 0))

    assert of("full-paper") == of("full-paper+lambda_n=0.1") == of("full-paper+settings=default")
    assert of("full-paper+lambda_n=1e-05") == of("full-paper+lambda_n=0.00001")
    rows = ["simgcd", "kmeans", "full-paper", "full-mended", "full-released", "full-paper-zero"]
    rows += ["full-paper-without-n", "full-paper-without-c", "full-paper+lambda_n=0.3", "full-paper+lambda_c=0.5"]
    assert len({of(row) for row in rows}) == len(rows)


def test_identity_depends_on_split_and_code(params: Params) -> None:
    parameters = resolve(params, "cub", "simgcd", 0)
    found = {identity(parameters), identity(parameters, "a"), identity(parameters, "", "a"), identity(parameters, "b")}
    assert len(found) == 4
    assert all(re.fullmatch(r"[0-9a-f]{16}", own) for own in found)
    shuffled = dict(reversed(parameters.items()))
    assert identity(shuffled) == identity(parameters)


def test_identity_of_local_weights_is_their_content(committed: dict[str, Any], tmp_path: Path) -> None:
    def own(path: Path) -> str:
        params = edited(committed, "backbones.dino_vitb16", {**dino, "weights": str(path), "sha256": ""})
        return identity(resolve(params, "cub", "simgcd", 0))

    dino = committed["backbones"]["dino_vitb16"]

    first, second, third = (tmp_path / name for name in ("a.pth", "b.pth", "c.pth"))
    first.write_bytes(b"weights")
    second.write_bytes(b"weights")
    third.write_bytes(b"Weights")
    assert own(first) == own(second) != own(third)
    first.write_bytes(b"weightS")
    assert own(first) != own(second)
    assert str(tmp_path) not in str(resolve(parse(committed), "cub", "simgcd", 0))


# -- which runs the tables need --------------------------------------------------------------------------


def all_runs(params: Params) -> list[Run]:
    return list(dict.fromkeys(run for table in targets.all_tables(params) for run in table_runs(params, table)))


def test_equal_runs_are_one(params: Params) -> None:
    """No two runs of all tables compute the same, whatever their names."""
    needed = all_runs(params)
    identities = Counter(identity(resolve(params, r.benchmark, r.row, r.seed)) for r in needed)
    assert len(identities) == len(needed)
    rows = {run.row for run in needed}
    assert "full-paper+lambda_n=0.3" in rows
    assert not {"full-paper+lambda_n=0.1", "full-paper+lambda_c=0.3", "full-paper+k=10"} & rows
    for table in targets.all_tables(params):
        found = table_runs(params, table)
        assert len(set(found)) == len(found)


def test_sensitivity_rows(params: Params) -> None:
    expected = ["full-paper"] + [f"full-paper+lambda_n={v}" for v in (0.3, 0.5, 0.7)]
    expected += [f"full-paper+lambda_c={v}" for v in (0.1, 0.5, 0.7)] + ["full-paper+k=20", "full-paper+k=30"]
    assert targets.table_rows(params, "sensitivity", "cub") == expected
    points = targets.sensitivity_points(params, "cub")
    assert [(key, value) for key, value, _ in points] == [
        *(("lambda_n", v) for v in (0.1, 0.3, 0.5, 0.7)),
        *(("lambda_c", v) for v in (0.1, 0.3, 0.5, 0.7)),
        *(("k", v) for v in (10, 20, 30)),
    ]


def test_a_value_of_a_grid_keeps_its_digits(committed: dict[str, Any]) -> None:
    changed = edited(committed, "sensitivity.lambda_n", [0.12345678, 0.50000001, 1000000.0, 1e-7])
    points = [point for point in targets.sensitivity_points(changed, "cub") if point[0] == "lambda_n"]
    assert [row for _, _, row in points] == [
        f"full-paper+lambda_n={text}" for text in ("0.12345678", "0.50000001", "1000000", "1e-07")
    ]
    assert [resolve(changed, "cub", row, 0)["lambda_n"] for _, _, row in points] == [value for _, value, _ in points]


def test_base_of_a_grid_follows_the_settings(committed: dict[str, Any]) -> None:
    changed = edited(committed, "methods.full.lambda_n", 0.5)
    rows = targets.table_rows(changed, "sensitivity", "cub")
    assert "full-paper+lambda_n=0.1" in rows
    assert "full-paper+lambda_n=0.5" not in rows


def test_counts_of_trainings(committed: dict[str, Any]) -> None:
    def counted() -> tuple[int, int]:
        needed = all_runs(parse(committed))
        k_means = sum(run.row == "kmeans" for run in needed)
        return len(needed) - k_means, k_means

    assert counted() == (384, 24)
    committed["rows"]["ablation"] = [
        row for row in committed["rows"]["ablation"] if row not in ("full-mended", "full-paper-zero")
    ]
    committed["rows"]["main"].remove("gcd")
    assert counted() == (312, 24)
    committed["seeds"] = [0]
    assert counted() == (104, 8)


def test_tables_and_seeds(params: Params) -> None:
    assert targets.all_tables(params) == [
        *("main_ssb", "main_generic", "main_challenging"),
        *(f"ablation_{b}" for b in EIGHT),
        *(f"statistics_{b}" for b in EIGHT),
        *(f"terms_{b}" for b in EIGHT),
        *(f"sensitivity_{b}" for b in EIGHT),
    ]
    found = table_runs(params, "main_ssb")
    assert [run.benchmark for run in found] == [b for b in ("cub", "scars", "aircraft") for _ in range(15)]
    assert [run.seed for run in found] == [0, 1, 2] * 15
    assert "did you mean 'main_ssb'?" in told(lambda: table_runs(params, "main_sb"))
    assert "did you mean 'cub'?" in told(lambda: table_runs(params, "ablation_cubb"))


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
    assert sentence in told(lambda: requested_benchmarks(params, [word]))


# -- what could not train, or would train something else ------------------------------------------------

IMPOSSIBLE: list[tuple[str, Any, str, list[str]]] = [
    ("methods.full.k", 129, "full-paper", ["k is 129", "neighbour_images (128)", "smaller k"]),
    (
        "benchmarks.cub.images",
        {"train": 200, "test": 1},
        "full-paper+k=201+neighbour_images=300",
        ["k is 201", "only 200 training images"],
    ),
    ("benchmarks.cub.images", {"train": 199, "test": 1}, "simgcd", ["K is 200", "199 training images"]),
    ("benchmarks.cub.images", {"train": 199, "test": 1}, "kmeans", ["K is 200", "199 training images"]),
    ("protocols.official.batch_size", 5995, "simgcd", ["batch_size 5995", "5994 training images", "smaller"]),
    ("methods.full.neighbour_images", 5994 * 10 + 10, "full-paper", ["neighbour_images", "more queries than"]),
    ("protocols.official.tail_blocks", 0, "full-paper", ["tail_blocks is 0", "cannot change predictions"]),
    ("protocols.official.tail_blocks", 0, "full-released", ["tail_blocks is 0"]),
    ("settings.scripts.full.reciprocal", "dataset", "full-released", ["reciprocal 'dataset'", "released", "'batch'"]),
    (
        "methods.full.T_warm",
        200,
        "full-paper",
        ["L_n and L_c would have no effect", "epoch 200 of 200", "decrease T_warm"],
    ),
    ("methods.full.T_warm", 200, "full-paper-without-n", ["L_c would have no effect"]),
    ("methods.full.T_warm", 199, "full-released", ["would have no effect", "epoch 200 of 200"]),
    ("methods.full.context_delay", 150, "full-paper", ["would have no effect", "epoch 200 of 200"]),
]


@pytest.mark.parametrize(
    ("place", "value", "row", "words"), IMPOSSIBLE, ids=[f"{c[0]}={c[1]} {c[2]}" for c in IMPOSSIBLE]
)
def test_impossible_runs(committed: dict[str, Any], place: str, value: Any, row: str, words: list[str]) -> None:
    changed = edited(committed, place, value)
    sentence = told(lambda: resolve(changed, "cub", row, 0))
    assert sentence.startswith(f"benchmark cub, row {row}: ")
    assert not [word for word in words if word not in sentence], sentence


def test_own_images_that_are_not_counted_yet(committed: dict[str, Any], tmp_path: Path) -> None:
    """What needs no number of images is refused at once, the rest when the split knows it."""
    for number in range(4):
        (tmp_path / "birds" / f"class {number}").mkdir(parents=True)
    (tmp_path / "birds" / "labelled.txt").write_text("class 0\n")
    own = {
        **{"reader": "folder", "path": str(tmp_path / "birds"), "listing": "", "labelled": "labelled.txt"},
        **{"classes": 4, "images": "any", "K": True, "protocol": "official", "settings": {}},
    }

    def params(epochs: int = 200, warm: int = 2, **full: Any) -> Params:
        methods = {"full": full, "simgcd": {"teacher_warmup_epochs": warm}}
        return edited(committed, "benchmarks.birds", {**own, "overrides": {"epochs": epochs}, "methods": methods})

    for wrong in ({"T_warm": 200}, {"T_warm": 15, "epochs": 4}):
        sentence = told(lambda wrong=wrong: resolve(params(**wrong), "birds", "full-paper", 0))  # type: ignore[misc]
        assert sentence.startswith("benchmark birds, row full-paper: L_n and L_c would have no effect")
    assert "must be at most neighbour_images (128)" in told(lambda: resolve(params(k=129), "birds", "full-paper", 0))
    asked = [Run("birds", row, seed) for row in ("kmeans", "simgcd", "full-paper") for seed in (0, 1)]
    found = json.loads(limits_of(params(), [*asked, Run("cub", "simgcd", 0)]))
    assert [(one["benchmark"], one["row"]) for one in found] == [
        ("birds", row) for row in ("full-paper", "kmeans", "simgcd")
    ]


def test_only_asked_runs_of_the_benchmark_are_refused(params: Params, monkeypatch: pytest.MonkeyPatch) -> None:
    check_asked("cub", 1)  # nothing is asked for
    limits = [resolve(params, "cub", row, 0) for row in ("kmeans", "simgcd")]
    monkeypatch.setenv("CTXGCD_RUNS", json.dumps([one | {"K": 4} for one in limits]))
    check_asked("cub", 128)
    check_asked("scars", 1)
    assert "row simgcd: batch_size 128 exceeds the 127 training images" in told(lambda: check_asked("cub", 127))
    assert "row kmeans: K is 4 but there are only 3" in told(lambda: check_asked("cub", 3))


def test_what_is_just_possible(committed: dict[str, Any]) -> None:
    assert resolve(edited(committed, "methods.full.k", 128), "cub", "full-paper", 0)["k"] == 128
    assert resolve(parse(committed), "cub", "full-paper+k=2", 0)["k"] == 2
    assert resolve(edited(committed, "protocols.official.batch_size", 5994), "cub", "simgcd", 0)["batch_size"] == 5994
    heads_only = edited(committed, "protocols.official.tail_blocks", 0)
    assert resolve(heads_only, "cub", "simgcd", 0)["tail_blocks"] == 0
    committed["protocols"]["official"]["tail_blocks"] = 1
    never = edited(committed, "methods.full.T_warm", 200)
    assert resolve(never, "cub", "simgcd", 0)["epochs"] == 200
    assert resolve(never, "cub", "full-paper-zero", 0)["lambda_n"] == 0.0  # no weight that could act


def test_k_of_one_has_no_neighbour(params: Params) -> None:
    assert "greater than or equal to 2" in told(lambda: resolve(params, "cub", "full-paper+k=1", 0))


def test_a_row_that_a_benchmark_cannot_have_is_refused_when_it_is_asked_for(committed: dict[str, Any]) -> None:
    """k = 3000 of `main` is possible on cub, and too large for the 2,000 images of fashion."""
    committed["rows"]["main"].append("full-paper+k=3000+neighbour_images=3000")
    params = parse(committed)
    assert targets.check(params, ["results/main_ssb.csv"]) == []
    assert targets.check(params, ["results/ablation_fashion.csv", "check_data"]) == []
    for target in ("demo", "results/main_fashion.csv"):
        assert "only 2000 training images" in told(lambda target=target: targets.check(params, [target]))  # type: ignore[misc]


class Louder:
    """A modifier, mixed in before the class of a method."""

    def learning_rate(self, epoch: int) -> float:
        return 2 * super().learning_rate(epoch)  # type: ignore[misc, no-any-return]


def test_a_modifier_is_a_word_of_a_row(params: Params, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(entries.MODIFIERS, "louder", entries.Modifier("Louder", f"{__name__}.Louder"))
    assert "unknown modifier 'lauder'; did you mean 'louder'?" in told(lambda: parse_row("simgcd+lauder"))
    name = parse_row("full-paper+louder+k=5-without-n")
    assert (name.modifiers, name.overrides, name.terms) == (["louder"], {"k": 5}, ["L_c"])
    plain, louder = (resolve(params, "fashion", row, 0) for row in ("simgcd", "simgcd+louder"))
    assert {key for key in louder if louder[key] != plain.get(key)} == {"row", "modifiers"}
    assert identity(plain) != identity(louder)
    changed = entries.load("simgcd", ["louder"])(louder)
    assert changed.learning_rate(3) == 2 * entries.load("simgcd")(plain).learning_rate(3)
    assert "sets a parameter twice" in told(lambda: parse_row("simgcd+louder+louder"))
    monkeypatch.setitem(entries.MODIFIERS, "lou", entries.Modifier("Lou", f"{__name__}.Louder"))
    assert (
        method_name("full-paper+louder+k=5+lou-without-n") == "Full method (paper) + Louder + Lou, without L_n, k = 5"
    )
    assert published_value("main_ssb", "cub", "simgcd+louder") is None
    pairs = {"simgcd+louder+lr=0.1+lou": "simgcd+lr=0.1"}  # the lr of cub's protocol
    other = params.model_copy(update={"rows": params.rows.model_copy(update={"open_choices": pairs})})
    assert targets.table_pairs(other, "unknowns", "cub") == {"simgcd+louder+lou": "simgcd"}


class MarginValues(Closed):
    lambda_m: float
    wide: int = 3  # added later


def margin(**changes: Any) -> entries.Entry:
    """A method without variants whose term a row can leave out; its checks read a value that has a default."""
    return entries.Entry(
        label="Margins",
        cls="ctxgcd.methods.simgcd.SimGCD",
        values=MarginValues,
        extends="simgcd",
        terms={"margin": entries.Term("wide margin", "m")},
        ablated={"m": "margin"},
        around=lambda p, epoch: p["wide"] * epoch,
        head_values=lambda p, dim: p["wide"] * dim,
        fault=lambda p: "wide is too large" if p["wide"] > 9 else "",
        too_few=lambda p, images: "wide is 8" if p["wide"] == 8 else "",
        warning=lambda p: f"wide is {p['wide']}",
        **changes,
    )


@pytest.fixture
def with_margin(committed: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> Params:
    """params.yaml with the sections of `margin2`, and of `wider`, which extends it."""
    monkeypatch.setitem(entries.METHODS, "margin2", margin())
    wider = entries.Entry("Wider", "ctxgcd.methods.simgcd.SimGCD", entries.KMeansValues, extends="margin2")
    monkeypatch.setitem(entries.METHODS, "wider", wider)
    committed["methods"] |= {"margin2": {"lambda_m": 0.5}, "wider": {"restarts": 1}}
    return parse(committed)


def test_terms_of_any_method_can_be_left_out(with_margin: Params) -> None:
    found = {row: resolve(with_margin, "cub", row, 0) for row in ("margin2", "margin2-zero", "margin2-without-m")}
    whole, zero, without = found.values()
    assert (whole["lambda_m"], zero["lambda_m"]) == (0.5, 0.0)
    assert "lambda_m" not in without
    assert [p["context_terms"] for p in found.values()] == [["margin"], ["margin"], []]
    assert [method_name(row) for row in found] == ["Margins", "Margins, weight 0", "Margins, without wide margin"]
    for row in ("margin2-without-n", "margin2-paper"):
        assert "write METHOD[+key=value...][-without-m|-zero]" in told(lambda row=row: parse_row(row))  # type: ignore[misc]


def test_what_an_entry_computes_sees_values_at_their_defaults(with_margin: Params) -> None:
    p = resolve(with_margin, "cub", "margin2", 0)
    assert "wide" not in p
    assert "wide is too large" in told(lambda: resolve(with_margin, "cub", "margin2+wide=10", 0))
    assert "wide is 8" in told(lambda: resolve(with_margin, "cub", "margin2+wide=8", 0))
    run = "results/runs/cub/margin2/seed0/metrics.json"
    assert targets.check(with_margin, [run]) == ["cub/margin2: wide is 3"]
    assert images_around(p, 2) == 6
    entry = with_margin.benchmarks["cub"]
    (of_margin, of_simgcd) = (
        disk_of(entry, images_in(entry), 256, [resolve(with_margin, "cub", row, 0)]).results
        for row in ("margin2", "simgcd+entropy_weight=1.0")
    )
    heads = entries.METHODS["simgcd"].head_values(p, 768)
    assert (of_margin or 0) - (of_simgcd or 0) == 4 * (3 * 768 - heads)
    assert {"wide": 3, "tail": "blocks", "loss_group": 0}.items() <= completed(p).items()


def test_a_method_reads_the_sections_of_all_that_it_extends(with_margin: Params) -> None:
    p = resolve(with_margin, "cub", "wider+wide=4", 0)
    assert (p["restarts"], p["lambda_m"], p["wide"], p["student_temperature"]) == (1, 0.5, 4, 0.1)


def test_values_at_their_defaults_are_no_part_of_an_identity(committed: dict[str, Any]) -> None:
    for row in ("gcd", "simgcd", "full-paper"):
        before = resolve(parse(committed), "cub", row, 0)
        assert not {"tail", "loss_group", "info_nce_weight", "sup_con_weight"} & before.keys()
        assert resolve(parse(committed), "cub", f"{row}+sup_con_weight=1.0", 0) == before | {
            "row": f"{row}+sup_con_weight=1.0"
        }
        heavier = resolve(parse(committed), "cub", f"{row}+sup_con_weight=2.0", 0)
        assert heavier["sup_con_weight"] == 2.0
        full, plain = (completed(p) for p in (heavier, before))
        assert (full["info_nce_weight"], plain["sup_con_weight"]) == (1.0, 1.0)
        method = entries.load(before["method"])
        of = Batch({})
        assert method(full).weights(of)["sup_con"] == 2 * method(plain).weights(of)["sup_con"]


def test_rows_of_a_table(committed: dict[str, Any]) -> None:
    committed["rows_of"] = {"main_ssb": ["kmeans", "gcd+lr=0.05"], "ablation_cub": ["simgcd", "full-mended"]}
    params = parse(committed)
    assert list(dict.fromkeys(run.row for run in table_runs(params, "main_ssb"))) == ["kmeans", "gcd+lr=0.05"]
    assert targets.table_rows(params, "main", "cub") == ["kmeans", "gcd+lr=0.05"]
    assert targets.table_rows(params, "main", "cifar10") == params.rows.main
    assert targets.table_rows(params, "ablation", "cub") == ["simgcd", "full-mended"]
    assert set(targets.table_pairs(params, "statistics", "cub")) == {"gcd+lr=0.05", "full-mended"}
    assert "did you mean 'main_ssb'?" in told(lambda: edited(committed, "rows_of", {"main_sb": ["simgcd"]}))
    committed["rows_of"] = {"main_ssb": ["simgdc"]}
    assert "did you mean 'simgcd'?" in told(lambda: targets.check(parse(committed), ["demo"]))


def test_a_method_without_its_section_is_refused_when_it_is_asked_for(committed: dict[str, Any]) -> None:
    """Values of named settings and of benchmarks may stay; they are checked as ever."""
    del committed["methods"]["gcd"]
    params = parse(committed)
    with pytest.raises(UserError, match=r"settings\.stated\.gcd\.info_nce_temperature: .* found 'x'$"):
        edited(copy.deepcopy(committed), "settings.stated.gcd.info_nce_temperature", "x")
    assert resolve(params, "cub", "full-paper", 0)["k"] == 10
    assert "params.yaml: methods.gcd is missing; add it with the keys projector" in told(
        lambda: resolve(params, "cub", "gcd", 0)
    )


def test_names_of_methods_may_hold_digits_and_underscores(params: Params, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(entries.METHODS, "hyp_2", entries.METHODS["simgcd"])
    assert resolve(params, "fashion", "hyp_2+lr=0.05", 0)["method"] == "hyp_2"


def test_every_entry_is_a_class_that_reads_what_it_says(params: Params) -> None:
    for name, entry in entries.METHODS.items():
        made = entries.load(name)
        rows = [f"{name}-{variant}" for variant in entry.variants] or [name]
        for row in rows:
            method = made(resolve(params, "fashion", row, 0))
            assert set(entry.weights.values()) <= set(entry.reads)
            if entry.trains:
                assert list(method.terms()) == list(entry.terms)


def test_few_active_epochs_warn(committed: dict[str, Any]) -> None:
    committed["methods"]["full"] |= {"T_warm": 196}
    warnings = targets.check(parse(committed), [])
    assert "cub/full-paper: the context terms act in only 4 of 200 epochs" in warnings
    assert not [w for w in warnings if "simgcd" in w or "kmeans" in w or w.startswith("fashion")]


def test_committed_rows_are_possible_without_a_warning(params: Params) -> None:
    assert targets.check(params, []) == []


def test_a_wrong_row_anywhere_is_found_before_anything_runs(committed: dict[str, Any]) -> None:
    committed["rows"]["ablation"].append("full-papr")
    assert "did you mean 'paper'?" in told(lambda: targets.check(parse(committed), []))


def test_classes_are_known_without_data(params: Params) -> None:
    found = {b: resolve(params, b, "kmeans", 0)["K"] for b in EIGHT}
    counts = [200, 196, 100, 10, 100, 100, 683, 1000]
    assert found == dict(zip(EIGHT, counts, strict=True))
    assert resolve(params, "fashion", "kmeans", 0)["K"] == 10
    assert resolve(params, "cub50", "kmeans", 0)["K"] == 50
    assert resolve(params, "fashion_trial", "kmeans", 0)["K"] == 5
    assert resolve(params, "cub50_trial", "kmeans", 0)["K"] == 24  # the old ones among the first 50 of CUB


# -- the light rooms -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "module",
    [
        *(
            "ctxgcd.names",
            "ctxgcd.config",
            "ctxgcd.pipeline.runs",
            "ctxgcd.plan",
            "ctxgcd.errors",
            "ctxgcd.utils.files",
        ),
        *("ctxgcd.benchmarks.readers.registry", "ctxgcd.benchmarks.check", "ctxgcd.benchmarks.split"),
        *("ctxgcd.evaluation.score_run", "ctxgcd.tables.make"),
    ],
)
def test_light_rooms_import_no_torch(module: str) -> None:
    heavy = "{'torch', 'torchvision', 'timm', 'lightning_fabric', 'lightning'}"
    script = f"import sys, {module}; sys.exit(', '.join({heavy} & set(sys.modules)) or 0)"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stderr


def test_an_unknown_reader_is_refused(committed: dict[str, Any]) -> None:
    committed["benchmarks"]["fashion"]["reader"] = "sheets"
    with pytest.raises(UserError, match="unknown reader 'sheets'; did you mean 'sheet'"):
        targets.check(parse(committed), [])


def test_overrides_reach_images_and_features_too(committed: dict[str, Any]) -> None:
    committed["benchmarks"]["fashion"]["overrides"] = {"resize": 40, "crop": 36, "backbone": "dino_vitb16"}
    params = parse(committed)
    shared, run = protocol_of(params, "fashion"), resolve(params, "fashion", "simgcd", 0)
    assert (shared.resize, shared.crop, shared.backbone) == (run["resize"], run["crop"], "dino_vitb16")
    assert backbone_of(params, "fashion").model == run["model"] == "vit_base_patch16_224.dino"


# -- K, seeds, unknowns --------------------------------------------------------------------------------


def test_k_is_true_given_or_estimated(params: Params, committed: dict[str, Any]) -> None:
    def k(row: str, of: Params = params) -> tuple[Any, str]:
        resolved = resolve(of, "cub50", row, 0)
        return resolved["K"], resolved["K_source"]

    assert k("simgcd") == (50, "true")
    assert k("simgcd+K=true") == (50, "true")
    assert k("full-paper+K=60+tau=1.0") == (60, "given")
    assert k("kmeans+K=60") == k("gcd+K=60") == (60, "given")
    assert k("simgcd+K=50") == (50, "given")
    assert k("simgcd+K=estimated") == (ESTIMATED, "estimated")
    rows = ("simgcd", "simgcd+K=50", "simgcd+K=60", "simgcd+K=estimated")
    assert len({identity(resolve(params, "cub50", row, 0)) for row in rows}) == 4
    assert k("simgcd", edited(committed, "benchmarks.cub50.K", 70)) == (70, "given")
    assert k("simgcd+K=true", edited(committed, "benchmarks.cub50.K", 70)) == (50, "true")
    assert k("simgcd", edited(committed, "benchmarks.cub50.K", "estimated")) == (ESTIMATED, "estimated")
    for value in ("1.5", "23", "guessed", "false"):
        words = told(lambda value=value: resolve(params, "cub50", f"simgcd+K={value}", 0))  # type: ignore[misc]
        assert "true, estimated or a number of at least 24" in words
    # Numbers as YAML writes them elsewhere: 060 would be 48.
    for value in ("060", "0x3C", "6_0"):
        assert f"K is {value}; give true" in told(lambda value=value: resolve(params, "cub50", f"simgcd+K={value}", 0))  # type: ignore[misc]
    # What is at fault is named: the benchmark's own value, or a row where it stands.
    of_cub = edited(copy.deepcopy(committed), "benchmarks.cub.K", 60)
    assert "benchmarks.cub.K: K is 60; give" in told(lambda: resolve(of_cub, "cub", "kmeans", 0))
    assert "benchmark cub, row simgcd+K=60: K is 60; give" in told(lambda: resolve(params, "cub", "simgcd+K=60", 0))
    committed["benchmarks"]["cub50"]["K"] = True
    few = edited(copy.deepcopy(committed), "estimate.most", 24)
    assert targets.check(few, []) == []  # no table of all_tables estimates K
    for target in ("unknowns_cub50.csv", "runs/cub50/simgcd+K=estimated/seed0/run.json"):
        words = told(lambda target=target: targets.check(few, [f"results/{target}"]))  # type: ignore[misc]
        assert "estimate.most is 24, but benchmark cub50" in words
    # A row that is possible on one benchmark alone blocks no other.
    some = edited(copy.deepcopy(committed), "rows.open_choices", {"simgcd+K=60": "simgcd"})
    assert targets.check(some, []) == []
    assert requested_benchmarks(some, ["results/unknowns_cub50.csv"]) == ["cub50"]
    assert "K is 60; give true" in told(lambda: targets.check(some, ["results/unknowns_cub.csv"]))
    assert "unknown settings '1'" in told(lambda: resolve(params, "cub50", "simgcd+settings=1", 0))
    assert "only 1500 training images" in told(lambda: resolve(params, "cub50", "simgcd+K=1501", 0))
    assert resolve(params, "cub50_trial", "simgcd+K=13", 0)["K"] == 13  # half of the 24 old classes are old there
    for value in (1, 0, "guessed", False, 1.5, None):
        assert "benchmarks.cub50.K" in told(lambda value=value: edited(committed, "benchmarks.cub50.K", value))  # type: ignore[misc]


def test_an_estimate_is_read_from_its_file(tmp_path: Path) -> None:
    file = tmp_path / "cub50.json"
    file.write_text('{"K": 61}')
    assert read_estimate(file) == 61
    for text in (
        "",
        "{}",
        "[]",
        '{"K": null}',
        '{"K": 1e400}',
        '{"K": true}',
        '{"K": 3.9}',
        '{"K": -5}',
        '{"K": "12"}',
    ):
        file.write_text(text)
        assert "delete it and run the same command again" in told(lambda: read_estimate(file))
    assert "none.json cannot be read" in told(lambda: read_estimate(tmp_path / "none.json"))


def test_gcd_reads_what_it_uses(params: Params) -> None:
    read = resolve(params, "cub", "gcd", 0)
    assert {"head_dim", "semi_kmeans_restarts", "semi_kmeans_iterations", "lr", "tail_blocks"} <= read.keys()
    unread = {
        "teacher_warmup_epochs",
        "teacher_schedule",
        "student_temperature",
        "entropy_weight",
        "T_warm",
        "k",
        "tau",
    }
    assert not unread & read.keys()
    assert read["head_dim"] == 65536
    assert "head_dim" not in resolve(params, "cub", "simgcd", 0)
    # A value that it does not read can't make it impossible.
    assert resolve(params, "cub50", "gcd+epochs=3", 0)["epochs"] == 3


def test_a_teacher_warms_up_within_the_training(params: Params, committed: dict[str, Any]) -> None:
    words = told(lambda: resolve(params, "cub50", "simgcd+epochs=3", 0))
    assert "teacher_warmup_epochs 10 exceeds epochs 3; give" in words
    for *above, key, value in (
        ("methods", "simgcd", "teacher_warmup_epochs", 201),
        ("protocols", "official", "epochs", 29),
    ):
        changed = copy.deepcopy(committed)
        changed[above[0]][above[1]][key] = value
        assert "exceeds epochs" in told(lambda changed=changed: targets.check(parse(changed), []))  # type: ignore[misc]


def test_a_benchmark_can_have_seeds_of_its_own(params: Params, committed: dict[str, Any]) -> None:
    def seeds(of: Params, table: str) -> list[int]:
        return sorted({run.seed for run in table_runs(of, table)})

    assert seeds(params, "ablation_cub50") == seeds(params, "statistics_cub50") == list(range(10))
    assert seeds(params, "unknowns_cub50") == [0, 1, 2]
    assert seeds(params, "sensitivity_cub50") == seeds(params, "ablation_cub") == [0, 1, 2]
    own = committed["seeds_of"]["cub50"]
    assert "did you mean 'cub50'?" in told(lambda: edited(committed, "seeds_of", {"cub5": own}))
    assert "seeds_of.cub50.main" in told(lambda: edited(committed, "seeds_of", {"cub50": own | {"main": [1, 1]}}))


def test_what_is_compared_with_what(params: Params, committed: dict[str, Any]) -> None:
    pairs = targets.table_pairs(params, "unknowns", "cub50")
    assert pairs == params.rows.open_choices  # cub50 has other values everywhere
    found = {run.row for run in table_runs(params, "unknowns_cub50")}
    assert {*pairs, *pairs.values()} == found
    for row, against in pairs.items():
        base, changed = (resolve(params, "cub50", name, 0) for name in (against, row))
        assert base != changed | {"row": base["row"]}, row
    pairs = targets.table_pairs(params, "statistics", "cub50")
    assert set(pairs.values()) == {"simgcd"}
    # Another ablation row makes no main table again.
    assert not any(targets.table_pairs(params, kind, "cub50") for kind in ("main", "ablation", "sensitivity", "terms"))
    assert {"gcd", "full-paper", "full-mended", "full-paper-zero"} < set(pairs)
    assert not {"simgcd", "kmeans"} & set(pairs)
    found = {run.row for run in table_runs(params, "statistics_cub50")}
    assert found == {*pairs, "simgcd"}
    # tail_lr_factor is 1.0 in the paper's protocol: no run under two names, none beside itself.
    assert {run.row for run in table_runs(params, "unknowns_cub")} == {
        *{row for pair in params.rows.open_choices.items() for row in pair if "tail_lr" not in row},
        *("simgcd", "full-paper", "full-mended"),
    }
    assert targets.table_pairs(params, "unknowns", "cub")["full-mended"] == "simgcd"
    of_estimated = edited(committed, "benchmarks.cub.K", "estimated")
    assert not any("K=" in row for row in targets.table_pairs(of_estimated, "unknowns", "cub"))
    words = told(lambda: edited(committed, "rows.open_choices", {"full-paper": "full-paper"}))
    assert "rows: 'full-paper' is compared with itself under open_choices; name another row" in words
    edited(committed, "rows.open_choices", {"full-paper": "simgdc"})
    assert "did you mean 'simgcd'?" in told(lambda: targets.check(parse(committed), []))


def test_values_that_the_paper_does_not_give_are_marked(params: Params) -> None:
    text = (ROOT / "params.yaml").read_text(encoding="utf-8")
    full = text[text.index("\n  full:\n    k:") : text.index("\nsettings:")]
    marked = {line.split(":")[0].strip() for line in full.splitlines() if "not given in the paper" in line}
    assert marked == set(NOT_IN_PAPER)


def test_planned_and_existing(params: Params, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    planned = targets.planned_rows(params)
    short = params.benchmarks["cub50"].model_copy(update={"overrides": {"epochs": 10}})  # its context terms start at 15
    other = params.model_copy(update={"benchmarks": params.benchmarks | {"cub50": short}})
    left_out = [one for one in planned if one not in targets.planned_rows(other)]
    assert {one["benchmark"] for one in left_out} == {"cub50"}
    assert all(one["row"].startswith("full-") for one in left_out)
    assert {one["table"] for one in left_out} == {"main_cub50", "ablation_cub50", "sensitivity_cub50"}
    assert {"table": "main_ssb", "benchmark": "cub", "row": "gcd", "seeds": [0, 1, 2]} in planned
    monkeypatch.chdir(tmp_path)
    assert targets.existing_metrics(params, planned) == []
    now, before = (Run("cub", "simgcd", seed) for seed in (0, 1))
    for run, changes in ((now, {}), (before, {"lr": 0.2})):
        made = {"seed": run.seed, "parameters": resolve(params, "cub", "simgcd", run.seed) | changes}
        Path(run.folder).mkdir(parents=True)
        Path(run.file("metrics.json")).write_text(json.dumps(made), encoding="utf-8")
    assert [metrics["seed"] for metrics in targets.existing_metrics(params, planned)] == [0]
    for text in ("{", "[]", '{"schema": 1}'):
        Path(now.file("metrics.json")).write_text(text)
        assert "metrics.json is damaged; delete it" in told(lambda: targets.existing_metrics(params, planned))
