"""A discovery without labels: all classes are new."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import yaml

from ctxgcd import api
from ctxgcd.cli.command import main
from ctxgcd.discover.checks import checked_request
from ctxgcd.errors import UserError
from tests.helpers.discovery import MODEL, Place, short_trainings, table, with_onnx
from tests.helpers.layouts import Painter

KINDS = 3


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder, painter = tmp_path_factory.mktemp("photos"), Painter(4)
    for number in range(36):
        painter.save(folder / f"{number:02d}.png", number % KINDS, 36, 40)
    return folder


@pytest.fixture(scope="module")
def unlabelled(place: Place, photos: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    out = tmp_path_factory.mktemp("unlabelled") / "out"
    return out, place.discover(str(out), folder=photos, labels=None, classes=KINDS)


def test_all_classes_are_new(unlabelled: tuple[Path, dict[str, Any]], photos: Path) -> None:
    out, found = unlabelled
    assert (found["images"], found["labelled"], found["known"], found["K"]) == (36, 0, 0, KINDS)
    assert found["notes"] == []
    predictions = table(out / "predictions.csv")
    assert len(predictions) == 36
    assert set(predictions["name"]) == {"new-1", "new-2", "new-3"}
    assert set(predictions["nearest"]) == {""}
    truth = pd.DataFrame({"path": predictions["path"], "class": predictions["path"].map(lambda p: int(p[:2]) % KINDS)})
    assert api.evaluate(predictions, truth)["scores"][0]["all"] > 80
    page = (out / "report.html").read_text(encoding="utf-8")
    assert "36 images without a label in 3 classes, all new." in page
    assert f"36 images, none of them with a label. {KINDS} classes: all new (given)." in page
    assert "Nearest labelled example" not in page
    assert "Known classes" not in page
    kept = yaml.safe_load((out / "model/params.yaml").read_text(encoding="utf-8"))
    assert kept["supervised_weight"] == 0


def test_predict_agrees_with_discover(unlabelled: tuple[Path, dict[str, Any]], photos: Path) -> None:
    out, _ = unlabelled
    predicted, _ = api.predict(out / "model", photos)
    assert (predicted["class"] == table(out / "predictions.csv")["class"]).all()
    assert set(predicted["nearest"]) == {""}


@pytest.mark.slow
@with_onnx
def test_the_exported_model_gives_what_torch_gives(unlabelled: tuple[Path, dict[str, Any]], tmp_path: Path) -> None:
    assert api.export(unlabelled[0] / "model", tmp_path / "model.onnx")["difference"] < 1e-4


@pytest.mark.parametrize(
    ("classes", "problem"),
    [
        (None, r"--classes auto needs labels; give the number of classes with --classes K, or the labels of some"),
        (1, r"--classes is 1; give at least 2 classes"),
        (37, r"--classes is 37: 37 new classes cannot be found among 36 unlabelled images"),
    ],
)
def test_impossible_numbers_of_classes(
    place: Place, photos: Path, tmp_path: Path, classes: int | None, problem: str
) -> None:
    how = {"preset": "quick", "backbone": MODEL, "weights": str(place.root / "backbone.pth"), "size": 32, "seed": 0}
    with pytest.raises(UserError, match=problem):
        checked_request(photos, None, tmp_path / "out", classes=classes, **how)


def test_the_command_says_that_all_classes_are_new(
    place: Place,
    unlabelled: tuple[Path, dict[str, Any]],
    photos: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    words = [
        "--backbone",
        MODEL,
        "--weights",
        str(place.root / "backbone.pth"),
        "--size",
        "32",
        "--classes",
        str(KINDS),
    ]
    monkeypatch.setattr("sys.argv", ["ctxgcd", "discover", str(photos), *words, "--out", str(unlabelled[0])])
    with short_trainings():
        main()
    printed = capsys.readouterr()
    assert printed.out.startswith("36 unlabelled images in 3 classes; no labels: all 3 classes are new\n")
    assert "classes are new" not in printed.err
