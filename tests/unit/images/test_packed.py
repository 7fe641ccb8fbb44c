"""The format of image stores, read without torch."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from ctxgcd.images.pack import pack
from ctxgcd.images.packed import open_packed
from ctxgcd.images.store import open_store

SHAPES = {"of several sizes": [(8, 12), (16, 8), (8, 8)], "small squares": [(6, 6)] * 3}


def packed(folder: Path, shapes: list[tuple[int, int]]) -> tuple[Path, list[np.ndarray]]:
    """The index of a store with shorter sides of 8 pixels, and its source images."""
    draw = np.random.RandomState(0)
    images = [draw.randint(0, 256, (*shape, 3), dtype=np.uint8) for shape in shapes]
    for place, image in enumerate(images):
        Image.fromarray(image).save(folder / f"{place}.png")
    pack("cub", folder, [f"{place}.png" for place in range(len(images))], 8, folder / "store.npz", 1)
    return folder / "store.npz", images


@pytest.mark.parametrize("shapes", SHAPES.values(), ids=SHAPES)
def test_images_are_those_that_were_packed(tmp_path: Path, shapes: list[tuple[int, int]]) -> None:
    index, images = packed(tmp_path, shapes)
    found, store = open_packed(index), open_store(index)
    for i, image in enumerate(images):  # none is resized
        assert np.array_equal(found[i], image)
        assert np.array_equal(store.image(i), image)
