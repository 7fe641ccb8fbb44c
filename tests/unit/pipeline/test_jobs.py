"""Arguments and paths of jobs, without Snakemake."""

from __future__ import annotations

import json
import shlex
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from ctxgcd.config import parse, read
from ctxgcd.pipeline import paths
from ctxgcd.pipeline.jobs import Jobs, job_words, read_params, write_params
from ctxgcd.pipeline.paths import Features
from ctxgcd.pipeline.resolve import resolve
from tests.helpers.places import ROOT


def jobs(**changes: object) -> Jobs:
    content = yaml.safe_load((ROOT / "params.yaml").read_text(encoding="utf-8"))
    for key, value in changes.items():
        section, keys = content, key.split("__")
        for one in keys[:-1]:
            section = section[one]
        section[keys[-1]] = value
    return Jobs(parse(content))


@pytest.mark.parametrize(
    "features",
    [Features(0, "float32"), Features(1, "bf16"), Features(2, "float32", 4, 0), Features(12, "bf16", 16, 3)],
)
def test_the_name_of_cached_features_is_parsed(features: Features) -> None:
    assert Features.of(features.name) == features


@pytest.mark.parametrize("name", ["", "test_view-tail0", "view_bank-tail0-views4-float32", "test_view-tail0-float16"])
def test_other_names_are_not_cached_features(name: str) -> None:
    with pytest.raises(ValueError, match="cached features"):
        Features.of(name)


def test_a_run_reads_the_caches_of_its_method_and_protocol() -> None:
    of = jobs()
    names = {row: list(of.inputs("fashion", row, "0")) for row in ("kmeans", "simgcd", "simgcd+K=estimated")}
    banked = ["weights", "test_view", "view_bank"]
    assert names == {"kmeans": ["test_view"], "simgcd": banked, "simgcd+K=estimated": [*banked, "estimate"]}
    fresh = of.inputs("fashion", "simgcd+view_bank=0", "0")
    assert fresh == {"weights": of.weights("fashion"), "store": of.store("fashion")}
    assert of.inputs("fashion", "kmeans", "0")["test_view"] == of.frozen_features("fashion")
    assert of.run("fashion", "simgcd", "0") == resolve(of.params, "fashion", "simgcd", 0)


def test_the_name_of_a_cache_changes_only_with_what_it_depends_on() -> None:
    before = jobs()
    files = ("store", "weights", "frozen_features")

    def changed(after: Jobs) -> set[str]:
        return {name for name in files if getattr(after, name)("fashion") != getattr(before, name)("fashion")}

    protocol = before.params.benchmarks["fashion"].protocol
    assert changed(jobs(split__seed=7)) == set()  # the numbers of images do not depend on the draw of the split
    assert changed(jobs(**{f"protocols__{protocol}__lr": 0.3})) == set()
    crop = before.params.protocols[protocol].crop - 8
    assert changed(jobs(**{f"protocols__{protocol}__crop": crop})) == {"weights", "frozen_features"}
    resize = before.params.protocols[protocol].resize + 8
    assert changed(jobs(**{f"protocols__{protocol}__resize": resize})) == {"store", "frozen_features"}


def test_a_table_has_its_rows_benchmarks_and_missing_benchmarks() -> None:
    of = jobs()
    table = of.table("main_ssb", absent=["scars"])
    assert (table["kind"], table["benchmarks"], table["absent"]) == ("main", ["cub", "scars", "aircraft"], ["scars"])
    assert table["rows"] == of.params.rows.main
    assert json.loads(json.dumps(table)) == table
    files = [f"results/runs/fashion/simgcd/seed{seed}/metrics.json" for seed in (0, 1)]
    assert len(set(of.parameters_of(files))) == 2  # the seed is one of a run's parameters


def test_a_training_gets_its_files_as_options() -> None:
    files = {"weights": "w.pt", "view_bank": "b.npy", "pixels": "s.pixels"}
    assert shlex.split(job_words(files.items(), None)) == ["--weights", "w.pt", "--view-bank", "b.npy"]
    assert job_words(files.items(), 30).endswith(" --minutes 30")


def test_weights_with_an_address_are_fetched_and_no_others() -> None:
    of = jobs()
    fetched = [name for name, backbone in of.params.backbones.items() if backbone.weights.startswith("http")]
    commands = of.weights_commands().split(" && ")
    assert len(commands) == len(fetched) > 0
    assert all("fetch_weights.py --weights http" in command for command in commands)


def test_merged_parameters_are_in_a_file_named_by_its_content(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    content = yaml.safe_load((ROOT / "params.yaml").read_text(encoding="utf-8"))
    file = write_params(content)
    assert write_params(content) == file
    assert read_params(file) == read(ROOT / "params.yaml")
    assert write_params(content | {"seeds": [5]}) != file
    assert len(list(paths.MERGED_PARAMS.iterdir())) == 2


def test_paths_and_patterns_agree() -> None:
    assert paths.TABLE_FILE.fullmatch(paths.table_files("ablation_cub")[0])[1] == "ablation_cub"  # type: ignore[index]
    assert paths.TABLE_FILE.fullmatch(paths.partial_table_files("main_ssb")[0])
    files = [*paths.split_files("cub"), *paths.estimate_files("cub"), paths.summary_file("cub")]
    files += [paths.duplicates_file("cub"), paths.figure_file("curves", "cub")]
    assert {match[1] for file in files if (match := paths.BENCHMARK_FILE.fullmatch(file))} == {"cub"}
    assert all(map(paths.BENCHMARK_FILE.fullmatch, files))
    folder = paths.run_folder("cub", "simgcd+k=3", 2)
    assert paths.RUN_FILE.fullmatch(f"{folder}/run.json").groups() == ("cub", "simgcd+k=3", "2")  # type: ignore[union-attr]
    assert replace(Features(1, "bf16"), views=2, seed=1).name == "view_bank-tail1-views2-seed1-bf16"
