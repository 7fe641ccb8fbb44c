"""The image store: every image resized once and packed, uint8, ragged, memory-mapped."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from zipfile import BadZipFile

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from ctxgcd.benchmarks.registry import SOURCES
from ctxgcd.errors import UserError
from ctxgcd.files import replacing

CHUNK = 256  # images a job of the packing pool


@dataclass(frozen=True)
class Store:
    """Packed images in the order of their ids.

    Attributes:
        pixels: uint8 [P, 3], the RGB pixels of all images one after another, rows first.
        offsets, heights, widths: int64 [N]; image i is pixels[offsets[i] : offsets[i] + heights[i] * widths[i]].
    """

    pixels: Tensor
    offsets: Tensor
    heights: Tensor
    widths: Tensor

    def __len__(self) -> int:
        return len(self.offsets)

    def to(self, device: torch.device) -> Store:
        return Store(*(t.to(device) for t in (self.pixels, self.offsets, self.heights, self.widths)))


def resize_shorter(image: Image.Image, size: int) -> Image.Image:
    """Resize the shorter side to `size` pixels, bicubic and antialiased, as torchvision's Resize does on PIL."""
    width, height = image.size
    scaled = (size, size * height // width) if width <= height else (size * width // height, size)
    return image if image.size == scaled else image.resize(scaled, Image.Resampling.BICUBIC)


def pack(reader: str, folder: Path, paths: Sequence[str], size: int, out: Path, workers: int) -> str:
    """Pack images in the given order; write `out` (an .npz index) and the pixels beside it, atomically.

    Args:
        reader: key of benchmarks.registry.SOURCES.
        paths: image paths as in the split, position = image id.
        size: pixels of the shorter side.
        workers: processes that decode and resize.

    Returns:
        sha256 of the packed pixels and shapes. Raises UserError that names an image which cannot be decoded.
    """
    chunks = [paths[start : start + CHUNK] for start in range(0, len(paths), CHUNK)]
    jobs = [(reader, folder, chunk, size) for chunk in chunks]
    digest, shapes, said = hashlib.sha256(), [], time.monotonic()
    with replacing(pixels_file(out)) as temporary, open(temporary, "wb") as file:
        for chunk_shapes, pixels in _in_order(jobs, workers):
            file.write(pixels)
            digest.update(pixels)
            shapes += chunk_shapes
            if time.monotonic() - said > 2 or len(shapes) == len(paths):
                said = time.monotonic()
                print(f"packed {len(shapes)}/{len(paths)} images", flush=True)
    heights, widths = np.array(shapes, dtype=np.int64).T
    offsets = np.concatenate([[0], np.cumsum(heights * widths)[:-1]])
    digest.update(heights.tobytes() + widths.tobytes())
    with replacing(out) as temporary:
        np.savez(temporary, offsets=offsets, heights=heights, widths=widths, sha256=np.array(digest.hexdigest()))
    return digest.hexdigest()


def open_store(index: Path) -> Store:
    """Open a packed store; the pixels are memory-mapped, not read."""
    try:
        with np.load(index) as shapes:
            heights, widths, offsets = (torch.from_numpy(shapes[key]) for key in ("heights", "widths", "offsets"))
    except (OSError, ValueError, KeyError, EOFError, BadZipFile) as error:
        raise UserError(
            f"image store {index} cannot be read ({error}); delete it and run again to pack it anew"
        ) from None
    total = int((heights * widths).sum()) * 3
    if not pixels_file(index).exists() or pixels_file(index).stat().st_size != total:
        raise UserError(
            f"image store {pixels_file(index)} does not have the {total} bytes that its index names; "
            "delete it and run again"
        )
    # Copy on write: torch refuses read-only arrays, and a private mapping leaves the file alone.
    pixels = np.memmap(pixels_file(index), dtype=np.uint8, mode="c", shape=(total // 3, 3))
    return Store(torch.from_numpy(pixels), offsets, heights, widths)


def pixels_file(index: Path) -> Path:
    return index.with_suffix(".pixels")


def _in_order(
    jobs: list[tuple[str, Path, Sequence[str], int]], workers: int
) -> Iterator[tuple[list[tuple[int, int]], bytes]]:
    if workers == 1 or len(jobs) == 1:
        yield from map(_pack_chunk, jobs)
        return
    with ProcessPoolExecutor(workers) as pool:
        # Bounded look-ahead: at most a few packed chunks wait in memory.
        ahead = 2 * workers
        running = [pool.submit(_pack_chunk, job) for job in jobs[:ahead]]
        for position in range(len(jobs)):
            yield running.pop(0).result()
            if position + ahead < len(jobs):
                running.append(pool.submit(_pack_chunk, jobs[position + ahead]))


def _pack_chunk(job: tuple[str, Path, Sequence[str], int]) -> tuple[list[tuple[int, int]], bytes]:
    reader, folder, paths, size = job
    shapes, pieces = [], []
    for image in SOURCES[reader].images(folder, paths):
        array = np.asarray(resize_shorter(image, size))
        shapes.append(array.shape[:2])
        pieces.append(array.tobytes())
    return shapes, b"".join(pieces)
