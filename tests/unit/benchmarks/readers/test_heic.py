"""HEIC files, read with the package of the extra `heic`."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from ctxgcd.benchmarks.readers.decoding import as_seen, open_rgb, reads_heif
from ctxgcd.benchmarks.readers.own_images import images_below, not_read
from ctxgcd.benchmarks.readers.registry import reader_of
from ctxgcd.images.pack import pack
from ctxgcd.images.packed import open_packed
from tests.helpers.layouts import Painter
from tests.helpers.refusals import error_of

INSTALL = "install pillow-heif (pip install pillow-heif)"
with_heif = pytest.mark.skipif(not reads_heif(), reason="the extra `heic` (pillow-heif) is not installed")
without_heif = pytest.mark.skipif(reads_heif(), reason="pillow-heif is installed")


@without_heif
def test_without_the_package_a_sentence_says_what_to_install(tmp_path: Path) -> None:
    folder = tmp_path / "photos"
    for name in ("ant/a.jpg", "bee/b.jpg"):
        Painter(0).save(folder / name, 0, 20, 24)
    for name in ("ant/c.HEIC", "ant/d.gif", "bee/e.heif"):
        (folder / name).write_bytes(b"")
    assert images_below(folder) == ["ant/a.jpg", "bee/b.jpg"]
    of_heic = f"unsupported files: 1 .heic, 1 .heif; {INSTALL} to include them, or save them as JPEG"
    assert not_read(folder) == f"unsupported files: 1 .gif; save them as JPEG to include them; {of_heic}"
    reader = reader_of({"reader": "folder", "listing": "", "labelled": "labelled.txt"})
    assert of_heic in reader.remarks(folder, reader.manifest(folder))[-1]
    file = folder / "ant/c.HEIC"  # as a listing names it
    assert error_of(lambda: next(as_seen(folder, ["ant/c.HEIC"]))) == (
        f"{file} is a HEIC file; {INSTALL} to read it, or save it as JPEG"
    )
    (folder / "ant/a.jpg").unlink()
    (folder / "bee/b.jpg").unlink()
    assert INSTALL in error_of(lambda: images_below(folder))


@with_heif
def test_with_the_package_it_is_read_as_viewers_display_it(tmp_path: Path) -> None:
    """Rotated by the orientation that the camera stored."""
    import pillow_heif

    folder, pixels = tmp_path / "photos", np.zeros((60, 90, 3), np.uint8)
    pixels[:, :45] = (200, 40, 40)
    folder.mkdir()
    image = Image.fromarray(pixels)
    pillow_heif.from_pillow(image).save(folder / "plain.HEIC", quality=95)
    turned = Image.Exif()
    turned[0x0112] = 6  # to be turned by 90 degrees to the right
    pillow_heif.from_pillow(image).save(folder / "turned.heic", quality=95, exif=turned.tobytes())
    Painter(0).save(folder / "0.jpg", 0, 60, 60)
    assert images_below(folder) == ["0.jpg", "plain.HEIC", "turned.heic"]
    assert not_read(folder) == ""
    plain, other = (np.asarray(open_rgb(folder / name, as_seen=True)) for name in ("plain.HEIC", "turned.heic"))
    assert plain.shape == (60, 90, 3)
    assert np.abs(plain[30, [20, 70]].astype(int) - [[200, 40, 40], [0, 0, 0]]).max() < 12
    assert other.shape == (90, 60, 3)
    assert other[20, 30, 0] > 180 > 20 > other[70, 30, 0]
    pack("folder", folder, images_below(folder), 30, tmp_path / "images.npz", 2)
    packed = open_packed(tmp_path / "images.npz")
    assert [packed[number].shape for number in (1, 2)] == [(30, 45, 3), (45, 30, 3)]
    (folder / "broken.heic").write_bytes((folder / "plain.HEIC").read_bytes()[:300])
    assert "cannot be decoded as an image" in error_of(lambda: open_rgb(folder / "broken.heic", as_seen=True))
