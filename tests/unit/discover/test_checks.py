"""Options, images and folders that cannot be used."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path
from typing import Any

import pytest

from ctxgcd.cli.command import main
from ctxgcd.discover.checks import checked_request
from ctxgcd.errors import UserError
from tests.helpers.discovery import MODEL, Place, table
from tests.helpers.layouts import Painter


@pytest.mark.slow
def test_one_labelled_class_with_few_images(place: Place, tmp_path: Path) -> None:
    painter = Painter(2)
    for number in range(5):
        painter.save(tmp_path / "photos" / f"{number}.png", number % 2, 20, 30)
    labels = place.labels("path,class\n0.png,x\n")
    found = place.discover(str(tmp_path / "out"), folder=tmp_path / "photos", labels=labels, classes=2)
    assert len(table(tmp_path / "out/predictions.csv")) == 4
    assert any("batch_size is reduced from" in line for line in found["adapted"])


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"folder": Path("nowhere")}, "nowhere is not a folder"),
        ({"preset": "quik"}, "--preset: unknown preset 'quik'; did you mean 'quick'"),
        ({"backbone": "efficientnet_lite", "weights": None}, "did you mean 'efficientnet_lite0'"),
        ({"weights": None}, f"--backbone {MODEL} requires weights"),
        ({"weights": Path("nowhere.pth")}, "weights of test_efficientnet: nowhere.pth does not exist"),
        ({"backbone": "efficientnet_lite0"}, "do not fit"),
        ({"size": 4}, "--size is 4; give 8 to 1,024 pixels"),
        ({"size": 5000}, "--size is 5000; give 8 to 1,024 pixels"),
        (
            {"backbone": "vit_tiny_patch16_224", "size": 36},
            "--size is 36, but vit_tiny_patch16_224 divides images into patches of 16 x 16 pixels; give 32 or 48$",
        ),
        ({"backbone": "vit_small_patch14_dinov2.lvd142m", "size": 1023}, "14 x 14 pixels; give 1022$"),
        ({"seed": -1}, "--seed is -1; give an integer from 0 to 4294967295"),
        ({"seed": 2**32}, "--seed is 4294967296; give an integer from 0 to 4294967295"),
    ],
)
def test_options_that_cannot_be_used(place: Place, tmp_path: Path, changes: dict[str, Any], problem: str) -> None:
    with pytest.raises(UserError, match=problem):
        place.discover(str(tmp_path / "new/out"), **changes)
    assert not any(tmp_path.iterdir())


def test_a_refused_call_keeps_what_was_there(place: Place, tmp_path: Path) -> None:
    """Weights that do not fit are found in OUT/work, which is created for it; an empty OUT of the user stays."""
    (tmp_path / "out").mkdir()
    with pytest.raises(UserError, match="do not fit"):
        place.discover(str(tmp_path / "out"), backbone="vit_tiny_patch16_224")
    assert not any((tmp_path / "out").iterdir())


def test_the_weight_of_equal_sizes(place: Place, tmp_path: Path) -> None:
    """--balance is the entropy term's weight."""
    how = {"classes": 4, "preset": "quick", "backbone": MODEL, "weights": str(place.root / "backbone.pth"), "size": 32}
    paths = place.root / "photos", place.root / "labels.csv", tmp_path / "out"
    assert checked_request(*paths, **how, seed=0, balance=0).values["entropy_weight"] == 0
    assert checked_request(*paths, **how, seed=0).values["entropy_weight"] > 0
    for wrong in (-0.5, float("nan"), float("inf")):
        with pytest.raises(UserError, match=f"--balance is {wrong}; give a number of 0 or more"):
            checked_request(*paths, **how, seed=0, balance=wrong)


def test_odd_files_in_a_folder_of_images(place: Place, tmp_path: Path) -> None:
    """Broken links, unsupported formats, a class without a readable image, names that differ in case."""
    painter, photos = Painter(3), tmp_path / "photos"
    for number in range(8):
        painter.save(photos / f"{number}.png", number % 2, 20, 30)
    (photos / "gone.jpg").symlink_to("nowhere.jpg")
    (photos / "a.CR2").write_bytes(b"")
    (photos / "b.gif").write_bytes(b"")
    labels = place.labels("Path,Class\n0.png,wren\n1.png,Wren\ngone.jpg,lark\n")
    found = place.discover(str(tmp_path / "out"), folder=photos, labels=labels, classes=4)
    assert (found["images"], found["unreadable"], found["known"]) == (8, 1, 2)
    assert table(tmp_path / "out/unreadable.csv")["path"].tolist() == ["gone.jpg"]
    for note in (
        "other.csv: 'wren' and 'Wren' count as two classes",
        "unsupported files: 1 .cr2, 1 .gif; save them as JPEG to include them",
        "no labelled image of lark can be read, so it is not a known class",
    ):
        assert note in found["notes"]


@pytest.mark.slow
def test_nothing_is_overwritten(
    place: Place, out: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(place.root / "photos" / "deep", tmp_path / "few")

    def predict(*words: str) -> str:
        monkeypatch.setattr(sys, "argv", ["ctxgcd", "predict", str(out / "model"), str(tmp_path / "few"), *words])
        main()
        return capsys.readouterr().out

    before = (out / "predictions.csv").read_bytes()
    with pytest.raises(SystemExit, match="2"):
        predict("--out", str(out / "predictions.csv"))
    assert "exists and was not written by `ctxgcd predict`; choose another file with --out" in capsys.readouterr().err
    assert (out / "predictions.csv").read_bytes() == before
    own = "--out", str(tmp_path / "p.csv")
    assert predict(*own) == predict(*own)
    with pytest.raises(SystemExit, match="2"):
        predict("--threshold", "nan")
    assert "--threshold is nan; give a number between -1 and 1" in capsys.readouterr().err
    (tmp_path / "file").touch()
    with pytest.raises(UserError, match="file is a file; give a new or empty folder with --out"):
        place.discover(str(tmp_path / "file"))


def test_a_folder_with_other_files_is_refused_unchanged(place: Place) -> None:
    for out in ("photos", "."):
        with pytest.raises(UserError, match="contains other files; give a new or empty folder"):
            place.discover(out)
