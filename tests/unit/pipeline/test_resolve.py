"""Values of a run and their order of precedence."""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import Any

import pytest

from ctxgcd.catalogue.entries import METHODS, MODIFIERS, Modifier
from ctxgcd.config import Params, parse
from ctxgcd.errors import UserError
from ctxgcd.pipeline import targets
from ctxgcd.pipeline.identity import ESTIMATED, identity
from ctxgcd.pipeline.resolve import backbone_name, protocol_of, resolve
from ctxgcd.pipeline.runs import Run
from ctxgcd.pipeline.targets import requested_benchmarks
from ctxgcd.plan.work import images_around
from tests.helpers.params import BOTH, EIGHT, edited
from tests.helpers.refusals import error_of, warned

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


def test_a_wrong_override_is_refused_with_its_location(committed: dict[str, Any]) -> None:
    changed = edited(committed, "benchmarks.cub.overrides", {"lr": "fast"})
    sentence = error_of(lambda: resolve(changed, "cub", "simgcd", 0))
    assert "benchmark cub" in sentence
    assert "lr" in sentence
    assert "found 'fast'" in sentence


def test_the_seed_is_part_of_a_run(params: Params) -> None:
    identities = {identity(resolve(params, "cub", "simgcd", seed)) for seed in range(5)}
    assert len(identities) == 5
    assert Run("cub", "simgcd", 3).folder == "results/runs/cub/simgcd/seed3"


def test_classes_are_known_without_data(params: Params) -> None:
    found = {b: resolve(params, b, "kmeans", 0)["K"] for b in EIGHT}
    counts = [200, 196, 100, 10, 100, 100, 683, 1000]
    assert found == dict(zip(EIGHT, counts, strict=True))
    assert resolve(params, "fashion", "kmeans", 0)["K"] == 10
    assert resolve(params, "cub50", "kmeans", 0)["K"] == 50
    assert resolve(params, "fashion_trial", "kmeans", 0)["K"] == 5
    assert resolve(params, "cub50_trial", "kmeans", 0)["K"] == 24  # the old ones among the first 50 of CUB


def test_an_unknown_reader_is_refused(committed: dict[str, Any]) -> None:
    committed["benchmarks"]["fashion"]["reader"] = "sheets"
    with pytest.raises(UserError, match="unknown reader 'sheets'; did you mean 'sheet'"):
        targets.check(parse(committed), [])


def test_overrides_reach_images_and_features_too(committed: dict[str, Any]) -> None:
    committed["benchmarks"]["fashion"]["overrides"] = {"resize": 40, "crop": 32, "backbone": "dino_vitb16"}
    params = parse(committed)
    shared, run = protocol_of(params, "fashion"), resolve(params, "fashion", "simgcd", 0)
    assert (shared.resize, shared.crop, shared.backbone) == (run["resize"], run["crop"], "dino_vitb16")
    assert backbone_name(params, "fashion", "simgcd") == "dino_vitb16"
    assert run["model"] == "vit_base_patch16_224.dino"


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
        words = error_of(lambda value=value: resolve(params, "cub50", f"simgcd+K={value}", 0))  # type: ignore[misc]
        assert "true, estimated or a number of at least 24" in words
    # Other numbers of YAML: 060 would be 48.
    for value in ("060", "0x3C", "6_0"):
        assert f"K is {value}; give true" in error_of(
            lambda value=value: resolve(params, "cub50", f"simgcd+K={value}", 0)
        )  # type: ignore[misc]
    # The message names the wrong value: that of the benchmark or of the row.
    of_cub = edited(copy.deepcopy(committed), "benchmarks.cub.K", 60)
    assert "benchmarks.cub.K: K is 60; give" in error_of(lambda: resolve(of_cub, "cub", "kmeans", 0))
    assert "benchmark cub, row simgcd+K=60: K is 60; give" in error_of(lambda: resolve(params, "cub", "simgcd+K=60", 0))
    committed["benchmarks"]["cub50"]["K"] = True
    few = edited(copy.deepcopy(committed), "estimate.most", 24)
    assert warned(few) == []  # no table of all_tables estimates K
    for target in ("unknowns_cub50.csv", "runs/cub50/simgcd+K=estimated/seed0/run.json"):
        words = error_of(lambda target=target: targets.check(few, [f"results/{target}"]))  # type: ignore[misc]
        assert "estimate.most is 24, but benchmark cub50" in words
    # A row that is possible on one benchmark alone blocks no other.
    some = edited(copy.deepcopy(committed), "rows.open_choices", {"simgcd+K=60": "simgcd"})
    assert warned(some) == []
    assert requested_benchmarks(some, ["results/unknowns_cub50.csv"]) == ["cub50"]
    assert "K is 60; give true" in error_of(lambda: targets.check(some, ["results/unknowns_cub.csv"]))
    assert "unknown settings '1'" in error_of(lambda: resolve(params, "cub50", "simgcd+settings=1", 0))
    assert "only 1500 training images" in error_of(lambda: resolve(params, "cub50", "simgcd+K=1501", 0))
    assert resolve(params, "cub50_trial", "simgcd+K=13", 0)["K"] == 13  # half of the 24 old classes are old there
    for value in (1, 0, "guessed", False, 1.5, None):
        assert "benchmarks.cub50.K" in error_of(lambda value=value: edited(committed, "benchmarks.cub50.K", value))  # type: ignore[misc]


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
    # A value that it does not read cannot make it impossible.
    assert resolve(params, "cub50", "gcd+epochs=3", 0)["epochs"] == 3


def test_a_teacher_warms_up_within_the_training(params: Params, committed: dict[str, Any]) -> None:
    words = error_of(lambda: resolve(params, "cub50", "simgcd+epochs=3", 0))
    assert "teacher_warmup_epochs 11 exceeds epochs 3; give" in words
    for *above, key, value in (
        ("methods", "simgcd", "teacher_warmup_epochs", 201),
        ("protocols", "official", "epochs", 29),
    ):
        changed = copy.deepcopy(committed)
        changed[above[0]][above[1]][key] = value
        assert "exceeds epochs" in error_of(lambda changed=changed: targets.check(parse(changed), []))  # type: ignore[misc]


# -- another backbone --------------------------------------------------------------------------------------


@pytest.mark.parametrize("row", ["kmeans", "simgcd", "gcd", "full-paper-without-n", "simgcd+tail=adapter"])
def test_a_row_sets_its_backbone_as_the_benchmark_would(committed: dict[str, Any], row: str) -> None:
    params = parse(committed)
    begin, end, _ = row.partition("-without-n")
    of_row = resolve(params, "cub", f"{begin}+backbone=dinov2_vitb14{end}", 0)
    committed["benchmarks"]["cub"]["overrides"] = {"backbone": "dinov2_vitb14"}
    of_benchmark = resolve(parse(committed), "cub", row, 0)
    assert of_row | {"row": row} == of_benchmark
    assert of_row["model"] == "vit_base_patch14_dinov2.lvd142m"
    assert of_row["weights"] == f"sha256:{committed['backbones']['dinov2_vitb14']['sha256']}"
    assert identity(of_row) != identity(resolve(params, "cub", row, 0))


@pytest.mark.parametrize(("crop", "sides"), [(96, "84 or 98"), (105, "98"), (13, "14")])
def test_a_crop_that_patches_do_not_divide_is_refused(committed: dict[str, Any], crop: int, sides: str) -> None:
    """The pixels after the last whole patch would be ignored. Models without patches take any crop."""
    params = edited(committed, "benchmarks.cifar10_12k.overrides", {"resize": 110, "crop": crop})
    resolve(params, "cifar10_12k", "simgcd", 0)
    assert error_of(lambda: resolve(params, "cifar10_12k", "simgcd+backbone=dinov2_vits14", 0)) == (
        f"benchmark cifar10_12k, row simgcd+backbone=dinov2_vits14: crop is {crop}, but "
        f"vit_small_patch14_dinov2.lvd142m divides images into patches of 14 x 14 pixels; give {sides}"
    )


def test_a_tail_has_at_most_the_blocks_that_are_used(params: Params) -> None:
    assert resolve(params, "cub50_vit", "simgcd+tail_blocks=11", 0)["tail_blocks"] == 11
    assert error_of(lambda: resolve(params, "cub50_vit", "simgcd+tail_blocks=12", 0)) == (
        "benchmark cub50_vit, row simgcd+tail_blocks=12: tail_blocks is 12, but only 11 blocks of dinov2_vits14_focus "
        "can be trained; give at most 11"
    )


def test_a_row_with_an_unknown_backbone_is_refused(params: Params) -> None:
    sentence = error_of(lambda: resolve(params, "cub", "simgcd+backbone=dinov2_vitb16", 0))
    assert sentence.startswith("row 'simgcd+backbone=dinov2_vitb16': unknown backbone 'dinov2_vitb16'; did you mean")


def test_k_is_estimated_with_the_benchmarks_backbone_only(params: Params) -> None:
    assert error_of(lambda: resolve(params, "cub", "simgcd+K=estimated+backbone=dinov2_vits14", 0)) == (
        "benchmark cub, row simgcd+K=estimated+backbone=dinov2_vits14: K is estimated with the backbone dino_vitb16 of "
        "the benchmark; give K in the row too, or set backbone in benchmarks.cub.overrides"
    )
    same = resolve(params, "cub", "simgcd+K=estimated+backbone=dino_vitb16", 0)
    assert identity(same) == identity(resolve(params, "cub", "simgcd+K=estimated", 0))


@pytest.mark.parametrize(
    ("row", "place"),
    [
        ("full-paper+resize=100", "benchmarks.cub.overrides"),
        ("simgcd+model=vit_tiny", "backbones"),
        ("full-paper+seed=3", "seeds_of.cub"),
    ],
)
def test_values_of_images_model_and_seed_are_set_in_params(params: Params, row: str, place: str) -> None:
    key = row.partition("+")[2].partition("=")[0]
    assert error_of(lambda: resolve(params, "cub", row, 0)) == (
        f"row '{row}': {key} cannot be set in a row; set it in {place} of params.yaml"
    )


# -- losses in groups ----------------------------------------------------------------------------------------


def test_a_group_divides_the_batch_of_a_benchmark(committed: dict[str, Any]) -> None:
    committed["benchmarks"]["imagenet_1k"]["overrides"]["batch_size"] = 1000
    params = parse(committed)
    refused = error_of(lambda: targets.check(params, ["results/main_challenging.csv"]))
    assert "benchmark imagenet_1k, overrides: loss_group 128 does not divide batch_size 1000" in refused


def test_imagenet_1k_computes_its_losses_over_128_images(params: Params) -> None:
    for row in ("gcd", "simgcd", "full-paper", "full-released", "full-mended"):
        found = {b: resolve(params, b, row, 0).get("loss_group", 0) for b in EIGHT}
        assert found == {b: 128 if b == "imagenet_1k" else 0 for b in EIGHT}
    p = resolve(params, "imagenet_1k", "full-paper", 0)
    assert (p["batch_size"], p["neighbour_images"], p["k"]) == (1024, 128, 10)
    # Eight groups with twelve queries of ten images.
    assert [images_around(p, epoch) for epoch in (49, 50)] == [0, 8 * 12 * 10]
    whole = resolve(params, "imagenet_1k", "full-paper+loss_group=0+neighbour_images=1024", 0)
    assert "loss_group" not in whole
    assert images_around(whole, 50) == 1020
    assert "loss_group" not in resolve(params, "imagenet_1k", "kmeans", 0)
    refused = error_of(lambda: resolve(params, "imagenet_1k", "simgcd+batch_size=1000", 0))
    assert "row simgcd+batch_size=1000: loss_group 128 does not divide batch_size 1000" in refused


def test_methods_that_do_not_support_loss_groups_are_refused(
    committed: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = replace(METHODS["simgcd"], in_groups=False)
    monkeypatch.setitem(METHODS, "whole", whole)
    committed["methods"]["whole"] = committed["methods"]["simgcd"]
    monkeypatch.setitem(MODIFIERS, "louder", Modifier("Louder", "x.Louder"))
    params = parse(committed)
    for row, name in (("whole", "whole"), ("simgcd+louder", "louder")):
        assert f"row {row}: loss_group is 128, but {name} computes its losses over the whole batch" in error_of(
            lambda row=row: resolve(params, "imagenet_1k", row, 0)  # type: ignore[misc]
        )
        assert resolve(params, "imagenet_1k", f"{row}+loss_group=0", 0)["batch_size"] == 1024
        assert resolve(params, "cub", row, 0)
    monkeypatch.setitem(MODIFIERS, "louder", Modifier("Louder", "x.Louder", in_groups=True))
    assert resolve(params, "imagenet_1k", "simgcd+louder", 0)["loss_group"] == 128


@pytest.mark.parametrize("row", ["full-paper", "full-released", "full-mended"])
def test_neighbour_lists_of_the_paper_are_not_part_of_an_identity(params: Params, row: str) -> None:
    plain = resolve(params, "cub", row, 0)
    same, other = (resolve(params, "cub", f"{row}+neighbour_lists={of}", 0) for of in ("paper", "released"))
    assert "neighbour_lists" not in plain
    assert identity(same) == identity(plain)
    assert other["neighbour_lists"] == "released"
    assert identity(other) != identity(plain)
