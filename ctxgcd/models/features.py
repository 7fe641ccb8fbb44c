"""Cached features: outputs of the frozen part of a backbone for test views and a bank of train views."""

from __future__ import annotations

import json
import time
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import numpy as np
import torch
from numpy.lib.format import open_memmap
from torch import Tensor, nn

from ctxgcd.errors import UserError
from ctxgcd.images.views import Cropper
from ctxgcd.models.backbone import Backbone
from ctxgcd.models.precision import computing, kept
from ctxgcd.utils.files import on_disk, require_space, write_text
from ctxgcd.utils.progress import Progress
from ctxgcd.utils.seeding import Stream, generator

# Size of a forward pass; results depend on it only by rounding. On a CPU, activations of more pixels leave the cache,
# and their memory is returned after every layer: 16 images of 224 pixels in a pass take 1.6 times as long an image.
CUDA_IMAGES, CPU_PIXELS = 64, 4 * 224**2
SAVE_EVERY = 5.0  # maximum seconds of work that an interrupted call loses


@torch.no_grad()
def extract_test_view(backbone: Backbone, cropper: Cropper, precision: str, out: Path) -> None:
    """Write [N, ...], float32 or (precision bf16) float16: the trunk's output for the test view of every image.

    A backbone without tail blocks gives the frozen features that k-means clusters.
    """
    views = (cropper.test_view(ids) for ids in batches(len(cropper.store), cropper))
    _write(out, len(cropper.store), backbone.trunk, views, precision, cropper.device, "test views")


@torch.no_grad()
def finish_test_view(tail: nn.Module, tail_input: Path, cropper: Cropper, precision: str, out: Path) -> None:
    """Write [N, dim], the frozen features of the whole backbone, from the cached input of its tail.

    They equal those made from the images up to rounding, at the cost of the tail alone.
    """
    n = len(cropper.store)
    rows = load_kept(tail_input, (n,))
    given = (rows[ids.cpu()].to(cropper.device).float() for ids in batches(n, cropper))
    _write(out, n, tail, given, precision, cropper.device, "frozen features")


@torch.no_grad()
def extract_view_bank(
    backbone: Backbone, cropper: Cropper, images: int, views: int, seed: int, precision: str, out: Path
) -> None:
    """Write [views * images, ...]: the trunk's output for fixed train views of the first `images` images.

    Training from it replaces fresh crops by `views` fixed ones. This is an approximation, so `views` and `seed` are
    part of the identity of every run that uses it. Each view has its own generator; view v of image i is row
    v * images + i.
    """
    made = (
        cropper.train_view(ids, stream)
        for stream in (Stream(generator(seed, "view_bank", view)) for view in range(views))
        for ids in batches(images, cropper)
    )
    what = f"{views} cached views of {images:,} images"
    _write(out, views * images, backbone.trunk, made, precision, cropper.device, what)


def batches(n: int, cropper: Cropper) -> Iterator[Tensor]:
    """Yield the ids 0 to n-1, int64 on the device, in batches for one forward pass."""
    yield from torch.arange(n, device=cropper.device).split(images_of_pass(cropper))


def images_of_pass(cropper: Cropper) -> int:
    """Return the number of images for one forward pass."""
    return max(1, CPU_PIXELS // cropper.crop**2) if cropper.device.type == "cpu" else CUDA_IMAGES


def outputs(module: nn.Module, views: Iterator[Tensor], precision: str, device: torch.device) -> Iterator[Tensor]:
    """Yield a module's outputs for batches of its input in order, [b, ...], in the dtype of the cache."""
    return (kept(rows, precision) for rows in passes(module, views, precision, device))


def passes(module: nn.Module, views: Iterator[Tensor], precision: str, device: torch.device) -> Iterator[Tensor]:
    """Yield a module's outputs for batches of its input in order, [b, ...], as computed in this precision.

    On a CPU, each of torch's threads computes whole batches, in a pool: a pass of few images hardly gains from a second
    thread, and the main thread returns its memory after every layer. The results are equal to the last bit.
    """

    @torch.no_grad()
    def output(batch: Tensor) -> Tensor:
        with computing(precision, device):
            return module(batch)

    threads = torch.get_num_threads()
    if device.type != "cpu":
        yield from map(output, views)
        return
    torch.set_num_threads(1)
    try:
        with ThreadPoolExecutor(threads) as pool:
            running: deque[Future[Tensor]] = deque()
            for batch in views:
                running.append(pool.submit(output, batch))
                if len(running) > threads:
                    yield running.popleft().result()
            while running:
                yield running.popleft().result()
    finally:
        torch.set_num_threads(threads)


def load_kept(path: Path, shape_start: tuple[int, ...]) -> Tensor:
    """Open cached features without reading them. Raises UserError unless their shape starts with `shape_start`."""
    try:
        array = np.load(path, mmap_mode="c")
    except (OSError, ValueError, EOFError) as error:
        raise UserError(
            f"cached features {path} cannot be read ({error}); delete them and run the same command again"
        ) from None
    if array.dtype not in (np.float32, np.float16) or array.shape[: len(shape_start)] != shape_start:
        raise UserError(
            f"cached features {path} have dtype {array.dtype} and shape {array.shape}, but expected float32 or float16 "
            f"and a shape that starts with {shape_start}; delete them and run the same command again"
        )
    return torch.from_numpy(array)


def _write(
    out: Path,
    n: int,
    module: nn.Module,
    views: Iterator[Tensor],
    precision: str,
    device: torch.device,
    what: str,
) -> None:
    """Write a module's output for batches of its input to an .npy of n rows, atomically, and print the progress.

    A killed call resumes from the rows stored next to `out`, whose name identifies its content. The total size is
    printed before the first row is written.
    """
    part, journal = (out.with_name(f".{out.stem}.part{suffix}") for suffix in (".npy", ".json"))
    with on_disk(out):
        array, done = _resumed(part, journal, n)
        progress, saved = Progress(what, n, done=done), time.monotonic()
        for rows in outputs(module, _after(done, views), precision, device):
            if array is None:
                array = _room(part, (n, *rows.shape[1:]), rows.dtype == torch.float16, what)
            array[done : done + len(rows)] = rows.cpu().numpy()
            done += len(rows)
            if time.monotonic() - saved > SAVE_EVERY or done == n:
                array.flush()
                write_text(journal, json.dumps(done))
                saved = time.monotonic()
            progress.add(len(rows))
        part.replace(out)
        journal.unlink()


def _after(done: int, views: Iterator[Tensor]) -> Iterator[Tensor]:
    """Yield the batches after the first `done` rows; the earlier ones are drawn again to advance the random stream."""
    seen = 0
    for batch in views:
        seen += len(batch)
        if seen > done:
            yield batch


def _resumed(part: Path, journal: Path, n: int) -> tuple[np.memmap | None, int]:
    """Return the rows written by a killed call and their number, or None and 0."""
    try:
        done = json.loads(journal.read_text(encoding="utf-8"))
        array = np.load(part, mmap_mode="r+")
        return (array, done) if len(array) == n else (None, 0)
    except (OSError, ValueError, EOFError):
        return None, 0


def _room(part: Path, shape: tuple[int, ...], half: bool, what: str) -> np.memmap:
    """Create a file for an array of this shape; print its size and check the free disk space."""
    size = 2 if half else 4
    total = int(np.prod(shape)) * size
    terms = " x ".join(f"{value:,}" for value in shape)
    print(f"{what}: {terms} x {size} bytes = {total / 2**20:,.0f} MiB", flush=True)
    part.parent.mkdir(parents=True, exist_ok=True)
    require_space(part.parent, total, what)
    return open_memmap(part, mode="w+", dtype=np.float16 if half else np.float32, shape=shape)
