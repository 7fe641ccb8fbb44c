"""Discoveries: their results, and resuming of interrupted calls."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
import yaml

from ctxgcd import api
from ctxgcd.cli.command import main
from ctxgcd.discover import model
from ctxgcd.discover.presets import chosen
from ctxgcd.discover.wanted import named_by_size
from ctxgcd.errors import UserError
from ctxgcd.utils.files import file_sha256
from tests.helpers.discovery import KNOWN, LABELLED, MODEL, SIZE, STEPS, Place, command, short_trainings, table
from tests.helpers.places import ENVIRONMENT

pytestmark = pytest.mark.slow

# -- what a discovery writes -----------------------------------------------------------------------------


def test_predictions_of_every_unlabelled_image(place: Place, found: dict[str, Any], out: Path) -> None:
    predictions = table(out / "predictions.csv")
    assert list(predictions) == ["path", "class", "name", "number", "confidence", "nearest", "score"]
    odd = {"link.jpg", "wide.png", "n" * 240 + ".bmp"}
    labelled = {path for path, kind in place.truth.items() if kind < 2 and int(Path(path).stem) < 4 * LABELLED}
    assert set(predictions["path"]) == (set(place.truth) | odd) - labelled
    assert set(predictions["nearest"]) <= labelled
    of = dict(predictions[["class", "name"]].drop_duplicates().to_numpy())
    assert {c: name for c, name in of.items() if c < 2}.items() <= dict(enumerate(KNOWN)).items()
    assert {name for c, name in of.items() if c >= 2} <= {"new-1", "new-2"}
    assert predictions["confidence"].between(0.25, 1).all()
    assert (found["images"], found["labelled"], found["unreadable"], found["known"], found["K"]) == (51, 10, 2, 2, 4)
    assert sorted(table(out / "unreadable.csv")["path"]) == ["broken.jpg", "empty.png"]


def test_a_discovery_is_scored_as_the_docs_say(place: Place, out: Path, tmp_path: Path) -> None:
    """Compared with the true classes of all images, with its labels as the list of Old classes."""
    truth = pd.DataFrame(
        {"path": list(place.truth), "class": [(*KNOWN, "tulip", "daisy")[k] for k in place.truth.values()]}
    )
    truth.to_csv(tmp_path / "truth.csv", index=False)
    files = out / "predictions.csv", tmp_path / "truth.csv"
    with pytest.raises(UserError, match=r"lacks 10 of the 48 .* \(discover only predicts the unlabelled images\)$"):
        api.evaluate(*files, old=place.root / "labels.csv")
    scored = api.evaluate(*files, old=place.root / "labels.csv", allow_missing=True)
    assert (scored["n"], scored["classes"], scored["old_classes"]) == (38, 4, 2)
    assert scored["scores"][0]["old"] > 70  # as test_known_classes_keep_their_names
    with pytest.raises(UserError, match=r"has no image of .*, only labelled ones, such as .*"):
        api.evaluate(files[0], pd.read_csv(place.root / "labels.csv", sep=";").dropna())


def test_known_classes_keep_their_names(place: Place, out: Path) -> None:
    """The classifier's first outputs are the known classes: most of their images get their own names.

    11 of 14 with two cached views and 80 steps of a tiny backbone; by chance 4.
    """
    predictions = table(out / "predictions.csv").set_index("path")["name"]
    right = [predictions[path] == KNOWN[kind] for path, kind in place.truth.items() if kind < 2 and path in predictions]
    assert np.mean(right) > 0.7


def test_report(found: dict[str, Any], out: Path) -> None:
    page = (out / "report.html").read_text(encoding="utf-8")
    for text in (
        "New classes",
        "Known classes",
        "Classes to look at",
        "Classes that look like one",
        "Map of the images",
        "Assumptions and parameters",
        "Most typical",
        "new-1",
    ):
        assert text in page
    assert "rose, &#34;wild&#34; &lt;b&gt;&amp;" in page
    assert "<b>" not in page
    assert "batch_size is reduced from 128 to 16, because there are only 51 images" in page
    assert f"folder is below {found['threshold']:.4f}. That of 1% of its images is lower" in page
    assert "1 repeated line skipped" in page
    assert "1 line without a class skipped" in page


def test_every_value_is_stored(out: Path) -> None:
    kept = yaml.safe_load((out / "model/params.yaml").read_text(encoding="utf-8"))
    assert kept == model.load(out / "model").parameters
    assert kept["batch_size"] == 16
    assert set(chosen("quick", None, None, None)) - {"steps"} <= set(kept)
    assert kept["epochs"] == round(STEPS / 3)  # three whole batches of 51 images


def test_repeating_a_discovery_trains_nothing(place: Place, found: dict[str, Any], out: Path) -> None:
    before = {name: file_sha256(out / name) for name in ("predictions.csv", "report.html", "model/model.pt")}
    stamp = next((out / "work").glob("images-*/features-*/run-*/finished/run.json")).stat().st_mtime_ns
    (out / "report.html").unlink()  # so the results are made once more, from the finished run
    assert place.discover("photos/out") == found
    assert {name: file_sha256(out / name) for name in before} == before
    assert next((out / "work").glob("images-*/features-*/run-*/finished/run.json")).stat().st_mtime_ns == stamp


def test_repeating_a_finished_discovery_writes_nothing(place: Place, found: dict[str, Any], out: Path) -> None:
    before = tree(out)
    assert place.discover("photos/out") == found
    assert tree(out) == before


# -- interrupted -----------------------------------------------------------------------------------------


def call_of(place: Place, out: Path) -> list[str]:
    """Return the words of the command that calls `place.discover`."""
    options = {"--labels": "labels.csv", "--weights": "backbone.pth", "--out": str(out)}
    words = [word for name, file in options.items() for word in (name, str(place.root / file))]
    words += ["--backbone", MODEL, "--size", str(SIZE), "--classes", "4"]
    return ["discover", str(place.root / "photos"), *words]


def test_a_killed_discovery_resumes_to_the_same_result(
    place: Place, out: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    mine = tmp_path / "killed"
    words = call_of(place, mine)
    with subprocess.Popen(command(*words), env=ENVIRONMENT, stderr=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        while not list(mine.glob("work/images-*/features-*/run-*/last.pt")):
            assert process.poll() is None
            time.sleep(0.02)
        process.send_signal(signal.SIGKILL)
    assert not (mine / "predictions.csv").exists()
    [bank] = mine.glob("work/images-*/features-*/view_bank.npy")
    stamp = bank.stat().st_mtime_ns
    monkeypatch.setattr(sys, "argv", ["ctxgcd", *words])
    with short_trainings():
        main()
    again = capsys.readouterr()
    assert re.search(r"resumed after epoch \d", again.err)
    assert "cached views" not in again.err
    assert "gradient" not in again.err  # the sizes of the loss terms are printed by the workflow only
    assert bank.stat().st_mtime_ns == stamp
    assert f"report: {mine / 'report.html'}" in again.out
    assert (mine / "predictions.csv").read_bytes() == (out / "predictions.csv").read_bytes()


def test_another_setting_or_other_images_start_clean(place: Place, tmp_path: Path, capsys: Any) -> None:
    """In a copy: with other epochs the features are reused; with another image nothing is."""
    mine = tmp_path / "out"
    shutil.copytree(place.root / "photos/out", mine, symlinks=True)
    place.discover(str(mine), seed=1)
    output = capsys.readouterr().out
    assert "with different seed; it is kept until this one is complete" in output
    assert "cached views" not in output
    assert len(list(mine.glob("work/images-*/features-*/run-*"))) == 1
    photos = tmp_path / "photos"
    shutil.copytree(place.root / "photos", photos, symlinks=True, ignore=shutil.ignore_patterns("out"))
    os.utime(photos / "deep/er/000.jpg", (1, 1))
    with pytest.raises(UserError, match="--classes is 90: 88 new classes cannot be found among 43 unlabelled images"):
        place.discover(str(mine), folder=photos, classes=90)
    assert (mine / "predictions.csv").exists()  # refused before anything was changed
    place.discover(str(mine), folder=photos)
    output = capsys.readouterr().out
    assert "with different images, seed" in output
    assert "cached views" in output
    assert len(list(mine.glob("work/images-*"))) == 1


def tree(folder: Path) -> dict[str, tuple[int, str]]:
    """Every file of a folder, with its time and content."""
    return {
        path.relative_to(folder).as_posix(): (path.stat().st_mtime_ns, file_sha256(path))
        for path in folder.rglob("*")
        if path.is_file() and path.name != "lock"
    }


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"weights": "other.pth"}, "do not fit"),
        ({"backbone": "test_vit"}, "do not fit"),
        ({"size": 5000}, "--size is 5000"),
        ({"labels": "other.csv"}, "no labelled image can be read"),
    ],
    ids=["weights", "backbone", "size", "labels"],
)
def test_a_refused_request_leaves_the_results(
    place: Place, found: dict[str, Any], tmp_path: Path, changes: dict[str, Any], problem: str
) -> None:
    mine = tmp_path / "out"
    shutil.copytree(place.root / "photos/out", mine)
    torch.save({"conv.weight": torch.zeros(1)}, tmp_path / "other.pth")
    (tmp_path / "other.csv").write_text("path,class\nbroken.jpg,iris\n")
    before = tree(mine)
    files = {key: tmp_path / value for key, value in changes.items() if key in ("weights", "labels")}
    with pytest.raises(UserError, match=problem):
        place.discover(str(mine), **(changes | files))
    assert tree(mine) == before
    assert place.discover(str(mine)) == found


def test_an_interrupted_request_keeps_the_earlier_results(
    place: Place, found: dict[str, Any], tmp_path: Path, capsys: Any
) -> None:
    """Ctrl-C while another request trains: the earlier results are still returned, then the other one is resumed."""
    mine = tmp_path / "out"
    shutil.copytree(place.root / "photos/out", mine)
    before = tree(mine)
    line = command(*call_of(place, mine), "--seed", "1")
    with subprocess.Popen(line, env=ENVIRONMENT, stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL) as process:
        while not (begun := list(mine.glob("work/images-*/features-*/run-*/last.pt"))):
            assert process.poll() is None
            time.sleep(0.02)
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 130
    after = tree(mine)
    assert {name: after[name] for name in before} == before
    assert place.discover(str(mine)) == found
    assert begun[0].exists()
    capsys.readouterr()
    place.discover(str(mine), seed=1)
    assert "resumed after epoch" in capsys.readouterr().out
    assert [path.parent for path in begun] == list(mine.glob("work/images-*/features-*/run-*"))


def test_disk_space_for_the_training_is_checked(
    place: Place, found: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a copy with cached images and features, only the disk space for the training of another seed is required."""
    mine = tmp_path / "out"
    shutil.copytree(place.root / "photos/out", mine)
    usage = shutil.disk_usage(mine)._replace(free=10_000_000)
    with monkeypatch.context() as patched:
        patched.setattr(shutil, "disk_usage", lambda folder: usage)
        with pytest.raises(
            UserError, match=r"has 10 MB free, but training in addition to the discovery .* needs 2. MB more"
        ):
            place.discover(str(mine), seed=1)
        assert place.discover(str(mine)) == found


# -- K ---------------------------------------------------------------------------------------------------


def test_estimated_k(place: Place, out: Path, tmp_path: Path) -> None:
    mine = tmp_path / "auto"
    shutil.copytree(out, mine)
    estimated = place.discover(str(mine), classes="auto")
    assert estimated["K_source"] == "estimated"
    assert 3 <= estimated["K"] <= 12
    assert estimated["K"] in estimated["tried"]
    page = (mine / "report.html").read_text(encoding="utf-8")
    assert "Estimation of K" in page
    assert f"The number of classes, {estimated['K']}, is a rough estimate" in page
    sizes = table(mine / "predictions.csv")["class"].value_counts()
    assert estimated["few"] == sum(sizes.get(c, 0) < 3 for c in range(2, estimated["K"]))


def test_new_classes_are_named_by_size() -> None:
    assigned = pd.Series([0, 0, 2, 4, 4, 4, 3])
    assert named_by_size(["iris", "new-2"], assigned, 6).keys == ["iris", "new-2", "new-3", "new-4", "new-1", "new-5"]


def test_new_classes_avoid_the_known_names_in_any_spelling() -> None:
    assigned = pd.Series([0, 1, 2])
    for known in ("New-1", "NEW-1", "\uff4eew-1"):  # the last one with a full-width n
        assert named_by_size([known], assigned, 3).keys == [known, "new-2", "new-3"]
