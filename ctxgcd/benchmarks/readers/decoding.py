"""Decoding of image files to RGB."""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from functools import cache
from importlib.util import find_spec
from pathlib import Path

import numpy as np
from PIL import Image, ImageOps

from ctxgcd.errors import UserError

HEIF = (".heic", ".heif")  # read by pillow-heif, of the extra `heic`
INSTALL_HEIF = "install pillow-heif (pip install pillow-heif)"
LARGEST = 2**28  # pixels; half the limit for own images, because Pillow's limit (179 million) is too low for panoramas


class MissingData(UserError):
    """A file or folder of the official layout is missing."""


def official(folder: Path, paths: Sequence[str]) -> Iterator[Image.Image]:
    """Yield the images of an official dataset in RGB, one open file at a time."""
    for path in paths:
        yield open_rgb(folder / path)


def as_seen(folder: Path, paths: Sequence[str]) -> Iterator[Image.Image]:
    """Yield images as viewers display them, with the orientation of their EXIF tags applied."""
    for path in paths:
        yield open_rgb(folder / path, as_seen=True)


def open_rgb(path: Path, as_seen: bool = False) -> Image.Image:
    """Decode one image file to RGB. Raises UserError if it cannot be decoded.

    as_seen: decode the image as viewers display it: apply the EXIF orientation, scale 16-bit greys and accept
    panoramas. The published loaders (torchvision's pil_loader) do none of this, so official datasets are decoded
    without it.
    """
    if not path.is_file():
        raise missing(path)
    if as_seen and path.name.lower().endswith(HEIF):
        if not reads_heif():
            raise UserError(f"{path} is a HEIC file; {INSTALL_HEIF} to read it, or save it as JPEG")
        _add_heif()
    try:
        with _panoramas() if as_seen else nullcontext(), Image.open(path) as image:
            found = _eight_bits(ImageOps.exif_transpose(image)) if as_seen else image
            found.load()
            return found if found.mode == "RGB" else found.convert("RGB")  # which would copy an RGB image
    except Exception as error:  # a decoder can raise almost any error for a damaged file
        if isinstance(error, OSError) and error.strerror:  # an error of the file system, not of a decoder
            raise UserError(f"{path} cannot be read ({error.strerror}); check its permissions or remove it") from error
        too_large = as_seen and isinstance(error, Image.DecompressionBombError)
        why = f"more than {2 * LARGEST:,} pixels" if too_large else error
        raise UserError(f"{path} cannot be decoded as an image ({why}); replace or remove it") from error


def reads_heif() -> bool:
    """Return whether HEIC files can be read, with the package of the extra `heic`."""
    return find_spec("pillow_heif") is not None


@cache
def _add_heif() -> None:
    """Add HEIC, as viewers display it, to the formats that Pillow reads in this process."""
    import pillow_heif

    pillow_heif.register_heif_opener()


@contextmanager
def _panoramas() -> Iterator[None]:
    """Raise Pillow's limit on the number of pixels."""
    before, Image.MAX_IMAGE_PIXELS = Image.MAX_IMAGE_PIXELS, LARGEST
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", Image.DecompressionBombWarning)
            yield
    finally:
        Image.MAX_IMAGE_PIXELS = before


def _eight_bits(image: Image.Image) -> Image.Image:
    """Convert 16-bit greys to 8 bits; Pillow's conversion would clip all values above 255 to white."""
    if not image.mode.startswith("I"):
        return image
    greys = np.asarray(image).astype(np.int64)
    if image.mode != "I" or greys.max() > 255:
        greys //= 257
    return Image.fromarray(greys.clip(0, 255).astype(np.uint8))


def missing(path: Path) -> MissingData:
    """Return the error for a missing path, with another message if the path contains a variable that is not set."""
    if variable := re.search(r"\$\{?\w*\}?", str(path)):
        return MissingData(
            f"{path} contains the variable {variable[0]}, which is not set; set it, or set CTXGCD_DATA to the folder"
        )
    return MissingData(f"{path} is missing; put it there, or set its location")
