"""Sampler, random streams, the image store and the views, against PIL, torchvision and plain loops."""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from PIL import Image
from scipy.stats import kstest
from torch import Tensor
from torchvision import transforms
from torchvision.transforms import InterpolationMode
from torchvision.transforms import functional as F

from ctxgcd.benchmarks.readers import decoding
from ctxgcd.benchmarks.readers.decoding import open_rgb
from ctxgcd.benchmarks.readers.registry import SOURCES
from ctxgcd.errors import UserError
from ctxgcd.images.pack import pack
from ctxgcd.images.resize import resize_shorter
from ctxgcd.images.sampler import draw_batches
from ctxgcd.images.store import Store, open_store, pixels_file
from ctxgcd.images.views import Cropper
from ctxgcd.models.backbone import Backbone
from ctxgcd.models.features import extract_test_view, extract_view_bank, load_kept
from ctxgcd.utils.seeding import Counted, Stream, counted, generator

torch.set_num_threads(1)

MEAN, STD = [0.485, 0.456, 0.406], [0.229, 0.224, 0.225]


# -- sampler ---------------------------------------------------------------------------------------------


def members(labelled: int, of: int) -> Tensor:
    flags = torch.zeros(of, dtype=torch.bool)
    flags[torch.randperm(of, generator=torch.Generator().manual_seed(0))[:labelled]] = True
    return flags


@pytest.mark.parametrize(("labelled", "of", "size"), [(5, 100, 8), (50, 100, 10), (3, 7, 2), (1, 2, 1), (90, 100, 99)])
def test_sampler_draws_an_epoch(labelled: int, of: int, size: int) -> None:
    flags = members(labelled, of)
    batches = draw_batches(flags, size, generator(0, "sampler"))
    assert batches.shape == (of // size, size)  # the incomplete last batch is dropped
    assert batches.dtype == torch.int64
    assert ((batches >= 0) & (batches < of)).all()
    assert torch.equal(batches, draw_batches(flags, size, generator(0, "sampler")))
    assert of < 10 or not torch.equal(batches, draw_batches(flags, size, generator(1, "sampler")))


def slow_shares(flags: list[bool]) -> list[float]:
    """Each image's chance in one draw: weight 1 in D^l and |D^l|/|D^u| in D^u, over their sum."""
    n_labelled = sum(flags)
    weights = [1.0 if flag else n_labelled / (len(flags) - n_labelled) for flag in flags]
    return [weight / sum(weights) for weight in weights]


@pytest.mark.parametrize(("labelled", "of"), [(3, 12), (9, 12), (1, 20)])
def test_sampler_against_its_weights(labelled: int, of: int) -> None:
    flags = members(labelled, of)
    epochs = 20_000 // of
    drawn = torch.cat([draw_batches(flags, 1, generator(0, "sampler", epoch)).flatten() for epoch in range(epochs)])
    found = drawn.bincount(minlength=of).double() / len(drawn)
    expected = torch.tensor(slow_shares(flags.tolist()), dtype=torch.float64)
    # Five standard errors of a share, so that a right sampler fails less than once in 10^5 seeds.
    assert ((found - expected).abs() < 5 * (expected * (1 - expected) / len(drawn)).sqrt()).all()
    half = flags[drawn].double().mean()
    assert abs(half - 0.5) < 5 * 0.5 / len(drawn) ** 0.5


def test_sampler_draws_with_replacement() -> None:
    drawn = draw_batches(members(50, 100), 100, generator(0, "sampler"))[0]
    assert len(drawn.unique()) < 100


def test_sampler_leaves_the_global_stream_alone() -> None:
    flags = members(20, 100)
    torch.manual_seed(1)
    first, after = draw_batches(flags, 8, generator(0, "sampler")), torch.rand(1)
    torch.manual_seed(1)
    assert torch.rand(1) == after
    torch.manual_seed(2)
    assert torch.equal(first, draw_batches(flags, 8, generator(0, "sampler")))


@pytest.mark.parametrize(
    ("labelled", "of", "size", "words"),
    [(0, 10, 2, "0 labelled images of 10"), (10, 10, 2, "10 labelled images of 10"), (5, 10, 11, "batch_size 11")],
)
def test_sampler_refuses(labelled: int, of: int, size: int, words: str) -> None:
    with pytest.raises(UserError, match=words):
        draw_batches(members(labelled, of), size, generator(0, "sampler"))


# -- streams ---------------------------------------------------------------------------------------------


def test_streams() -> None:
    names = ("sampler", "views", "queries", "counted_views", "heads", "view_bank")
    keys = list(itertools.product((0, 1, 2, 10), names, (0, 1, 10)))
    draws = [tuple(torch.rand(2, generator=generator(*key)).tolist()) for key in keys]
    assert len(set(draws)) == len(keys)
    assert draws == [tuple(torch.rand(2, generator=generator(*key)).tolist()) for key in keys]
    assert draws[0] == tuple(torch.rand(2, generator=generator(0, "sampler")).tolist())


def test_streams_do_not_depend_on_the_global_one() -> None:
    torch.manual_seed(5)
    first = torch.rand(3, generator=generator(0, "views", 2))
    state = torch.get_rng_state()
    assert torch.equal(first, torch.rand(3, generator=generator(0, "views", 2)))
    assert torch.equal(torch.get_rng_state(), state)


def plain_hash(key: int, *words: int) -> float:
    """The same in Python's integers."""
    mask, state = 2**64 - 1, key
    for word in words:
        state = (state + 0x9E3779B97F4A7C15 * (word + 1)) & mask
        state = ((state ^ state >> 30) * 0xBF58476D1CE4E5B9) & mask
        state = ((state ^ state >> 27) * 0x94D049BB133111EB) & mask
        state ^= state >> 31
    return (state >> 11) / 2**53


def test_counted_numbers_are_those_of_a_plain_loop() -> None:
    key, ids, views = 2**64 - 3, np.array([0, 7, 2**40])[:, None], np.arange(4)
    expected = [[plain_hash(key, i, 1, v) for v in range(4)] for i in (0, 7, 2**40)]
    assert counted(key, ids, np.array([1]), views).tolist() == expected
    # The first output of splitmix64 seeded with 0 (its published test vector), upper 53 bits.
    assert counted(0, np.array([0])).tolist() == [(0xE220A8397B1DCDAF >> 11) / 2**53]


def of_step(*groups: list[int], seed: int = 0, epoch: int = 0, step: int = 0) -> list[Counted]:
    return Counted.of_step([torch.tensor(ids, dtype=torch.int64) for ids in groups], seed, "views", epoch, step)


def test_occurrences_are_counted_over_the_groups_of_a_step() -> None:
    drawn = of_step([4, 2, 4, 4], [], [2, 9, 4])
    assert [one.occurrences.tolist() for one in drawn] == [[0, 0, 1, 2], [], [1, 0, 3]]
    assert of_step() == []


def test_a_view_by_counter_depends_on_its_image_and_occurrence_alone() -> None:
    (one,), (other,) = of_step([4, 2, 4]), of_step([8, 4, 1, 1, 4])
    first, second, of_other = one.crop(3), one.crop(3), other.crop(5)
    assert torch.equal(first[[0, 2]], of_other[[1, 4]])
    rows = torch.cat([first, second]).tolist()
    rows += [row for key in ("seed", "epoch", "step") for row in of_step([4, 2, 4], **{key: 1})[0].crop(3).tolist()]
    assert len({tuple(row) for row in rows}) == 15
    (kept,) = of_step([4, 2, 4])
    assert kept.kept(3).shape == (2, 3)


def test_counted_numbers_are_uniform_and_unrelated() -> None:
    images = 20000
    (drawn,) = of_step([*range(images // 2)] * 2)
    rows = torch.cat([drawn.crop(images), drawn.crop(images)], dim=1).numpy()
    assert rows.min() >= 0
    assert rows.max() < 1
    for column in rows.T:
        assert kstest(column, "uniform").pvalue > 1e-4
    of_one = np.concatenate([rows[: images // 2], rows[images // 2 :]], axis=1)  # all draws of an image
    pairs = np.corrcoef(np.concatenate([of_one[:-1], of_one[1:]], axis=1).T) - np.eye(24)
    assert np.abs(pairs).max() < 5 / (images // 2) ** 0.5  # five standard errors, also against the next image


# -- store -----------------------------------------------------------------------------------------------

SHAPES = [(36, 36), (24, 40), (40, 24), (500, 37), (37, 500), (1, 1), (1, 40), (40, 1), (2, 3), (35, 36), (36, 100)]
SHAPES += [(37, 36), (101, 53)]


def paint(height: int, width: int, mode: str = "RGB", seed: int = 0) -> Image.Image:
    draw = np.random.RandomState(seed + 1000 * height + width)
    image = Image.fromarray(draw.randint(0, 256, (height, width, 3), dtype=np.uint8))
    return image.quantize(16) if mode == "P" else image.convert(mode)


def write(folder: Path, images: list[Image.Image], suffixes: list[str] | None = None) -> list[str]:
    """Save images and return their paths below the folder."""
    folder.mkdir(exist_ok=True)
    names = [f"{i:03d}{suffixes[i] if suffixes else '.png'}" for i in range(len(images))]
    for name, image in zip(names, images, strict=True):
        image.save(folder / name)
    return names


def reference(path: Path, size: int) -> Image.Image:
    """torchvision's Resize on the decoded PIL image."""
    with Image.open(path) as image:
        return transforms.Resize(size, InterpolationMode.BICUBIC, antialias=True)(image.convert("RGB"))


def unpacked(store: Store, i: int) -> np.ndarray:
    height, width, start = (int(t[i]) for t in (store.heights, store.widths, store.offsets))
    return store.pixels[start : start + height * width].view(height, width, 3).numpy()


@pytest.mark.parametrize("size", [36, 8, 73])
def test_store_holds_what_torchvision_resizes(tmp_path: Path, size: int) -> None:
    images = [paint(*shape) for shape in SHAPES]
    modes = ["L", "P", "CMYK", "1", "RGBA", "LA"]
    images += [paint(50, 41, mode) for mode in modes]
    suffixes = [".png"] * len(SHAPES) + [".jpg" if mode == "CMYK" else ".png" for mode in modes]
    names = write(tmp_path / "images", images, suffixes)
    digest = pack("cub", tmp_path / "images", names, size, tmp_path / "store.npz", 1)
    store = open_store(tmp_path / "store.npz")
    assert len(store) == len(names)
    for i, name in enumerate(names):
        expected = np.asarray(reference(tmp_path / "images" / name, size))
        assert min(expected.shape[:2]) == size
        assert np.array_equal(unpacked(store, i), expected), name
    assert len(digest) == 64
    assert int(store.offsets[-1] + store.heights[-1] * store.widths[-1]) == len(store.pixels)


def test_resize_keeps_an_image_that_fits() -> None:
    image = paint(36, 80)
    assert resize_shorter(image, 36) is image


def test_store_does_not_depend_on_the_workers(tmp_path: Path) -> None:
    names = write(tmp_path / "images", [paint(9 + i % 3, 9 + i % 5, seed=i) for i in range(300)])
    folder = tmp_path / "images"
    digests = [pack("cub", folder, names, 8, tmp_path / f"{workers}.npz", workers) for workers in (1, 2)]
    assert digests[0] == digests[1]
    assert pixels_file(tmp_path / "1.npz").read_bytes() == pixels_file(tmp_path / "2.npz").read_bytes()
    swapped = pack("cub", folder, [names[1], names[0], *names[2:]], 8, tmp_path / "s.npz", 1)
    assert swapped != digests[0]


@pytest.mark.parametrize(("count", "workers"), [(3, 1), (300, 2)])
def test_a_broken_image_is_named_and_no_store_is_left(tmp_path: Path, count: int, workers: int) -> None:
    names = write(tmp_path / "images", [paint(30, 30, seed=i) for i in range(count)], [".jpg"] * count)
    broken = tmp_path / "images" / names[-2]
    broken.write_bytes(broken.read_bytes()[:300])
    with pytest.raises(UserError, match=f"{broken} cannot be decoded as an image") as raised:
        pack("cub", tmp_path / "images", names, 8, tmp_path / "store.npz", workers)
    assert "\n" not in str(raised.value)
    assert not list(tmp_path.glob("store.npz")) + list(tmp_path.glob("store.pixels"))
    assert (tmp_path / "store.undecodable.txt").read_text().startswith(f"{names[-2]}\t")
    Image.new("RGB", (30, 30)).save(broken)  # repaired, it goes on
    pack("cub", tmp_path / "images", names, 8, tmp_path / "store.npz", workers)
    left = {path.name for path in tmp_path.iterdir()} - {".store.lock"}
    assert left == {"images", "store.npz", "store.pixels"}


def test_an_absent_image_is_named(tmp_path: Path) -> None:
    names = write(tmp_path / "images", [paint(30, 30)])
    with pytest.raises(UserError, match=r"nowhere\.png is missing"):
        pack("cub", tmp_path / "images", [*names, "nowhere.png"], 8, tmp_path / "store.npz", 1)


@pytest.fixture
def packed(tmp_path: Path) -> Path:
    """A small store of odd shapes, packed at 36 pixels."""
    names = write(tmp_path / "images", [paint(*shape) for shape in SHAPES])
    pack("cub", tmp_path / "images", names, 36, tmp_path / "store.npz", 1)
    return tmp_path / "store.npz"


@pytest.mark.parametrize("kind", ["short", "long", "absent"])
def test_pixels_of_another_size_are_refused(packed: Path, kind: str) -> None:
    pixels = pixels_file(packed)
    content = pixels.read_bytes()
    pixels.unlink()
    if kind != "absent":
        pixels.write_bytes(content[:-1] if kind == "short" else content + b"0")
    with pytest.raises(
        UserError, match=rf"does not have the {len(content)} bytes .* delete it and run the same command again"
    ):
        open_store(packed)


@pytest.mark.parametrize("kind", ["cut", "empty", "foreign", "absent", "other arrays"])
def test_a_damaged_index_is_refused(packed: Path, kind: str) -> None:
    content = packed.read_bytes()
    packed.unlink()
    if kind == "other arrays":
        np.savez(packed, heights=np.ones(1, np.int64))
    elif kind != "absent":
        packed.write_bytes({"cut": content[: len(content) // 2], "empty": b"", "foreign": b"not an index"}[kind])
    with pytest.raises(UserError, match=r"image store .* cannot be read .* delete it and run the same command again"):
        open_store(packed)


def test_the_pixels_file_is_never_written_to(packed: Path) -> None:
    before = pixels_file(packed).read_bytes()
    store = open_store(packed)
    store.pixels[:10] = 7
    assert pixels_file(packed).read_bytes() == before


# -- views -----------------------------------------------------------------------------------------------

NORMALISE = transforms.Compose([transforms.ToTensor(), transforms.Normalize(MEAN, STD)])


def cropper_of(packed: Path, crop: int) -> Cropper:
    return Cropper(open_store(packed), crop, MEAN, STD)


def pil(packed: Path, i: int) -> Image.Image:
    return reference(packed.parent / "images" / f"{i:03d}.png", 36)


@pytest.mark.parametrize(("mean", "std"), [(MEAN, STD), ([0.5] * 3, [0.5] * 3), ([0.1, 0.2, 0.3], [0.7, 1.1, 0.013])])
def test_normalising_is_torchvisions(tmp_path: Path, mean: list[float], std: list[float]) -> None:
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
    """The way of a GPU, on this device."""
    if small:
        names = write(tmp_path / "small", [paint(9, 9, seed=i) for i in range(len(SHAPES))])
        pack("cub", tmp_path / "small", names, 36, packed, 1)
    cropper, ids = cropper_of(packed, 32), torch.arange(len(SHAPES))
    assert cropper.store.side == (9 if small else None)
    rows, columns = torch.arange(32).expand(len(ids), -1), torch.arange(31, -1, -1).expand(len(ids), -1)
    zero = torch.zeros_like(ids)
    sliced = cropper._sliced(ids, zero, zero, torch.ones_like(ids, dtype=torch.bool))
    assert torch.equal(cropper._gathered(ids, rows, columns), sliced)


@pytest.mark.parametrize("crop", [36, 35, 32, 31, 8, 1])
def test_test_view_is_the_pil_pipeline(packed: Path, crop: int) -> None:
    cropper = cropper_of(packed, crop)
    found = cropper.test_view(torch.arange(len(SHAPES)))
    assert found.dtype == torch.float32
    for i in range(len(SHAPES)):
        assert torch.equal(found[i], NORMALISE(transforms.CenterCrop(crop)(pil(packed, i)))), SHAPES[i]


def test_test_view_rounds_as_torchvision(packed: Path) -> None:
    """Half a pixel goes to the even side: sides of every remainder, in the order asked for."""
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


def test_train_view_is_the_pil_pipeline_for_its_draws(packed: Path) -> None:
    crop, cropper = 32, cropper_of(packed, 32)
    ids = torch.randint(0, len(SHAPES), (50,), generator=torch.Generator().manual_seed(0))
    found = cropper.train_view(ids, Stream(generator(3, "views", 1)))
    draws = torch.rand(50, 3, generator=generator(3, "views", 1), dtype=torch.float64).tolist()
    for row, (i, (down, right, flip)) in enumerate(zip(ids.tolist(), draws, strict=True)):
        image = pil(packed, i)
        width, height = image.size
        image = F.crop(image, int(down * (height - crop + 1)), int(right * (width - crop + 1)), crop, crop)
        assert torch.equal(found[row], NORMALISE(F.hflip(image) if flip < 0.5 else image))


def test_train_views_reach_the_whole_image(packed: Path) -> None:
    """Every offset occurs, and both directions: a crop over the whole image, one draw an image."""
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
    # 500 draws of 18 equal chances: each 28 times, give or take five standard deviations.
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


# -- kept features -----------------------------------------------------------------------------------------


def flat() -> Backbone:
    """A trunk that keeps the pixels, so that what is kept can be compared."""
    return Backbone(torch.nn.Flatten(), torch.nn.Identity(), 3 * 20 * 20)


@pytest.mark.parametrize(("precision", "dtype"), [("float32", torch.float32), ("bf16", torch.float16)])
def test_kept_test_views(packed: Path, tmp_path: Path, precision: str, dtype: torch.dtype) -> None:
    cropper = cropper_of(packed, 20)
    extract_test_view(flat(), cropper, precision, tmp_path / "kept.npy")
    kept = load_kept(tmp_path / "kept.npy", (len(SHAPES),))
    assert kept.dtype == dtype
    assert torch.equal(kept, cropper.test_view(torch.arange(len(SHAPES))).flatten(1).to(dtype))


def test_what_kept_features_take_is_told_and_checked(
    packed: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    cropper = cropper_of(packed, 20)
    extract_view_bank(flat(), cropper, 5, 3, 0, "bf16", tmp_path / "bank.npy")
    assert "view bank, 3 views of 5 images: 15 x 1,200 x 2 bytes = 0 MiB" in capsys.readouterr().out
    monkeypatch.setattr("ctxgcd.utils.files.shutil.disk_usage", lambda folder: SimpleNamespace(free=35_999))
    with pytest.raises(UserError, match=r"view bank, 3 views of 5 images needs 0 MB more; free space"):
        extract_view_bank(flat(), cropper, 5, 3, 0, "bf16", tmp_path / "full.npy")
    assert not (tmp_path / "full.npy").exists()


def test_killed_extraction_goes_on_after_its_last_rows(
    packed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The rows that were written are not computed again, and those that follow have the views they would have had."""
    monkeypatch.setattr("ctxgcd.models.features.BATCH", 2)
    monkeypatch.setattr("ctxgcd.models.features.SAVE_EVERY", 0)
    cropper, passed = cropper_of(packed, 20), []

    class Stopping(torch.nn.Flatten):
        stop_at = 4

        def forward(self, images: torch.Tensor) -> torch.Tensor:
            if len(passed) == self.stop_at:
                raise KeyboardInterrupt
            passed.append(len(images))
            return super().forward(images)

    counting = Backbone(Stopping(), torch.nn.Identity(), 3 * 20 * 20)
    extract_view_bank(flat(), cropper, 5, 3, 0, "float32", tmp_path / "whole.npy")
    with pytest.raises(KeyboardInterrupt):
        extract_view_bank(counting, cropper, 5, 3, 0, "float32", tmp_path / "bank.npy")
    assert not (tmp_path / "bank.npy").exists()
    assert passed == [2, 2, 1, 2]
    Stopping.stop_at = 100
    extract_view_bank(counting, cropper, 5, 3, 0, "float32", tmp_path / "bank.npy")
    assert sum(passed) == 15
    assert (tmp_path / "bank.npy").read_bytes() == (tmp_path / "whole.npy").read_bytes()
    assert not list(tmp_path.glob(".bank*"))


def test_values_beyond_float16_are_refused(packed: Path, tmp_path: Path) -> None:
    huge = Backbone(torch.nn.Sequential(torch.nn.Flatten(), Times(1e6)), torch.nn.Identity(), 3)
    with pytest.raises(UserError, match=r"are not finite in torch.float16; set precision to float32"):
        extract_test_view(huge, cropper_of(packed, 20), "bf16", tmp_path / "kept.npy")


class Times(torch.nn.Module):
    def __init__(self, factor: float) -> None:
        super().__init__()
        self.factor = factor

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        return rows * self.factor


def test_view_bank_rows(packed: Path, tmp_path: Path) -> None:
    """View v of image i is row v * images + i, and v has a stream of its own."""
    cropper, images, ids = cropper_of(packed, 20), 5, torch.arange(5)
    for name, seed in (("a", 4), ("b", 4), ("c", 5)):
        extract_view_bank(flat(), cropper, images, 3, seed, "float32", tmp_path / f"{name}.npy")
    kept = load_kept(tmp_path / "a.npy", (3 * images,)).view(3, images, -1)
    for view in range(3):
        assert torch.equal(kept[view], cropper.train_view(ids, Stream(generator(4, "view_bank", view))).flatten(1))
    assert (tmp_path / "a.npy").read_bytes() == (tmp_path / "b.npy").read_bytes()
    assert (tmp_path / "a.npy").read_bytes() != (tmp_path / "c.npy").read_bytes()


@pytest.mark.parametrize("kind", ["cut", "empty", "foreign", "absent", "other shape", "other numbers"])
def test_damaged_kept_features_are_refused(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "kept.npy"
    np.save(path, np.zeros((4, 3), np.float32))
    content = path.read_bytes()
    if kind == "absent":
        path.unlink()
    elif kind == "other numbers":
        np.save(path, np.zeros((5, 3), np.int64))
    elif kind != "other shape":
        path.write_bytes({"cut": content[:-8], "empty": b"", "foreign": b"something else"}[kind])
    with pytest.raises(UserError, match=r"cached features .* delete them and run the same command again"):
        load_kept(path, (5,))


def test_own_photographs_stand_upright_and_official_ones_as_they_are(tmp_path: Path) -> None:
    picture = Image.new("RGB", (30, 20), "white")
    picture.paste("red", (0, 0, 30, 10))
    exif = Image.Exif()
    exif[0x0112] = 6  # the camera was turned
    picture.save(tmp_path / "a.png", exif=exif)
    (own,) = SOURCES["folder"].images(tmp_path, ["a.png"])
    assert (own.size, own.getpixel((19, 15)), own.getpixel((0, 15))) == ((20, 30), (255, 0, 0), (255, 255, 255))
    (official,) = SOURCES["cub"].images(tmp_path, ["a.png"])
    assert official.size == (30, 20)


@pytest.mark.parametrize("suffix", ["png", "tif"])
def test_16_bit_greys_are_no_white_image(tmp_path: Path, suffix: str) -> None:
    greys = np.arange(0, 256, 8, dtype=np.uint8).reshape(4, 8)
    Image.fromarray(greys.astype(np.uint16) * 257).save(tmp_path / f"a.{suffix}")
    assert np.array_equal(np.asarray(open_rgb(tmp_path / f"a.{suffix}", as_seen=True))[..., 0], greys)


def test_an_image_that_may_not_be_read(tmp_path: Path) -> None:
    """Permissions bind root too, once it gives up the capability to ignore them."""
    Image.new("RGB", (9, 9)).save(tmp_path / "a.png")
    (tmp_path / "a.png").chmod(0)
    code = "from pathlib import Path\nfrom ctxgcd.benchmarks.readers.decoding import open_rgb\nopen_rgb(Path('a.png'))"
    bound = [] if os.getuid() else ["setpriv", "--bounding-set", "-dac_override,-dac_read_search"]
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).resolve().parents[2])}
    command = [*bound, sys.executable, "-c", code]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    said = "a.png cannot be read (Permission denied); check its permissions or remove it"
    assert done.stderr.splitlines()[-1] == f"ctxgcd.errors.UserError: {said}"


def test_a_panorama_is_read_and_a_bomb_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Image.new("1", (20_000, 10_000)).save(tmp_path / "wide.png")
    before = Image.MAX_IMAGE_PIXELS
    assert open_rgb(tmp_path / "wide.png", as_seen=True).size == (20_000, 10_000)
    assert before == Image.MAX_IMAGE_PIXELS
    monkeypatch.setattr(decoding, "LARGEST", 1000)
    with pytest.raises(UserError, match=r"wide.png cannot be decoded as an image \(more than 2,000 pixels\)"):
        open_rgb(tmp_path / "wide.png", as_seen=True)
