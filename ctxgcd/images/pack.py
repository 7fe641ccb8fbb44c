"""Packing: resizes every image once, in the order of the ids. An interrupted call resumes after its last chunk."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, field
from itertools import groupby
from multiprocessing import connection, parent_process
from pathlib import Path
from threading import Thread
from typing import Any

import numpy as np
from filelock import FileLock

from ctxgcd.benchmarks.readers.registry import images_of
from ctxgcd.errors import UserError
from ctxgcd.images.packed import open_packed, pixels_file
from ctxgcd.images.resize import resize_shorter
from ctxgcd.utils.files import on_disk, replacing, write_text
from ctxgcd.utils.progress import Progress

LARGEST = 2**28  # maximum pixels of a resized image, exceeded by an image of 1 x 60,000 pixels
CHUNK = 256  # images per job of the packing pool; packing resumes after a complete chunk


@dataclass(frozen=True)
class _Job:
    """Images that one process packs; `side` is the common size of all images if they are stored without resizing."""

    reader: str
    folder: Path
    paths: Sequence[str]
    size: int
    side: int | None


@dataclass
class _Chunk:
    """The result of a job: shapes and bytes of its images, and images that could not be read."""

    shapes: list[tuple[int, int]] = field(default_factory=list)
    pixels: list[bytes] = field(default_factory=list)
    faults: list[tuple[str, str]] = field(default_factory=list)
    other_size: bool = False

    @property
    def sha256(self) -> str:
        digest = hashlib.sha256(json.dumps(self.shapes).encode())
        for image in self.pixels:
            digest.update(image)
        return digest.hexdigest()


def pack(
    reader: str, folder: Path, paths: Sequence[str], size: int, out: Path, workers: int, leave_out: bool = False
) -> str:
    """Pack images in the given order; write `out` (an .npz index) and the pixels next to it, atomically.

    A killed call resumes after its last finished chunk, with the same result. A concurrent call for the same file waits
    for the first one.

    Args:
        reader: key of benchmarks.readers.registry.READERS.
        paths: image paths as in the split, position = image id.
        size: pixels of the shorter side.
        workers: processes that decode and resize.
        leave_out: skip images that cannot be decoded; `left_out` returns them, and the ids of others have no gaps.

    Returns:
        SHA-256 of the packed pixels and shapes. Raises UserError for images that cannot be decoded (all are listed in
        `out` with the suffix .undecodable.txt) and for errors of the file system.
    """
    if not paths:
        raise UserError(f"{folder}: the split has no images; check the data and make the split again")
    what = [reader, str(folder.resolve()), size, CHUNK, *["leave out"] * leave_out, *paths]
    key = hashlib.sha256(json.dumps(what).encode()).hexdigest()
    with on_disk(out):
        out.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(out.with_name(f".{out.stem}.lock")):
            if (finished := _finished(out, key)) is not None:
                return finished  # packed by another call while this one waited
            part = _Part(out, key, leave_out)
            # A part with several sizes shows that the size of the first image is not the common one.
            side = None if part.of(None) else _common_side(reader, folder, paths, size)
            try:
                return _pack(reader, folder, paths, size, side, part, workers)
            except _NotUniform:  # rare, so restarting is cheap on average
                return _pack(reader, folder, paths, size, None, part, workers)


class _NotUniform(Exception):
    """The images are not all squares of the same size."""


def _common_side(reader: str, folder: Path, paths: Sequence[str], size: int) -> int | None:
    """Return the side of the first image if it is a square smaller than `size`, as a guess for all images."""
    try:
        width, height = next(iter(images_of(reader)(folder, paths[:1]))).size
    except UserError:  # reported later, with all other errors
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
        if not faults:  # after the first error, the remaining images are only checked
            chunks.append(part.add(chunk))
        progress.add(len(job.paths))
    report = part.out.with_suffix(".undecodable.txt")
    report.unlink(missing_ok=True)
    if faults:
        write_text(report, "".join(f"{path}\t{reason}\n" for path, reason in faults))
        reasons = list(dict.fromkeys(reason for _, reason in faults))  # images of one file have the same reason
        several = f"{len(faults):,} of {len(paths):,} images cannot be used (all listed in {report}), first: "
        raise UserError(reasons[0] if len(reasons) == 1 else several + "; ".join(reasons[:3]))
    if not any(chunk["shapes"] for chunk in chunks):
        first = chunks[0]["left_out"][0][1]
        raise UserError(f"none of the {len(paths):,} images can be decoded, first: {first}")
    return part.finish(chunks, None if side is None else (side, size))


class _Part:
    """A partially packed store: pixels, and a journal with a line for every finished chunk.

    The first line of the journal contains the hash of the images (`key`) and their common side, or None.
    """

    def __init__(self, out: Path, key: str, leaves_out: bool) -> None:
        self.out, self.key, self.leaves_out = out, key, leaves_out
        self.pixels = out.with_name(f".{out.stem}.part")
        self.journal = out.with_name(f".{out.stem}.journal")

    def of(self, side: int | None) -> bool:
        """Return whether an earlier call started to pack the same images at this side."""
        try:
            with open(self.journal, encoding="utf-8") as text:
                return text.readline() == f"{self.key} {side}\n"
        except (OSError, ValueError):
            return False

    def resume(self, side: int | None) -> list[dict[str, Any]]:
        """Return the finished chunks of an earlier call for the same images; restart if they are damaged."""
        resumable = self.of(side)
        try:
            head, *lines = self.journal.read_text(encoding="utf-8").split("\n")
            chunks = [json.loads(line) for line in lines[:-1]]  # the last line may be incomplete
            sizes = [3 * sum(height * width for height, width in chunk["shapes"]) for chunk in chunks]
            if resumable and chunks and self._holds(chunks[-1], sum(sizes[:-1]), sizes[-1]):
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
            return _Chunk(shapes, [file.read(size)]).sha256 == chunk["sha256"]

    def add(self, chunk: _Chunk) -> dict[str, Any]:
        """Append a chunk: first its pixels, then its line in the journal."""
        line: dict[str, Any] = {"shapes": chunk.shapes, "sha256": chunk.sha256}
        if chunk.faults:
            line["left_out"] = chunk.faults
        with open(self.pixels, "ab") as file:
            file.writelines(chunk.pixels)
        with open(self.journal, "a", encoding="utf-8") as text:
            text.write(json.dumps(line) + "\n")
        return line

    def finish(self, chunks: Sequence[dict[str, Any]], small: tuple[int, int] | None) -> str:
        """Move pixels and index into place; `small`: stored and requested side."""
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


def _finished(index: Path, key: str) -> str | None:
    """Return the hash of a finished store of exactly these images, or None."""
    try:
        open_packed(index)
        with np.load(index) as arrays:
            return str(arrays["sha256"]) if str(arrays["key"]) == key else None
    except (UserError, KeyError):
        return None


def _in_order(jobs: list[_Job], workers: int) -> Iterator[_Chunk]:
    if workers == 1 or len(jobs) <= 1:
        yield from map(_pack_chunk, jobs)
        return
    with ProcessPoolExecutor(workers, initializer=_end_with_parent) as pool:
        # The look-ahead is limited, so that only a few packed chunks wait in memory.
        ahead = 2 * workers
        running = [pool.submit(_pack_chunk, job) for job in jobs[:ahead]]
        for position in range(len(jobs)):
            try:
                yield running.pop(0).result()
            except BrokenProcessPool:
                raise UserError(
                    f"a worker process that packs images of {jobs[0].folder} was killed, probably because it ran out "
                    "of memory; run again with more memory or fewer processes to resume"
                ) from None
            if position + ahead < len(jobs):
                running.append(pool.submit(_pack_chunk, jobs[position + ahead]))


def _end_with_parent() -> None:
    """End a process of the pool when the main process is killed."""
    parent = parent_process()
    assert parent
    sentinel = parent.sentinel

    def watch() -> None:
        connection.wait([sentinel])
        os._exit(1)

    Thread(target=watch, daemon=True).start()


def _pack_chunk(job: _Job) -> _Chunk:
    images, chunk = images_of(job.reader), _Chunk()
    # Read file by file, so that a damaged file does not affect the others.
    for _, group in groupby(job.paths, lambda path: _file_of(job.folder, path)):
        paths = list(group)
        try:
            for image in images(job.folder, paths):
                if job.side and image.size != (job.side, job.side):
                    return _Chunk(other_size=True)
                if job.size**2 * max(image.size) > LARGEST * min(image.size):
                    width, height = image.size
                    raise UserError(f"{paths[0]} has {width} x {height} pixels and is too narrow to resize; remove it")
                stored = image if job.side else resize_shorter(image, job.size)
                chunk.shapes.append((stored.height, stored.width))
                chunk.pixels.append(stored.tobytes())
        except UserError as error:
            chunk.faults += [(path, str(error)) for path in paths]
    return chunk


def _file_of(folder: Path, path: str) -> str:
    """Return the file that contains an image: `path`, or FILE for FILE#ROW."""
    file, sign, _ = path.partition("#")
    return file if sign and (folder / file).is_file() else path
