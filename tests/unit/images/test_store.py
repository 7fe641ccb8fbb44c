"""The image store against torchvision's Resize."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from ctxgcd.errors import UserError
from ctxgcd.images.pack import pack
from ctxgcd.images.packed import pixels_file
from ctxgcd.images.resize import resize_shorter
from ctxgcd.images.store import open_store
from tests.helpers.images import SHAPES, paint, reference, unpacked, write


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
    Image.new("RGB", (30, 30)).save(broken)  # after the repair, packing is resumed
    pack("cub", tmp_path / "images", names, 8, tmp_path / "store.npz", workers)
    left = {path.name for path in tmp_path.iterdir()} - {".store.lock"}
    assert left == {"images", "store.npz", "store.pixels"}


def test_a_missing_image_is_named(tmp_path: Path) -> None:
    names = write(tmp_path / "images", [paint(30, 30)])
    with pytest.raises(UserError, match=r"nowhere\.png is missing"):
        pack("cub", tmp_path / "images", [*names, "nowhere.png"], 8, tmp_path / "store.npz", 1)


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
