"""Discoveries that continue from corrected results."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
import yaml
from torch.nn.functional import normalize

from ctxgcd import api
from ctxgcd.discover import discovery
from ctxgcd.discover import model as models
from ctxgcd.discover.checks import checked_request
from ctxgcd.discover.continuation import Start, moved, order_of
from ctxgcd.discover.corrections import Line, text_of
from ctxgcd.methods.build import method_of
from ctxgcd.methods.step import Look
from ctxgcd.utils.files import file_sha256
from tests.helpers.discovery import KNOWN, Place, table
from tests.helpers.refusals import error_of
from tests.unit.discover.conftest import one_core

pytestmark = pytest.mark.slow

RESULTS = ("predictions.csv", "report.html", "corrections.csv", "asked.json", "model/model.pt", "model/classes.json")


def rows_of(out: Path) -> pd.DataFrame:
    return table(out / "predictions.csv").set_index("path")


def hashes(out: Path) -> dict[str, str]:
    return {name: file_sha256(out / name) for name in RESULTS}


def corrected(out: Path, lines: Sequence[Line], to: Path) -> None:
    to.write_text(text_of(lines), encoding="utf-8")
    api.label(out, to)


@pytest.fixture(scope="module")
def lines(found: dict[str, Any], place: Place) -> list[Line]:
    """Corrections of three images of new-1, one of new-2 and one of a known class."""
    rows = table(place.root / "photos/out/predictions.csv")
    first, second, known = (rows.loc[rows["name"] == name, "path"].tolist() for name in ("new-1", "new-2", "iris"))
    return [
        Line("name", cls="new-1", target="rose"),
        *(Line("move", image=path, target="new-2") for path in first[:2]),
        Line("move", image=first[2], target="moss"),
        Line("out", image=second[0]),
        Line("confirm", image=known[0], cls="iris"),
    ]


@pytest.fixture(scope="module")
def earlier(place: Place, found: dict[str, Any], lines: list[Line]) -> Iterator[Path]:
    """Corrected results."""
    copy = place.copied(place.root / "photos/out", "earlier")
    corrected(copy, lines, place.root / "lines.csv")
    yield copy
    shutil.rmtree(copy)


@pytest.fixture(scope="module")
def continued(place: Place, earlier: Path) -> Iterator[tuple[Path, dict[str, Any]]]:
    """Results that continue the corrected ones, and what discover returned."""
    copy = place.copied(earlier, "continued")
    with one_core():
        yield copy, place.again(copy)
    shutil.rmtree(copy)


def test_corrections_are_labels_and_classes_keep_their_numbers(
    continued: tuple[Path, dict[str, Any]], lines: list[Line], earlier: Path
) -> None:
    out, facts = continued
    rows, before = rows_of(out), rows_of(earlier)
    moves = {line.image: line.target for line in lines if line.action == "move"}
    assert [rows.loc[path, "name"] for path in moves] == ["new-2", "new-2", "moss"]
    of = dict(rows[["number", "name"]].drop_duplicates().to_numpy())
    assert of.items() <= {"new-1": "rose", "new-2": "new-2", "new-3": "moss"}.items() | {("", name) for name in KNOWN}
    [thrown_out] = [line.image for line in lines if line.action == "out"]
    assert set(rows.index) == set(before.index)
    assert thrown_out not in rows.index
    assert table(out / "thrown_out.csv")["path"].tolist() == [thrown_out]
    assert (facts["images"], facts["labelled"], facts["known"], facts["K"], facts["K_source"]) == (
        50,
        14,
        2,
        5,
        "given",
    )
    others = [path for path in rows.index if path not in moves]
    assert (rows.loc[others, "name"] == before.loc[others, "name"]).mean() > 0.5
    kept = yaml.safe_load((out / "model/params.yaml").read_text(encoding="utf-8"))
    assert kept["from_model"] == file_sha256(earlier / "model/model.pt")
    assert {"from_labels", "from_corrections"} <= set(kept)


def test_what_changed_is_told_class_by_class(
    continued: tuple[Path, dict[str, Any]], lines: list[Line], earlier: Path
) -> None:
    out, facts = continued
    rows, before = rows_of(out), rows_of(earlier)
    hand = {line.image for line in lines}
    others = [path for path in rows.index if path not in hand]
    changed = int((rows.loc[others, "name"] != before.loc[others, "name"]).sum())
    first, *by_class = facts["changed"]
    assert first.startswith(f"{changed} image" if changed else "No image")
    counts = [
        int(word.split()[0]) for line in by_class for word in line.split(": ", 1)[1].split(", ") if word[0].isdigit()
    ]
    assert sum(counts) == changed
    assert first in (out / "report.html").read_text(encoding="utf-8")


def test_the_same_command_does_nothing_the_second_time(
    place: Place, continued: tuple[Path, dict[str, Any]], capsys: pytest.CaptureFixture[str]
) -> None:
    out, facts = continued
    before = hashes(out)
    for _ in range(2):
        assert place.again(out) == facts
        assert place.discover(str(out), classes=5) == facts  # with the options of the first call
        assert "is up to date" in capsys.readouterr().out
        shutil.rmtree(out / "work")
    assert hashes(out) == before


def test_an_interrupted_call_leaves_the_old_results(
    place: Place, earlier: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    out = place.copied(earlier, "interrupted")
    before = hashes(out)

    def interrupted(*_: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(discovery.models, "save", interrupted)
        with pytest.raises(KeyboardInterrupt):
            place.again(out)
    assert hashes(out) == before
    api.label(out, "new-2=fern")  # results can be corrected meanwhile; a name changes no training
    capsys.readouterr()
    place.again(out)
    assert "epoch" not in capsys.readouterr().out
    assert "fern" in set(rows_of(out)["name"])
    shutil.rmtree(out)


def test_new_photographs_take_part_and_merged_numbers_are_not_given_again(
    place: Place, found: dict[str, Any], tmp_path: Path
) -> None:
    """In a copy of the folder, with one class more than stand after the merge."""
    photos = tmp_path / "photos"
    shutil.copytree(place.root / "photos", photos, symlinks=True, ignore=shutil.ignore_patterns("earlier", "continued"))
    shutil.copy(photos / "deep/er/003.PNG", photos / "added.PNG")
    out = photos / "out"
    corrected(out, [Line("merge", cls="new-1", target="new-2")], tmp_path / "c.csv")
    facts = place.again(out, folder=photos)
    assert "added.PNG" in rows_of(out).index
    assert (facts["K"], facts["images"]) == (3, 52)
    assert "1 image is new in the folder or had a label." in facts["changed"]
    assert set(rows_of(out)["number"]) <= {"", "new-2"}
    more = place.discover(str(out), folder=photos, labels=None, classes=4, backbone=None, weights=None, size=None)
    assert (more["K"], more["K_source"]) == (4, "given")
    assert set(rows_of(out)["number"]) <= {"", "new-2", "new-3"}
    assert "new-3" in set(rows_of(out)["number"])


def test_a_taken_in_correction_can_be_taken_back(continued: tuple[Path, dict[str, Any]], place: Place) -> None:
    out = place.copied(continued[0], "undone")
    [image] = rows_of(out).index[rows_of(out)["confidence"] == 1][:1]
    for _ in range(5):
        api.label(out, undo=True)
    rows = rows_of(out)
    assert (rows["confidence"] < 1).all()
    assert image in rows.index
    assert not (out / "thrown_out.csv").exists()
    shutil.rmtree(out)


def test_a_discovery_without_labels_continues_with_some(place: Place, tmp_path: Path) -> None:
    out = place.root / "photos/unlabelled"
    first = place.discover(str(out), labels=None)
    assert first["labelled"] == 0
    rows = table(out / "predictions.csv")
    corrected(out, [Line("confirm", image=rows["path"][0], cls=rows["number"][0])], tmp_path / "c.csv")
    again = place.again(out)
    assert (again["labelled"], again["known"], again["K"]) == (1, 0, 4)
    assert models.load(out / "model").parameters["supervised_weight"] > 0
    assert set(rows_of(out)["number"]) <= {f"new-{number}" for number in range(1, 5)}
    shutil.rmtree(out)


# -- refused, before torch is loaded ---------------------------------------------------------------------------------


def test_another_folder_is_refused(place: Place, earlier: Path, tmp_path: Path) -> None:
    shutil.copy(place.root / "photos/deep/er/000.jpg", tmp_path / "else.jpg")
    assert error_of(lambda: place.discover(str(earlier), folder=tmp_path)) == (
        f"{tmp_path} contains no image of {earlier}, from which the discovery continues; give the folder of its "
        "images, or another --out to start anew"
    )


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"seed": 1}, "was trained with another --seed; leave --seed out, or give another --out to start anew"),
        ({"size": 64, "balance": 0.5}, "was trained with another --size and --balance; leave --size and --balance out"),
        ({"preset": "long"}, "was trained with another --preset; leave"),
        ({"classes": 3}, "--classes is 3, but the labels name 4 classes ('iris', 'moss', 'new-2', 'rose, "),
    ],
)
def test_requests_that_are_refused(place: Place, earlier: Path, changes: dict[str, Any], problem: str) -> None:
    before = hashes(earlier)
    assert problem in error_of(lambda: place.discover(str(earlier), **changes))
    assert hashes(earlier) == before


def test_the_smallest_class_without_a_label_and_a_name_ends(place: Place, earlier: Path) -> None:
    how = {"preset": "quick", "backbone": None, "weights": None, "size": None, "seed": 0}
    requests = [
        checked_request(place.root / "photos", None, earlier, classes=classes, **how) for classes in (None, 4, 6)
    ]
    assert [(request.classes, list(request.continued.dropped)) for request in requests if request.continued] == [
        (5, []),
        (4, ["new-1"]),
        (6, []),
    ]
    assert not any(request.continued.unchanged for request in requests if request.continued)


# -- parts -----------------------------------------------------------------------------------------------------------


def test_labelled_classes_come_first() -> None:
    alive = ["iris", "new-1", "new-2", "new-3", "new-4"]
    assert order_of(alive, ["iris", "oak"], {"a": "new-3", "b": "iris"}) == [
        *("iris", "oak", "new-3", "new-1", "new-2", "new-4")
    ]


def test_moved_images_are_counted_by_both_classes() -> None:
    before = {"a": "x", "b": "x", "c": "x", "d": "y", "gone": "x"}
    after = {"a": "y", "b": "y", "c": "z", "d": "y", "new": "x"}
    assert moved(before, after, ["c"]) == {("x", "y"): 2}


def test_a_continued_network_starts_where_the_earlier_one_ended(out: Path) -> None:
    """Class 2 continues both New classes, class 3 is made by hand from two images, class 4 is an added one."""
    earlier = models.load(out / "model")
    parameters = {**earlier.parameters, "K": 5}
    method = method_of(parameters)
    network = method.network(torch.nn.Identity(), earlier.features.shape[1], 2)
    network.tail = earlier.network.tail
    added = network.classifier.direction[4].clone()
    labels = torch.tensor([-1, 3, 3, 0])
    features = torch.randn(4, earlier.features.shape[1], generator=torch.Generator().manual_seed(0))
    look: Any = Look(0, labels, lambda ids: features[ids], None, None, None)  # type: ignore[arg-type]
    Start(earlier, [[0], [1], [2, 3], [], []], 2, labels).load_into(network, look)
    rows = normalize(network.classifier.direction.detach(), dim=1)
    assert torch.allclose(rows[:2], normalize(earlier.network.classifier.direction[:2], dim=1), atol=1e-6)
    assert earlier.network.centres is not None
    assert torch.allclose(rows[2], normalize(earlier.network.centres.sum(dim=0), dim=0), atol=1e-5)
    assert torch.allclose(rows[3], normalize(normalize(features[1:3], dim=1).sum(dim=0), dim=0), atol=1e-5)
    assert torch.equal(network.classifier.direction[4], added)
    own, theirs = (of.projector.state_dict() for of in (network, earlier.network))
    assert all(torch.equal(value, theirs[name]) for name, value in own.items())


def test_new_classes_continue_in_their_order(out: Path) -> None:
    """Three groups around the axes: class 2 had the third, class 1 the second; class 3 had none; class 0 is known."""
    axes = torch.eye(4)
    rows = torch.cat(
        [axes[place] + 0.01 * torch.randn(6, 4, generator=torch.Generator().manual_seed(0)) for place in range(4)]
    )
    had = torch.tensor(np.repeat([0, 1, 2, -1], 6))
    labels = torch.full((24,), -1)
    labels[[0, 7]] = torch.tensor([0, 1])
    start = Start(models.load(out / "model"), [[0], [1], [2], []], 1, had)
    unlabelled = torch.tensor([number for number in range(6, 24) if number != 7])
    centres = start.divided(lambda ids: rows[ids], labels, unlabelled)
    assert (centres @ axes.T).argmax(dim=1).tolist() == [1, 2, 3]
