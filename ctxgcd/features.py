"""Kept features: what the unchanging part of a backbone gives for test views and for a bank of train views."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
from numpy.lib.format import open_memmap
from torch import Tensor

from ctxgcd.errors import UserError
from ctxgcd.files import on_disk, replacing, require_space
from ctxgcd.images.streams import generator
from ctxgcd.images.views import Cropper
from ctxgcd.models.backbone import Backbone
from ctxgcd.models.precision import computing, kept
from ctxgcd.progress import Progress

BATCH = 64  # images a forward pass; no result depends on it beyond rounding


@torch.no_grad()
def extract_test_view(backbone: Backbone, cropper: Cropper, precision: str, out: Path) -> None:
    """Write [N, ...], float32 or (precision bf16) float16: the trunk's output for every image's test view.

    It never changes. A backbone that is all trunk (no tail blocks) gives the frozen features that k-means clusters.
    """
    views = (cropper.test_view(ids) for ids in _batches(len(cropper.store), cropper))
    _write(out, len(cropper.store), _through(backbone, views, precision), "test views")


@torch.no_grad()
def extract_view_bank(
    backbone: Backbone, cropper: Cropper, images: int, views: int, seed: int, precision: str, out: Path
) -> None:
    """Write [views * images, ...]: the trunk's output for fixed train views of the first `images` images.

    Training from it replaces fresh crops by `views` fixed ones: an approximation, so `views` and `seed` are
    part of the identity of every run that uses it. One generator a view; view v of image i is row v * images + i.
    """
    made = (
        cropper.train_view(ids, stream)
        for stream in (generator(seed, "view_bank", view) for view in range(views))
        for ids in _batches(images, cropper)
    )
    _write(out, views * images, _through(backbone, made, precision), f"view bank, {views} views of {images} images")


def load_kept(path: Path, shape_start: tuple[int, ...]) -> Tensor:
    """Open kept features without reading them; raise UserError unless their shape starts as it should."""
    try:
        array = np.load(path, mmap_mode="c")
    except (OSError, ValueError, EOFError) as error:
        raise UserError(f"kept features {path} cannot be read ({error}); delete them and run again") from None
    if array.dtype not in (np.float32, np.float16) or array.shape[: len(shape_start)] != shape_start:
        raise UserError(
            f"kept features {path} are {array.dtype} of shape {array.shape}, expected float32 or float16 and "
            f"{shape_start} first; delete them and run again"
        )
    return torch.from_numpy(array)


def _batches(n: int, cropper: Cropper) -> Iterator[Tensor]:
    return iter(torch.arange(n, device=cropper.device).split(BATCH))


def _through(backbone: Backbone, views: Iterator[Tensor], precision: str) -> Iterator[Tensor]:
    """The trunk's output for batches of views, as it is kept."""
    for batch in views:
        with computing(precision, batch.device):
            rows = backbone.trunk(batch)
        yield kept(rows, precision)


def _write(out: Path, n: int, batches: Iterator[Tensor], what: str) -> None:
    """Fill an .npy of n rows batch by batch, atomically, with progress; what it takes is told before it starts."""
    done, progress = 0, Progress(what, n)
    with on_disk(out), replacing(out) as temporary:
        for rows in batches:
            if done == 0:
                shape, size = (n, *rows.shape[1:]), rows.element_size()
                total = int(np.prod(shape)) * size
                terms = " x ".join(f"{value:,}" for value in shape)
                print(f"{what}: {terms} x {size} bytes = {total / 2**20:,.0f} MiB", flush=True)
                require_space(out.parent, total, what)
                dtype = np.float16 if rows.dtype == torch.float16 else np.float32
                array = open_memmap(temporary, mode="w+", dtype=dtype, shape=shape)
            array[done : done + len(rows)] = rows.cpu().numpy()
            done += len(rows)
            progress.add(len(rows))
        array.flush()
