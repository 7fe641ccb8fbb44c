"""The check of a discovery on its labels."""

from __future__ import annotations

import json
from pathlib import Path

import pandas as pd
import pytest
import torch

from ctxgcd.cli.command import main
from ctxgcd.discover.self_check import OWN, clusterings, hidden_half, skipped
from ctxgcd.discover.split import make_split
from tests.helpers.discovery import MODEL, Place, short_trainings
from tests.helpers.layouts import Painter


def split_of(labels: dict[str, int], unlabelled: int = 3) -> pd.DataFrame:
    """A split with so many labelled images of each class, between unlabelled ones."""
    of = {f"{name}{number}": name for name, count in labels.items() for number in range(count)}
    return make_split([*(f"x{number}" for number in range(unlabelled)), *of], of)


def test_half_of_the_classes_with_enough_labels_are_hidden() -> None:
    split = split_of({"a": 6, "b": 4, "c": 3, "d": 8, "e": 5})
    trial, ids = hidden_half(split)
    assert trial["path"].tolist() == split["path"].iloc[ids].tolist()
    assert set(trial["class_name"]) == {"a", "b", "d", "e"}  # c has too few images
    assert set(trial.loc[trial["old"] == 1, "class_name"]) == {"a", "b"}
    assert (trial["role"] == "labelled").sum() == 5  # half of 6 + 4
    assert set(trial.loc[trial["role"] == "labelled", "class_name"]) <= {"a", "b"}
    assert trial["id"].tolist() == list(range(len(trial)))


@pytest.mark.parametrize(
    ("labels", "views", "reason"),
    [
        ({"a": 4, "b": 4, "c": 4, "d": 4}, 4, ""),
        ({"a": 4, "b": 4, "c": 4, "d": 3}, 4, "at least 4 labelled images each, and there are 3"),
        ({"a": 9, "b": 1}, 4, "it needs 4 classes with at least 4 labelled images each, and there is 1"),
        ({}, 4, "no image has a label"),
        ({"a": 4, "b": 4, "c": 4, "d": 4}, 0, "a training with the preset long takes too long"),
    ],
)
def test_too_few_labels_for_a_check(labels: dict[str, int], views: int, reason: str) -> None:
    text = skipped({"view_bank": views, "preset": "long"}, split_of(labels))
    assert text.endswith(reason)
    assert bool(text) == bool(reason)


def test_clusterings_of_separate_points() -> None:
    """Both clusterings find four groups of directions, of which two have labels."""
    rows = torch.eye(4).repeat_interleave(5, dim=0) + 0.01 * torch.randn(20, 4, generator=torch.manual_seed(0))
    true = torch.arange(4).repeat_interleave(5)
    labels = torch.where((torch.arange(20) % 5 < 2) & (true < 2), true, -1)
    found = clusterings(rows, labels, 4, 0)
    for assigned in found.values():
        pairs = set(zip(true[labels < 0].tolist(), assigned.tolist(), strict=True))
        assert len(pairs) == 4
    assert set(zip(true[labels < 0].tolist(), found["semi-supervised k-means"].tolist(), strict=True)) >= {
        (0, 0),
        (1, 1),
    }


@pytest.mark.slow
def test_a_discovery_checks_itself_once(
    place: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    painter, lines = Painter(5), ["path,class"]
    for number in range(60):
        painter.save(tmp_path / f"photos/{number:02d}.png", number % 6, 36, 40)
        if number % 6 < 4 and number < 36:
            lines.append(f"{number:02d}.png,{'abcd'[number % 6]}")
    (tmp_path / "labels.csv").write_text("\n".join(lines) + "\n")
    how = {"folder": tmp_path / "photos", "labels": tmp_path / "labels.csv", "classes": 6}
    found = place.discover(str(tmp_path / "out"), **how)["check"]
    assert (found["images"], found["classes"], found["hidden"]) == (18, 4, 2)  # of 24, 6 keep their label
    assert found["hidden_images"] == 12
    assert found["scores"].keys() == {OWN, "k-means", "semi-supervised k-means"}
    assert found["scores"][OWN]["all"] > 50
    [file] = (tmp_path / "out").rglob("check-*.json")
    page = (tmp_path / "out/report.html").read_text(encoding="utf-8")
    assert all(line in page for line in found["said"])
    # A killed call does not train it again.
    stamp = file.stat().st_mtime_ns
    (tmp_path / "out/report.html").unlink()
    assert found["said"][0] not in capsys.readouterr().out  # the command prints it, once
    words = ["--labels", str(how["labels"]), "--classes", "6", "--backbone", MODEL, "--size", "32"]
    words += ["--weights", str(place.root / "backbone.pth"), "--out", str(tmp_path / "out")]
    monkeypatch.setattr("sys.argv", ["ctxgcd", "discover", str(how["folder"]), *words])
    with short_trainings():
        main()
    assert file.stat().st_mtime_ns == stamp
    assert json.loads(file.read_text())["scores"] == found["scores"]
    printed = capsys.readouterr()
    assert printed.out.splitlines()[1 : 1 + len(found["said"])] == found["said"]
    assert not [line for line in found["said"] if line in printed.err]
