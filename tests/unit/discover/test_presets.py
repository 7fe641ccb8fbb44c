"""Presets adapted to the images, and equal to the values of the workflow."""

from __future__ import annotations

from pathlib import Path

import pytest

from ctxgcd.cli.command import parser
from ctxgcd.config import Params
from ctxgcd.discover.presets import chosen, estimate_of, read_presets
from ctxgcd.errors import UserError
from ctxgcd.pipeline.few_images import fitted
from tests.helpers.discovery import Place
from tests.helpers.places import ROOT


@pytest.mark.slow
def test_the_long_preset_without_a_network(place: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Weights that cannot be downloaded are reported before OUT is created; the message names --weights."""
    (tmp_path / "mirror").mkdir()
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    monkeypatch.delenv("CTXGCD_DATA", raising=False)
    monkeypatch.setenv("CTXGCD_MIRROR", (tmp_path / "mirror").as_uri())
    with pytest.raises(
        UserError, match=r"pth cannot be downloaded .*; how to get it: download .* --weights FILE$"
    ) as raised:
        place.discover(str(tmp_path / "out"), preset="long", backbone=None, weights=None)
    assert "params.yaml" not in str(raised.value)
    assert "data/raw" not in str(raised.value)
    assert not list((tmp_path / "here").iterdir())
    file = tmp_path / "here/data/raw/weights/dino_vitbase16_pretrain.pth"
    file.parent.mkdir(parents=True)
    file.write_bytes(b"damaged")
    with pytest.raises(UserError, match=r"delete it to download it again, or download .* --weights FILE$"):
        place.discover(str(tmp_path / "out"), preset="long", backbone=None, weights=None)
    assert not (tmp_path / "out").exists()


def test_presets_agree_with_the_workflow(params: Params) -> None:
    """The long preset is the workflow's protocol and sections, and backbones are those of params.yaml."""
    presets = read_presets()
    assert presets.backbones.items() <= params.backbones.items()
    long, quick = presets.presets["long"], presets.presets["quick"]
    assert long.protocol == params.protocols["official"]
    assert long.methods == {method: params.methods[method] for method in ("simgcd", "full")}
    own, of_cub50 = quick.protocol.model_dump(), params.protocols["cub50"].model_dump()
    changed = {key for key in own if own[key] != of_cub50[key]}
    assert changed <= {"resize", "crop", "tail", "tail_blocks", "tail_lr_factor", "epochs"}
    values, of_simgcd = quick.methods["simgcd"], params.methods["simgcd"] | params.benchmarks["cub50"].methods["simgcd"]
    assert values.keys() - of_simgcd.keys() <= {"new_by"}
    changed = {key for key in of_simgcd if values[key] != of_simgcd[key]}
    assert changed <= {"teacher_warmup_epochs", "entropy_weight", "new_by"}
    assert values["entropy_weight"] == params.methods["simgcd"]["entropy_weight"]


def test_help_and_docs_give_the_balance_of_each_preset() -> None:
    of = {name: preset.methods["simgcd"]["entropy_weight"] for name, preset in read_presets().presets.items()}
    assert list(of) == ["quick", "long"]
    [value] = set(of.values())
    [commands] = [action for action in parser()._actions if isinstance(action.choices, dict)]
    [option] = [one for one in commands.choices["discover"]._actions if "--balance" in one.option_strings]
    assert str(option.help).endswith(f"default: {value:g} in both presets")
    docs = (ROOT / "docs/discover.md").read_text(encoding="utf-8")
    assert f"\n| `--balance` | {of['quick']:g} | {of['long']:g} |\n" in docs
    assert f"(`entropy_weight`; default: {value:g} in both presets)" in docs.replace("\n", " ")


def test_backbones_set_their_sizes() -> None:
    assert (chosen("quick", None, None, None)["resize"], chosen("quick", None, None, None)["crop"]) == (256, 224)
    dino = chosen("quick", "dino_vitb16", "w.pth", None)
    assert (dino["crop"], dino["tail_lr_factor"], dino["weights"], dino["sha256"]) == (224, 1.0, "w.pth", "")
    assert chosen("long", None, None, None)["model"] == "vit_base_patch16_224.dino"
    assert (chosen(*("quick", None, None), 64)["resize"], chosen("quick", None, None, 64)["crop"]) == (73, 64)


@pytest.mark.parametrize(
    ("images", "batch", "k"), [(5, 5, 2), (40, 16, 8), (300, 37, 10), (1024, 128, 10), (9999, 128, 10)]
)
def test_small_sets_have_small_batches(images: int, batch: int, k: int) -> None:
    made, notes = fitted(chosen("long", None, None, None), images)
    assert (made["batch_size"], made["k"], made["epochs"]) == (batch, k, 200)
    assert bool(notes) == (images < 1024)
    assert estimate_of(images, 2, 1)["most"] == min(200, max(images // 4, 4))


@pytest.mark.parametrize(("images", "epochs"), [(5, 600), (40, 300), (2889, 27), (12_800, 6), (100_000, 5)])
def test_a_length_in_steps_becomes_epochs(images: int, epochs: int) -> None:
    made, notes = fitted(chosen("quick", None, None, None) | {"steps": 600}, images)
    assert (made["epochs"], made["teacher_warmup_epochs"]) == (epochs, epochs // 5)
    assert "steps" not in made
    assert "T_warm" not in made
    assert not any("epochs" in line for line in notes)
    full = fitted(chosen("long", None, None, None) | {"steps": 600, "epochs": 5}, images)[0]
    assert (full["epochs"], full["T_warm"]) == (epochs, epochs // 4)


def test_a_method_without_variants_has_none() -> None:
    quick, long = (chosen(name, None, None, None) for name in ("quick", "long"))
    assert (quick["row"], "variant" in quick) == ("simgcd", False)
    assert (long["row"], long["variant"]) == ("full-paper", "paper")
