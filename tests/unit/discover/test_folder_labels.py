"""Labels from the names of folders."""

from __future__ import annotations

import unicodedata
from pathlib import Path
from typing import Any

import pytest

from ctxgcd.discover.checks import checked_request
from tests.helpers.layouts import Painter
from tests.helpers.refusals import error_of

DOG = "dög & co"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Images of two classes in folders, one of them in two Unicode forms, and images without a label."""
    painter, photos = Painter(0), tmp_path / "photos"
    for path in (
        "robin/1.jpg",
        "robin/2023/may/2.jpg",
        f"{unicodedata.normalize('NFC', DOG)}/3.jpg",
        f"{unicodedata.normalize('NFD', DOG)}/4.jpg",
        "5.jpg",
        "Unlabelled/6.jpg",
        "new-12/robin/7.jpg",
    ):
        painter.save(photos / path, 0, 20, 24)
    return photos


def labels_of(folder: Path, **changes: Any) -> tuple[dict[str, str], list[str]]:
    given: dict[str, Any] = {
        "classes": 3,
        "preset": "quick",
        "backbone": None,
        "weights": None,
        "size": None,
        "seed": 0,
    }
    request = checked_request(folder, Path("folders"), folder.parent / "out", **given | changes)
    return dict(request.labels), request.notes


def test_the_folder_directly_below_is_the_class(folder: Path) -> None:
    labels, notes = labels_of(folder)
    assert {Path(path).name: name for path, name in labels.items()} == {
        "1.jpg": "robin",
        "2.jpg": "robin",
        "3.jpg": DOG,
        "4.jpg": DOG,
    }
    assert notes[-1] == (
        "labels by folders: 4 images of 2 classes; 3 images directly in photos or in 'Unlabelled', 'new-12' without a "
        "label"
    )
    assert any("Unicode" in note for note in notes)


def test_names_that_differ_in_case_are_two_classes(folder: Path) -> None:
    Painter(1).save(folder / "Robin/8.jpg", 0, 20, 24)
    labels, notes = labels_of(folder)
    assert sorted(set(labels.values())) == ["Robin", DOG, "robin"]
    assert "photos: 'Robin' and 'robin' count as two classes" in notes


def test_a_folder_without_labels_is_refused(folder: Path) -> None:
    assert error_of(lambda: labels_of(folder / "Unlabelled")) == (
        f"{folder / 'Unlabelled'} contains no folder with images; put the labelled images of each class into a folder "
        "with its name, or give a CSV with --labels"
    )
    for name in ("robin", unicodedata.normalize("NFC", DOG), unicodedata.normalize("NFD", DOG)):
        (folder / name).rename(folder / f".{name}")
    assert "contains no folder with images except 'Unlabelled', 'new-12'; put" in error_of(lambda: labels_of(folder))


def test_only_labelled_images_are_refused(folder: Path) -> None:
    for name in ("5.jpg", "Unlabelled/6.jpg", "new-12/robin/7.jpg"):
        (folder / name).unlink()
    assert error_of(lambda: labels_of(folder)).startswith("all 4 images have a label, so there is nothing to discover")


def test_the_known_classes_count(folder: Path) -> None:
    assert error_of(lambda: labels_of(folder, classes=1)).startswith("--classes is 1, but the labels name 2 classes")
