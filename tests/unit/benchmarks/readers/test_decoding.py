"""Decoding photographs: orientation, depth, permission, size."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from ctxgcd.benchmarks.readers import decoding
from ctxgcd.benchmarks.readers.decoding import open_rgb
from ctxgcd.benchmarks.readers.registry import READERS
from ctxgcd.errors import UserError
from tests.helpers.places import ENVIRONMENT


def test_exif_orientation_is_applied_to_own_images_only(tmp_path: Path) -> None:
    picture = Image.new("RGB", (30, 20), "white")
    picture.paste("red", (0, 0, 30, 10))
    exif = Image.Exif()
    exif[0x0112] = 6  # the camera was turned
    picture.save(tmp_path / "a.png", exif=exif)
    (own,) = READERS["folder"].images(tmp_path, ["a.png"])
    assert (own.size, own.getpixel((19, 15)), own.getpixel((0, 15))) == ((20, 30), (255, 0, 0), (255, 255, 255))
    (official,) = READERS["cub"].images(tmp_path, ["a.png"])
    assert official.size == (30, 20)


@pytest.mark.parametrize("suffix", ["png", "tif"])
def test_16_bit_greys_are_scaled(tmp_path: Path, suffix: str) -> None:
    greys = np.arange(0, 256, 8, dtype=np.uint8).reshape(4, 8)
    Image.fromarray(greys.astype(np.uint16) * 257).save(tmp_path / f"a.{suffix}")
    assert np.array_equal(np.asarray(open_rgb(tmp_path / f"a.{suffix}", as_seen=True))[..., 0], greys)


def test_an_image_without_read_permission(tmp_path: Path) -> None:
    """The process drops the capability of root to ignore permissions."""
    Image.new("RGB", (9, 9)).save(tmp_path / "a.png")
    (tmp_path / "a.png").chmod(0)
    code = "from pathlib import Path\nfrom ctxgcd.benchmarks.readers.decoding import open_rgb\nopen_rgb(Path('a.png'))"
    bound = [] if os.getuid() else ["setpriv", "--bounding-set", "-dac_override,-dac_read_search"]
    command = [*bound, sys.executable, "-c", code]
    done = subprocess.run(command, cwd=tmp_path, env=ENVIRONMENT, capture_output=True, text=True, check=False)
    message = "a.png cannot be read (Permission denied); check its permissions or remove it"
    assert done.stderr.splitlines()[-1] == f"ctxgcd.errors.UserError: {message}"


def test_a_panorama_is_read_and_a_decompression_bomb_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Image.new("1", (20_000, 10_000)).save(tmp_path / "wide.png")
    before = Image.MAX_IMAGE_PIXELS
    assert open_rgb(tmp_path / "wide.png", as_seen=True).size == (20_000, 10_000)
    assert before == Image.MAX_IMAGE_PIXELS
    monkeypatch.setattr(decoding, "LARGEST", 1000)
    with pytest.raises(UserError, match=r"wide.png cannot be decoded as an image \(more than 2,000 pixels\)"):
        open_rgb(tmp_path / "wide.png", as_seen=True)
