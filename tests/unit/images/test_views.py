"""Views of stored images against PIL and torchvision."""

from __future__ import annotations

import itertools
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torchvision import transforms
from torchvision.transforms import functional as F

from ctxgcd.images.pack import pack
from ctxgcd.images.store import open_store
from ctxgcd.images.views import Cropper
from ctxgcd.utils.seeding import Stream, generator
from tests.helpers.images import MEAN, NORMALISE, SHAPES, STD, cropper_of, paint, pil, write

torch.set_num_threads(1)


@pytest.mark.parametrize(("mean", "std"), [(MEAN, STD), ([0.5] * 3, [0.5] * 3), ([0.1, 0.2, 0.3], [0.7, 1.1, 0.013])])
def test_normalising_equals_torchvision(tmp_path: Path, mean: list[float], std: list[float]) -> None:
    every = np.arange(256, dtype=np.uint8).reshape(16, 16)
    names = write(tmp_path / "images", [Image.fromarray(np.stack([every, every.T, 255 - every], axis=2))])
    pack("cub", tmp_path / "images", names, 16, tmp_path / "store.npz", 1)
    image = Image.open(tmp_path / "images" / names[0])
    expected = transforms.Normalize(mean, std)(transforms.ToTensor()(image))
    assert torch.equal(
        Cropper(open_store(tmp_path / "store.npz"), 16, mean, std).test_view(torch.arange(1))[0], expected
    )


@pytest.mark.parametrize("small", [False, True])
def test_a_gather_is_the_same_as_slices(packed: Path, tmp_path: Path, small: bool) -> None:
    """The code path of a GPU, on this device."""
    if small:
        names = write(tmp_path / "small", [paint(9, 9, seed=i) for i in range(len(SHAPES))])
        pack("cub", tmp_path / "small", names, 36, packed, 1)
    cropper, ids = cropper_of(packed, 32), torch.arange(len(SHAPES))
    assert cropper.store.side == (9 if small else None)
    rows, columns = torch.arange(32).expand(len(ids), -1), torch.arange(31, -1, -1).expand(len(ids), -1)
    zero = torch.zeros_like(ids)
    sliced = cropper.sliced(ids, zero, zero, torch.ones_like(ids, dtype=torch.bool))
    assert torch.equal(cropper.gathered(ids, rows, columns), sliced)


@pytest.mark.parametrize("crop", [36, 35, 32, 31, 8, 1])
def test_test_view_is_the_pil_pipeline(packed: Path, crop: int) -> None:
    cropper = cropper_of(packed, crop)
    found = cropper.test_view(torch.arange(len(SHAPES)))
    assert found.dtype == torch.float32
    for i in range(len(SHAPES)):
        assert torch.equal(found[i], NORMALISE(transforms.CenterCrop(crop)(pil(packed, i)))), SHAPES[i]


def test_test_view_rounds_as_torchvision(packed: Path) -> None:
    """Half pixels are rounded to even, for sides of every remainder, in the requested order."""
    cropper = cropper_of(packed, 33)
    ids = torch.tensor([4, 0, 4, 10, 3])
    found = cropper.test_view(ids)
    for row, i in enumerate(ids.tolist()):
        assert torch.equal(found[row], NORMALISE(transforms.CenterCrop(33)(pil(packed, i))))


@pytest.mark.parametrize("crop", [36, 32, 9])
def test_cut_is_the_pil_pipeline(packed: Path, crop: int) -> None:
    cropper, draw = cropper_of(packed, crop), np.random.RandomState(0)
    ids = draw.randint(0, len(SHAPES), 60)
    sizes = [pil(packed, i).size for i in ids]
    tops = np.array([draw.randint(0, height - crop + 1) for _, height in sizes])
    lefts = np.array([draw.randint(0, width - crop + 1) for width, _ in sizes])
    flips = draw.rand(60) < 0.5
    found = cropper.cut(*(torch.from_numpy(values) for values in (ids, tops, lefts, flips)))
    assert found.shape == (60, 3, crop, crop)
    for row, (i, top, left, flip) in enumerate(zip(ids, tops.tolist(), lefts.tolist(), flips, strict=True)):
        image = F.crop(pil(packed, i), top, left, crop, crop)
        assert torch.equal(found[row], NORMALISE(F.hflip(image) if flip else image))


@pytest.mark.parametrize("jitter", [None, transforms.ColorJitter()])
def test_train_view_is_the_pil_pipeline_for_its_draws(packed: Path, jitter: transforms.ColorJitter | None) -> None:
    """Also with the published code's ColorJitter() without arguments, which changes no pixel."""
    crop, cropper = 32, cropper_of(packed, 32)
    ids = torch.randint(0, len(SHAPES), (50,), generator=torch.Generator().manual_seed(0))
    found = cropper.train_view(ids, Stream(generator(3, "views", 1)))
    draws = torch.rand(50, 3, generator=generator(3, "views", 1), dtype=torch.float64).tolist()
    for row, (i, (down, right, flip)) in enumerate(zip(ids.tolist(), draws, strict=True)):
        image = pil(packed, i)
        width, height = image.size
        image = F.crop(image, int(down * (height - crop + 1)), int(right * (width - crop + 1)), crop, crop)
        image = F.hflip(image) if flip < 0.5 else image
        assert torch.equal(found[row], NORMALISE(jitter(image) if jitter else image))


def test_train_views_reach_the_whole_image(packed: Path) -> None:
    """Every offset and both flips occur; crops cover the whole image, with one draw per image."""
    image = SHAPES.index((36, 36))
    cropper = cropper_of(packed, 34)
    corners = {
        cropper.cut(*(torch.tensor([v]) for v in (image, top, left)), torch.tensor([flip])).numpy().tobytes()
        for top, left, flip in itertools.product(range(3), range(3), (False, True))
    }
    assert len(corners) == 18
    found = cropper.train_view(torch.full((500,), image), Stream(generator(0, "views")))
    drawn = [view.numpy().tobytes() for view in found]
    assert set(drawn) == corners
    # 500 draws of 18 equally likely results: each about 28 times, within five standard deviations.
    assert all(2 < drawn.count(corner) < 54 for corner in corners)


def test_train_view_is_deterministic(packed: Path) -> None:
    cropper, ids = cropper_of(packed, 20), torch.arange(len(SHAPES))
    torch.manual_seed(0)
    first = cropper.train_view(ids, Stream(generator(0, "views")))
    torch.manual_seed(1)
    assert torch.equal(first, cropper.train_view(ids, Stream(generator(0, "views"))))
    assert not torch.equal(first, cropper.train_view(ids, Stream(generator(0, "views", 1))))
    stream = Stream(generator(0, "views"))
    assert not torch.equal(cropper.train_view(ids, stream), cropper.train_view(ids, stream))
