"""The image store: every image resized once and packed, uint8, ragged, memory-mapped."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, field, replace
from itertools import groupby
from multiprocessing import connection, parent_process
from pathlib import Path
from threading import Thread
from typing import Any
from zipfile import BadZipFile

import numpy as np
import torch
from filelock import FileLock
from PIL import Image
from torch import Tensor

from ctxgcd.benchmarks.registry import SOURCES
from ctxgcd.errors import UserError
from ctxgcd.files import on_disk, replacing, write_text
from ctxgcd.progress import Progress

LARGEST = 2**28  # pixels of a resized image: a line of 1 x 60,000 would become far more
CHUNK = 256  # images a job of the packing pool; resuming starts at a whole chunk


@dataclass(frozen=True)
class Store:
    """Packed images in the order of their ids.

    Attributes:
        pixels: uint8 [P, 3], the RGB pixels of all images one after another, rows first.
        offsets: int64 [N], the first pixel of every image.
        heights, widths: int64 [N], the sides that views are cut from.
        side: where all images are squares smaller than the views want them, they are kept as they are, side x side,
            and enlarged to heights x widths by whoever reads them; else None: image i is
            pixels[offsets[i] : offsets[i] + heights[i] * widths[i]].
    """

    pixels: Tensor
    offsets: Tensor
    heights: Tensor
    widths: Tensor
    side: int | None = None

    def __len__(self) -> int:
        return len(self.offsets)

    def to(self, device: torch.device) -> Store:
        moved = {name: getattr(self, name).to(device) for name in ("pixels", "offsets", "heights", "widths")}
        return replace(self, **moved)

    def image(self, i: int) -> Tensor:
        """Return image i as it is kept, uint8 [height, width, 3]."""
        height, width = (self.side, self.side) if self.side else (int(self.heights[i]), int(self.widths[i]))
        start = int(self.offsets[i])
        return self.pixels[start : start + height * width].view(height, width, 3)

    def seen(self, i: int) -> Tensor:
        """Return image i as views are cut from it, uint8 [heights[i], widths[i], 3]."""
        kept = self.image(i)
        if not self.side:
            return kept
        return torch.from_numpy(np.array(resize_shorter(Image.fromarray(kept.numpy()), int(self.heights[i]))))


@dataclass(frozen=True)
class _Job:
    """Images that one process packs: `side` is the size that all must have to be kept small."""

    reader: str
    folder: Path
    paths: Sequence[str]
    size: int
    side: int | None


@dataclass
class _Chunk:
    """What became of a job's images: their shapes and bytes, and those that could not be read."""

    shapes: list[tuple[int, int]] = field(default_factory=list)
    pixels: bytes = b""
    faults: list[tuple[str, str]] = field(default_factory=list)
    other_size: bool = False

    @property
    def sha256(self) -> str:
        return hashlib.sha256(json.dumps(self.shapes).encode() + self.pixels).hexdigest()


def resize_shorter(image: Image.Image, size: int) -> Image.Image:
    """Resize the shorter side to `size` pixels, bicubic and antialiased, as torchvision's Resize does on PIL."""
    width, height = image.size
    scaled = (size, size * height // width) if width <= height else (size * width // height, size)
    return image if image.size == scaled else image.resize(scaled, Image.Resampling.BICUBIC)


def pack(
    reader: str, folder: Path, paths: Sequence[str], size: int, out: Path, workers: int, leave_out: bool = False
) -> str:
    """Pack images in the given order; write `out` (an .npz index) and the pixels beside it, atomically.

    A call that was killed is gone on with after its last finished chunk; the result is the same. A second call at
    the same time waits for the first one's end.

    Args:
        reader: key of benchmarks.registry.SOURCES.
        paths: image paths as in the split, position = image id.
        size: pixels of the shorter side.
        workers: processes that decode and resize.
        leave_out: go on without the images that cannot be decoded; `left_out` names them, the others move up.

    Returns:
        sha256 over the packed pixels and shapes. Raises UserError that names the images which cannot be decoded (all
        of them in `out` with the suffix .undecodable.txt), or what the disk refuses.
    """
    if not paths:
        raise UserError(f"{folder}: the split lists no image to pack; check the data and make the split again")
    what = [reader, str(folder.resolve()), size, CHUNK, *["leave out"] * leave_out, *paths]
    key = hashlib.sha256(json.dumps(what).encode()).hexdigest()
    with on_disk(out):
        out.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(out.with_name(f".{out.stem}.lock")):
            if (finished := _finished(out, key)) is not None:
                return finished  # by the call that this one waited for
            part = _Part(out, key, leave_out)
            # A part of images of several sizes says that the first one misleads.
            side = None if part.of(None) else _common_side(reader, folder, paths, size)
            try:
                return _pack(reader, folder, paths, size, side, part, workers)
            except _NotUniform:  # rare, so starting again costs nothing on the whole
                return _pack(reader, folder, paths, size, None, part, workers)


class _NotUniform(Exception):
    """Not all images are squares of one size."""


def _common_side(reader: str, folder: Path, paths: Sequence[str], size: int) -> int | None:
    """Return the sides of the first image where it is a square smaller than `size`: perhaps all are."""
    try:
        width, height = next(iter(SOURCES[reader].images(folder, paths[:1]))).size
    except UserError:  # told with all the others
        return None
    return width if width == height < size else None


def _pack(
    reader: str, folder: Path, paths: Sequence[str], size: int, side: int | None, part: _Part, workers: int
) -> str:
    chunks = part.resume(side)
    jobs = [
        _Job(reader, folder, paths[start : start + CHUNK], size, side)
        for start in range(len(chunks) * CHUNK, len(paths), CHUNK)
    ]
    progress = Progress("packed", len(paths), done=len(chunks) * CHUNK)
    faults: list[tuple[str, str]] = []
    for job, chunk in zip(jobs, _in_order(jobs, workers), strict=True):
        if chunk.other_size:
            raise _NotUniform
        faults += [] if part.leaves_out else chunk.faults
        if not faults:  # with the first fault all that is left is to find the others
            chunks.append(part.add(chunk))
        progress.add(len(job.paths))
    report = part.out.with_suffix(".undecodable.txt")
    report.unlink(missing_ok=True)
    if faults:
        write_text(report, "".join(f"{path}\t{reason}\n" for path, reason in faults))
        reasons = list(dict.fromkeys(reason for _, reason in faults))  # images of one file share one
        several = f"{len(faults):,} of {len(paths):,} images cannot be used (all listed in {report}), first: "
        raise UserError(reasons[0] if len(reasons) == 1 else several + "; ".join(reasons[:3]))
    if not any(chunk["shapes"] for chunk in chunks):
        first = chunks[0]["left_out"][0][1]
        raise UserError(f"none of the {len(paths):,} images can be decoded, first: {first}")
    return part.finish(chunks, None if side is None else (side, size))


class _Part:
    """The store as far as it is packed: pixels, and a journal with a line for every finished chunk.

    The journal's first line says what is packed: the images (`key`), and the side that they are kept at, or None.
    """

    def __init__(self, out: Path, key: str, leaves_out: bool) -> None:
        self.out, self.key, self.leaves_out = out, key, leaves_out
        self.pixels = out.with_name(f".{out.stem}.part")
        self.journal = out.with_name(f".{out.stem}.journal")

    def of(self, side: int | None) -> bool:
        """Return whether a former call began to pack the same images at this side."""
        try:
            with open(self.journal, encoding="utf-8") as text:
                return text.readline() == f"{self.key} {side}\n"
        except (OSError, ValueError):
            return False

    def resume(self, side: int | None) -> list[dict[str, Any]]:
        """Return the finished chunks of a former call for the same images; starts anew where anything is amiss."""
        begun = self.of(side)
        try:
            head, *lines = self.journal.read_text(encoding="utf-8").split("\n")
            chunks = [json.loads(line) for line in lines[:-1]]  # the last line may be torn
            sizes = [3 * sum(height * width for height, width in chunk["shapes"]) for chunk in chunks]
            if begun and chunks and self._holds(chunks[-1], sum(sizes[:-1]), sizes[-1]):
                with open(self.pixels, "r+b") as file:
                    file.truncate(sum(sizes))
                write_text(self.journal, "".join(f"{line}\n" for line in (head, *lines[:-1])))
                return chunks
        except (OSError, ValueError, KeyError, TypeError):
            pass
        self.pixels.write_bytes(b"")
        write_text(self.journal, f"{self.key} {side}\n")
        return []

    def _holds(self, chunk: dict[str, Any], start: int, size: int) -> bool:
        with open(self.pixels, "rb") as file:
            file.seek(start)
            shapes = [(height, width) for height, width in chunk["shapes"]]
            return _Chunk(shapes, file.read(size)).sha256 == chunk["sha256"]

    def add(self, chunk: _Chunk) -> dict[str, Any]:
        """Append a chunk, its pixels first: a line of the journal vouches for them."""
        line: dict[str, Any] = {"shapes": chunk.shapes, "sha256": chunk.sha256}
        if chunk.faults:
            line["left_out"] = chunk.faults
        with open(self.pixels, "ab") as file:
            file.write(chunk.pixels)
        with open(self.journal, "a", encoding="utf-8") as text:
            text.write(json.dumps(line) + "\n")
        return line

    def finish(self, chunks: Sequence[dict[str, Any]], small: tuple[int, int] | None) -> str:
        """Move pixels and index into place, one right after the other; `small`: sides kept and wanted."""
        shapes = [shape for chunk in chunks for shape in chunk["shapes"]]
        heights, widths = np.array(shapes, np.int64).reshape(-1, 2).T
        left_out = json.dumps([fault for chunk in chunks for fault in chunk.get("left_out", ())])
        offsets = np.cumsum(heights * widths) - heights * widths
        if small:
            heights, widths = (np.full(len(offsets), small[1]) for _ in range(2))
        digest = hashlib.sha256("".join(chunk["sha256"] for chunk in chunks).encode()).hexdigest()
        with replacing(self.out) as temporary:
            arrays = {"offsets": offsets, "heights": heights, "widths": widths, "side": small[0] if small else 0}
            texts = [np.array(text) for text in (digest, self.key, left_out)]
            np.savez(temporary, **arrays, sha256=texts[0], key=texts[1], left_out=texts[2])
            self.pixels.replace(pixels_file(self.out))
        self.journal.unlink()
        return digest


def open_store(index: Path) -> Store:
    """Open a packed store; the pixels are memory-mapped, not read."""
    try:
        with np.load(index) as arrays:
            heights, widths, offsets = (torch.from_numpy(arrays[key]) for key in ("heights", "widths", "offsets"))
            side = int(arrays["side"]) or None
    except (OSError, ValueError, KeyError, EOFError, BadZipFile) as error:
        raise UserError(
            f"image store {index} cannot be read ({error}); delete it and run again to pack it anew"
        ) from None
    total = 3 * (len(offsets) * side**2 if side else int((heights * widths).sum()))
    if not pixels_file(index).exists() or pixels_file(index).stat().st_size != total:
        raise UserError(
            f"image store {pixels_file(index)} does not have the {total} bytes that its index names; "
            "delete it and run again"
        )
    # Copy on write: torch refuses read-only arrays, and a private mapping leaves the file alone.
    pixels = np.memmap(pixels_file(index), dtype=np.uint8, mode="c", shape=(total // 3, 3))
    return Store(torch.from_numpy(pixels), offsets, heights, widths, side)


def left_out(index: Path) -> dict[str, str]:
    """Return the images that a store was packed without, each with the reason."""
    with np.load(index) as arrays:
        return dict(json.loads(str(arrays["left_out"])))


def pixels_file(index: Path) -> Path:
    return index.with_suffix(".pixels")


def _finished(index: Path, key: str) -> str | None:
    """Return the hash of a finished store of just these images, or None."""
    try:
        open_store(index)
        with np.load(index) as arrays:
            return str(arrays["sha256"]) if str(arrays["key"]) == key else None
    except (UserError, KeyError):
        return None


def _in_order(jobs: list[_Job], workers: int) -> Iterator[_Chunk]:
    if workers == 1 or len(jobs) <= 1:
        yield from map(_pack_chunk, jobs)
        return
    with ProcessPoolExecutor(workers, initializer=_end_with_parent) as pool:
        # Bounded look-ahead: at most a few packed chunks wait in memory.
        ahead = 2 * workers
        running = [pool.submit(_pack_chunk, job) for job in jobs[:ahead]]
        for position in range(len(jobs)):
            try:
                yield running.pop(0).result()
            except BrokenProcessPool:
                raise UserError(
                    f"a process that packs images of {jobs[0].folder} was ended from outside, most often for want of "
                    "memory; run again with more memory or fewer processes, what is packed is kept"
                ) from None
            if position + ahead < len(jobs):
                running.append(pool.submit(_pack_chunk, jobs[position + ahead]))


def _end_with_parent() -> None:
    """Let a process of the pool end when the packing one is killed, which tells it nothing."""
    parent = parent_process()
    assert parent
    sentinel = parent.sentinel

    def watch() -> None:
        connection.wait([sentinel])
        os._exit(1)

    Thread(target=watch, daemon=True).start()


def _pack_chunk(job: _Job) -> _Chunk:
    source, chunk, pieces = SOURCES[job.reader], _Chunk(), []
    # One file after the other, so that a broken one leaves the others to be tried.
    for _, group in groupby(job.paths, lambda path: path.partition("#")[0] if source.packed else path):
        paths = list(group)
        try:
            for image in source.images(job.folder, paths):
                if job.side and image.size != (job.side, job.side):
                    return _Chunk(other_size=True)
                if job.size**2 * max(image.size) > LARGEST * min(image.size):
                    width, height = image.size
                    raise UserError(f"{paths[0]} has {width} x {height} pixels, too thin to be resized; take it out")
                array = np.asarray(image if job.side else resize_shorter(image, job.size))
                chunk.shapes.append((array.shape[0], array.shape[1]))
                pieces.append(array.tobytes())
        except UserError as error:
            chunk.faults += [(path, str(error)) for path in paths]
    chunk.pixels = b"".join(pieces)
    return chunk
