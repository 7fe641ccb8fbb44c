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
    assert fresh == {"weights": of.weights("fashion", "efficientnet_lite0"), "store": of.store("fashion")}
    assert of.inputs("fashion", "kmeans", "0")["test_view"] == of.frozen_features("fashion")
    assert of.run("fashion", "simgcd", "0") == resolve(of.params, "fashion", "simgcd", 0)


def test_frozen_features_are_made_from_the_cached_input_of_a_tail() -> None:
    def tail_input(of: Jobs, kind: str = Features(0, "float32").name) -> str:
        (content,) = {Path(of.frozen_features("cub50_vit")).parent.name.removeprefix("cub50_vit-")}
        return of.tail_input("cub50_vit", content, kind)

    of = jobs(protocols__cub50_vit__tail_blocks=2)
    assert tail_input(of) == of.inputs("cub50_vit", "simgcd", "0")["test_view"]
    assert tail_input(of).endswith("/test_view-tail2-float32.npy")
    for kind in (Features(2, "float32"), Features(2, "float32", 2, 0), Features(0, "float32", 2, 0)):
        assert not tail_input(of, kind.name)  # made from the images
    # An adapter reads the frozen features themselves.
    assert not tail_input(jobs(protocols__cub50_vit__tail="adapter"))
    assert not tail_input(jobs(protocols__cub50_vit__view_bank=0))
    assert not tail_input(jobs(protocols__cub50_vit__tail_blocks=0))


def test_the_name_of_a_cache_changes_only_with_what_it_depends_on() -> None:
    before = jobs()

    def files(of: Jobs) -> dict[str, str]:
        return {
            "store": of.store("fashion"),
            "weights": of.weights("fashion", "efficientnet_lite0"),
            "frozen_features": of.frozen_features("fashion"),
        }

    def changed(after: Jobs) -> set[str]:
        return {name for name, file in files(after).items() if file != files(before)[name]}

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
    assert table["rows"] == of.params.rows_of["main_ssb"]
    assert json.loads(json.dumps(table)) == table
    files = [f"results/runs/fashion/simgcd/seed{seed}/metrics.json" for seed in (0, 1)]
    assert len(set(of.parameters_of(files))) == 2  # the seed is one of a run's parameters


def test_a_training_gets_its_files_as_options() -> None:
    files = {"weights": "w.pt", "view_bank": "b.npy", "pixels": "s.pixels"}
    assert shlex.split(job_words(files.items(), None)) == ["--weights", "w.pt", "--view-bank", "b.npy"]
    assert job_words(files.items(), 30).endswith(" --minutes 30")


def test_weights_with_an_address_that_benchmarks_or_rows_use_are_fetched() -> None:
    def fetched(of: Jobs) -> list[str]:
        return [word for word in shlex.split(of.weights_commands()) if word.startswith("http")]

    usual, before = jobs().params.backbones, fetched(jobs())
    assert before == [usual["dino_vitb16"].weights]
    rows = ["kmeans", "full-paper+backbone=dinov2_vits14_reg-without-n"]
    assert fetched(jobs(rows__main=rows)) == [*before, usual["dinov2_vits14_reg"].weights]
    with_files = {"cub": {"backbone": "dinov3_vits16"}, "scars": {"backbone": "dinov2_vitb14"}}
    of = jobs(**{f"benchmarks__{name}__overrides": values for name, values in with_files.items()})
    assert fetched(of) == [*before, usual["dinov2_vitb14"].weights]


@pytest.mark.parametrize("benchmark", ["cub", "fashion"])
def test_a_row_with_another_backbone_reads_its_weights_and_features(benchmark: str) -> None:
    of = jobs()
    own, other = of.inputs(benchmark, "simgcd", "0"), of.inputs(benchmark, "simgcd+backbone=dinov3_vitb16", "0")
    assert own.keys() == other.keys()
    assert {name for name in own if own[name] != other[name]} == own.keys() - {"store"}
    assert Path(other["weights"]).name.startswith("dinov3_vitb16-")
    assert other["weights"] == of.weights(benchmark, "dinov3_vitb16")
    changed = jobs(**{f"benchmarks__{benchmark}__overrides": {"backbone": "dinov3_vitb16"}})
    assert other == changed.inputs(benchmark, "simgcd", "0")  # the same files as if the benchmark had it
    for row, name in (("kmeans", "own"), ("kmeans+backbone=dinov3_vits16", "dinov3_vits16")):
        file = Path(of.inputs(benchmark, row, "0")["test_view"])
        expected = of.run(benchmark, "simgcd", "0")["model"] if name == "own" else of.params.backbones[name].model
        found = of.backbone_of(benchmark, file.parent.name.rpartition("-")[2])
        assert of.preprocessing(benchmark, found)["model"] == expected


def test_the_number_of_blocks_is_part_of_runs_and_features_unless_all_are_used() -> None:
    of, name = jobs(), "dinov2_vits14_focus"
    assert of.run("cub50_vit", "simgcd", "0")["blocks"] == 11
    assert "blocks" not in of.run("cub50", "simgcd", "0")
    every = jobs(**{f"backbones__{name}__blocks": 0})
    assert "blocks" not in every.run("cub50_vit", "simgcd", "0")
    some, all_of = (one.inputs("cub50_vit", "simgcd", "0") for one in (of, every))
    assert {key for key in some if some[key] != all_of[key]} == {"test_view", "view_bank"}  # the weights file has all
    assert "blocks" in of.preprocessing("cub50_vit", name)
    assert not {"blocks"} & {*every.preprocessing("cub50_vit", name), *of.preprocessing("cub50", "dinov2_vits14")}


def test_a_table_names_its_backbones_unless_all_are_dinos() -> None:
    assert jobs().table("main_ssb")["note"] == ""
    imagenet = jobs().params.backbones["efficientnet_lite0"].note
    assert jobs().table("ablation_fashion")["note"] == f"Backbone: efficientnet_lite0. {imagenet}"
    one = jobs(tables__main_ssb=["cub"], rows_of__main_ssb=["simgcd", "simgcd+backbone=dinov2_vitb14"])
    assert one.table("main_ssb")["note"] == (
        "Backbone: dino_vitb16 (simgcd) and dinov2_vitb14 (simgcd+backbone=dinov2_vitb14)."
    )
    several = jobs(tables__main_ssb=["cub", "scars"], rows_of__main_ssb=["simgcd"])
    several.params.benchmarks["scars"].overrides["backbone"] = "dinov2_vitb14"
    assert several.table("main_ssb")["note"] == (
        "Backbone: dino_vitb16 (simgcd on cub) and dinov2_vitb14 (simgcd on scars)."
    )
    several.params.benchmarks["cub"].overrides["backbone"] = "dinov2_vitb14"
    assert several.table("main_ssb")["note"] == "Backbone: dinov2_vitb14."


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
