"""Image files decoded to RGB: what packing reads of every data set of single files."""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path

import numpy as np
from PIL import Image, ImageOps

from ctxgcd.errors import UserError

LARGEST = 2**28  # pixels, half of what people's own panoramas may have; Pillow's own limit stops at 179 million


class MissingData(UserError):
    """A file or folder of the official layout is not there."""


def official(folder: Path, paths: Sequence[str]) -> Iterator[Image.Image]:
    """Yield the images of an official data set in RGB, one open file at a time."""
    for path in paths:
        yield open_rgb(folder / path)


def as_seen(folder: Path, paths: Sequence[str]) -> Iterator[Image.Image]:
    """Yield images as a person sees them: a camera held upright writes a turned picture and a tag."""
    for path in paths:
        yield open_rgb(folder / path, as_seen=True)


def open_rgb(path: Path, as_seen: bool = False) -> Image.Image:
    """Decode one image file to RGB; raises UserError that names the file.

    as_seen: as a person sees it: turned as its EXIF tag says, 16-bit greys in their shades, and panoramas too. The
    published loaders (torchvision's pil_loader) do none of this, and the pixels of the official data sets are those
    that the published numbers were measured on.
    """
    if not path.is_file():
        raise missing(path)
    try:
        with _panoramas() if as_seen else nullcontext(), Image.open(path) as image:
            return (_eight_bits(ImageOps.exif_transpose(image)) if as_seen else image).convert("RGB")
    except Exception as error:  # a broken file can make a decoder raise nearly anything
        if isinstance(error, OSError) and error.strerror:  # of the file system; a decoder's has none
            raise UserError(
                f"{path} cannot be read ({error.strerror}); check its permissions, or take it out"
            ) from error
        too_large = as_seen and isinstance(error, Image.DecompressionBombError)
        why = f"more than {2 * LARGEST:,} pixels" if too_large else error
        raise UserError(f"{path} cannot be decoded as an image ({why}); replace it, or take it out") from error


@contextmanager
def _panoramas() -> Iterator[None]:
    """Let Pillow read what its own limit takes for an attack."""
    before, Image.MAX_IMAGE_PIXELS = Image.MAX_IMAGE_PIXELS, LARGEST
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", Image.DecompressionBombWarning)
            yield
    finally:
        Image.MAX_IMAGE_PIXELS = before


def _eight_bits(image: Image.Image) -> Image.Image:
    """An image of 16-bit greys as one of 8 bits; Pillow's own conversion would cut all above 255 to white."""
    if not image.mode.startswith("I"):
        return image
    greys = np.asarray(image).astype(np.int64)
    if image.mode != "I" or greys.max() > 255:
        greys //= 257
    return Image.fromarray(greys.clip(0, 255).astype(np.uint8))


def missing(path: Path) -> MissingData:
    """Return the error for an absent path; a variable that was never expanded gets its own sentence."""
    if variable := re.search(r"\$\{?\w*\}?", str(path)):
        return MissingData(
            f"{path} contains {variable[0]}, a variable that is not set; set it or write the real folder in CTXGCD_DATA"
        )
    return MissingData(f"{path} is missing; put it there, or name the place where it lies")
