"""Equal and nearly equal images of different parts."""

from __future__ import annotations

import runpy
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from PIL import Image, ImageFilter

from ctxgcd.images.duplicates import NEAR, counts, find, thumbnails
from ctxgcd.images.pack import pack
from ctxgcd.images.store import Store, open_store
from tests.helpers.places import ROOT


def photo(seed: int, height: int = 90, width: int = 120) -> Image.Image:
    """A smooth synthetic photograph."""
    coarse = np.random.RandomState(seed).randint(0, 256, (6, 8, 3)).astype(np.uint8)
    image = Image.fromarray(coarse).resize((width, height), Image.Resampling.BICUBIC)
    return image.filter(ImageFilter.GaussianBlur(1))


def packed(folder: Path, images: dict[str, Image.Image]) -> Store:
    """Pack images by name; `.jpg` names are compressed."""
    folder.mkdir(exist_ok=True)
    for name, image in images.items():
        image.save(folder / name, quality=80)
    pack("cub", folder, list(images), 64, folder / "store.npz", 1)
    return open_store(folder / "store.npz")


def test_which_duplicates_are_found(tmp_path: Path) -> None:
    first = photo(0)
    images = {
        "first.png": first,  # 0, labelled
        "copy.png": first,  # 1, unlabelled: equal
        "again.jpg": first,  # 2, test: compressed, near
        "scaled.png": first.resize((126, 94), Image.Resampling.BICUBIC),  # 3, unlabelled: near
        "mirrored.png": first.transpose(Image.Transpose.FLIP_LEFT_RIGHT),  # 4, unlabelled: not found
        "other.png": photo(1),  # 5, unlabelled
        "same part.png": photo(1),  # 6, unlabelled: of the same part, no matter
        "noise.png": Image.fromarray(np.random.RandomState(5).randint(0, 256, (90, 120, 3)).astype(np.uint8)),
    }
    groups = np.array([0, 1, 2, 1, 1, 1, 1, 2])
    store = packed(tmp_path / "images", images)
    pairs = find(store, thumbnails(store), groups)
    found = pairs.set_index(["first", "second"])["kind"].to_dict()
    assert found == {(0, 1): "equal", (0, 2): "near", (0, 3): "near", (1, 2): "near"}  # the closest of each part
    assert (pairs["difference"] <= NEAR).all()
    assert counts(pairs, groups) == {
        (0, 1): {"equal": 1, "near": 1},
        (0, 2): {"equal": 0, "near": 1},
        (1, 2): {"equal": 0, "near": 1},
    }


def test_none(tmp_path: Path) -> None:
    store = packed(tmp_path / "images", {f"{i}.png": photo(i) for i in range(4)})
    pairs = find(store, thumbnails(store), np.array([0, 1, 1, 2]))
    assert pairs.empty
    assert counts(pairs, np.array([0, 1, 1, 2])) == {}


@pytest.mark.parametrize("spread", [3, 12, 255])
def test_against_brute_force(spread: int) -> None:
    """Similar thumbnails, so that the differences of many pairs are near the limit."""
    random = np.random.RandomState(spread)
    centres = random.randint(0, 256 - spread, (5, 256))
    thumbs = (centres[random.randint(0, 5, 300)] + random.randint(0, spread, (300, 256))).astype(np.uint8)
    thumbs[250:] = thumbs[:50]
    groups = random.randint(0, 3, 300)
    rows = np.array([thumb.reshape(16, 16) for thumb in thumbs])
    store = as_store(rows)
    pairs = find(store, thumbs, groups)
    levels = thumbs.astype(float)
    expected = set()
    for i in range(300):
        difference = np.sqrt(((levels - levels[i]) ** 2).mean(axis=1))
        for group in range(groups[i]):
            j = int(np.where(groups == group, difference, np.inf).argmin())  # the first of the closest
            if difference[j] <= NEAR:
                expected.add((min(i, j), max(i, j), "near" if difference[j] else "equal"))
    assert set(zip(pairs["first"], pairs["second"], pairs["kind"], strict=True)) == expected
    assert len(pairs) == len(expected) > 0
    equal = pairs[pairs["kind"] == "equal"]
    assert all((thumbs[i] == thumbs[j]).all() for i, j in zip(equal["first"], equal["second"], strict=True))


def as_store(grey: np.ndarray) -> Store:
    """A store of grey images of one size, uint8 [N, side, side]."""
    import torch

    n, side = grey.shape[:2]
    pixels = torch.from_numpy(np.repeat(grey.reshape(-1, 1), 3, axis=1))
    sides = torch.full((n,), side)
    return Store(pixels, torch.arange(n) * side * side, sides, sides)


def test_many_equal_images() -> None:
    grey, groups = np.full((2000, 16, 16), 255, np.uint8), np.arange(2000) % 2
    pairs = find(as_store(grey), grey.reshape(2000, -1), groups)
    assert len(pairs) == 1000  # not a million
    assert (pairs["first"] == 0).all()
    assert counts(pairs, groups) == {(0, 1): {"equal": 1000, "near": 0}}
    assert find(as_store(grey), grey.reshape(2000, -1), np.ones(2000, np.int64)).empty


def test_one_thumbnail_of_other_pixels_is_near() -> None:
    grey = np.array([np.full((32, 32), 100), np.indices((32, 32)).sum(0) % 2 * 2 + 99]).astype(np.uint8)
    store = as_store(grey)
    assert (thumbnails(store)[0] == thumbnails(store)[1]).all()
    pairs = find(store, thumbnails(store), np.array([2, 0]))
    assert pairs.to_dict("records") == [{"first": 0, "second": 1, "kind": "near", "difference": 0.0}]


def test_script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    images = {"a.png": photo(0), "b, <i>.png": photo(0), "c.png": photo(2)}
    packed(tmp_path / "images", images)
    split = pd.DataFrame(
        {"id": [1, 0, 2], "path": ["b, <i>.png", "a.png", "c.png"], "part": ["train", "train", "test"]}
    )
    split["role"], split["class_id"], split["class_name"], split["old"] = ["unlabelled", "labelled", "test"], 0, "x", 1
    split.to_csv(tmp_path / "split.csv", index=False)
    script = str(ROOT / "workflow/scripts/find_duplicates.py")
    call = [script, "--store", str(tmp_path / "images/store.npz"), "--split", str(tmp_path / "split.csv")]
    monkeypatch.setattr(sys, "argv", [*call, "--out", str(tmp_path / "out.csv")])
    runpy.run_path(script, run_name="__main__")
    assert "1 images of D^u are equal, 0 nearly equal to one of D^l" in capsys.readouterr().out
    found = pd.read_csv(tmp_path / "out.csv")
    assert found.to_dict("records") == [
        {
            **{"kind": "equal", "difference": 0.0, "id": 0, "path": "a.png", "role": "labelled"},
            **{"other_id": 1, "other_path": "b, <i>.png", "other_role": "unlabelled"},
        }
    ]
