"""Runs that cannot train, or would train something else, are refused."""

from __future__ import annotations

import json
import sys
import tomllib
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from ctxgcd.catalogue.entries import METHODS
from ctxgcd.config import Params, parse
from ctxgcd.errors import UserError
from ctxgcd.pipeline import targets
from ctxgcd.pipeline.possible import PACKAGES, check_installed, check_k, check_requested
from ctxgcd.pipeline.requested import limits_of
from ctxgcd.pipeline.resolve import resolve
from ctxgcd.pipeline.runs import Run
from tests.helpers.params import edited
from tests.helpers.places import ROOT
from tests.helpers.refusals import error_of, warned

# -- packages of methods ------------------------------------------------------------------


def test_a_method_whose_package_is_absent_is_named_when_its_row_is_planned(
    params: Params, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "infomap", None)
    sentence = (
        "dccl requires the package infomap, which is missing; run `pip install 'infomap>=2.15,<3'`, or leave the row "
        "out of `rows` and `rows_of` of params.yaml"
    )
    for target in ("results/main_ssb.csv", "results/runs/cub50/dccl+k=9/seed0/metrics.json"):
        assert [line for line in targets.check(params, [target]) if "infomap" in line] == [sentence]
    assert not [line for line in targets.check(params, ["results/ablation_cub.csv", "demo"]) if "infomap" in line]
    row = resolve(params, "cub50", "dccl", 0)
    assert error_of(lambda: check_installed(row)) == f"benchmark cub50, row dccl: {sentence}"
    check_installed(resolve(params, "cub50", "xcon", 0))
    monkeypatch.setitem(sys.modules, "infomap", sys)
    check_installed(row)


def test_a_package_that_cannot_be_imported_is_refused(
    params: Params, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "infomap.py").write_text("raise ImportError('libgomp.so.1: cannot open shared object file')\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "infomap", raising=False)
    assert error_of(lambda: check_installed(resolve(params, "cub50", "dccl", 0))) == (
        "benchmark cub50, row dccl: dccl requires the package infomap, which cannot be imported (ImportError: "
        "libgomp.so.1: cannot open shared object file); run `pip install --force-reinstall 'infomap>=2.15,<3'`, or "
        "leave the row out of `rows` and `rows_of` of params.yaml"
    )


def test_the_packages_of_methods_are_extras() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["optional-dependencies"]
    assert {entry.package for entry in METHODS.values()} - {""} == PACKAGES.keys()
    assert {name: [text.strip("'")] for name, text in PACKAGES.items()} == {name: extras[name] for name in PACKAGES}


# -- K of a split ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("method", "k", "words"),
    [
        ("simgcd", 2, "the labelled images have 3 classes"),
        ("kmeans", 2, "the labelled images have 3 classes"),
        ("gcd", 11, "too large for 8 unlabelled images"),
        ("kmeans", 9, "too large for 8 unlabelled images"),
        ("gcd", 10, ""),
        ("kmeans", 8, ""),
        ("simgcd", 3, ""),
        ("unoplus", 3, "the labelled images have 3 classes and unoplus requires a New class; give a K of at least 4"),
        ("unoplus", 4, ""),
        ("gcd", "estimated", ""),
    ],
)
def test_an_impossible_k_is_refused_before_training(method: str, k: int | str, words: str) -> None:
    split = pd.DataFrame({"role": ["labelled"] * 4 + ["unlabelled"] * 8, "class_id": [0, 2, 2, 0, *range(8)]})
    p = {"benchmark": "mine", "row": f"{method}+K={k}", "method": method, "K": k}
    if words:
        with pytest.raises(UserError, match=rf"benchmark mine, row {method}\+K={k}: K is {k}, .*{words}"):
            check_k(p, split)
    else:
        check_k(p, split)


# -- impossible runs ------------------------------------------------

IMPOSSIBLE: list[tuple[str, Any, str, list[str]]] = [
    ("methods.rsplus.top_k", 769, "rsplus", ["top_k is 769, but the features have 768 dimensions", "smaller top_k"]),
    ("protocols.official.tail_blocks", 13, "simgcd", ["tail_blocks is 13, but only 12 blocks of ", "give at most 12"]),
    ("protocols.official.tail_blocks", 13, "promptcal", ["tail_blocks is 13", "give at most 12"]),
    ("seeds", [0], "unoplus+K=100", ["K is 100", "a number of at least 101 classes"]),
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
    sentence = error_of(lambda: resolve(changed, "cub", row, 0))
    assert sentence.startswith(f"benchmark cub, row {row}: ")
    assert not [word for word in words if word not in sentence], sentence


def test_own_images_of_unknown_number(committed: dict[str, Any], tmp_path: Path) -> None:
    """Errors that do not depend on the number of images are reported immediately, others after the split."""
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
        sentence = error_of(lambda wrong=wrong: resolve(params(**wrong), "birds", "full-paper", 0))  # type: ignore[misc]
        assert sentence.startswith("benchmark birds, row full-paper: L_n and L_c would have no effect")
    assert "must be at most neighbour_images (128)" in error_of(
        lambda: resolve(params(k=129), "birds", "full-paper", 0)
    )
    requested = [Run("birds", row, seed) for row in ("kmeans", "simgcd", "full-paper") for seed in (0, 1)]
    found = json.loads(limits_of(params(), [*requested, Run("cub", "simgcd", 0)]))
    assert [(one["benchmark"], one["row"]) for one in found] == [
        ("birds", row) for row in ("full-paper", "kmeans", "simgcd")
    ]


def test_only_requested_runs_of_the_benchmark_are_refused(params: Params, monkeypatch: pytest.MonkeyPatch) -> None:

    def training(images: int) -> pd.DataFrame:
        return pd.DataFrame({"part": "train", "role": "unlabelled", "class_id": [0] * images})

    check_requested("cub", training(1))  # nothing is requested
    limits = [resolve(params, "cub", row, 0) for row in ("kmeans", "simgcd")]
    monkeypatch.setenv("CTXGCD_RUNS", json.dumps([one | {"K": 4} for one in limits]))
    check_requested("cub", training(128))
    check_requested("scars", training(1))
    sentence = "row simgcd: batch_size 128 exceeds the 127 training images"
    assert sentence in error_of(lambda: check_requested("cub", training(127)))
    assert "row kmeans: K is 4 but there are only 3" in error_of(lambda: check_requested("cub", training(3)))


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


def test_new_by_is_part_of_a_run_only_if_it_is_kmeans(params: Params) -> None:
    assert resolve(params, "cub", "simgcd+new_by=kmeans", 0)["new_by"] == "kmeans"
    usual = resolve(params, "cub", "simgcd", 0)
    assert usual == resolve(params, "cub", "simgcd+new_by=classifier", 0) | {"row": "simgcd"}
    assert "new_by" not in usual  # the default is in no identity


def test_k_of_one_has_no_neighbour(params: Params) -> None:
    assert "greater than or equal to 2" in error_of(lambda: resolve(params, "cub", "full-paper+k=1", 0))


def test_an_impossible_row_is_refused_when_requested(committed: dict[str, Any]) -> None:
    """k = 3000 of `main` is possible on cub, and too large for the 2,000 images of fashion."""
    committed["rows"]["main"].append("full-paper+k=3000+neighbour_images=3000")
    del committed["rows_of"]["main_fashion"]
    params = parse(committed)
    assert warned(params, "results/main_ssb.csv") == []
    assert targets.check(params, ["results/ablation_fashion.csv", "check_data"]) == []
    for target in ("demo", "results/main_fashion.csv"):
        assert "only 2000 training images" in error_of(lambda target=target: targets.check(params, [target]))  # type: ignore[misc]
