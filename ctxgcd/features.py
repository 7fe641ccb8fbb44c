"""Kept features: what the unchanging part of a backbone gives for test views and for a bank of train views."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
from numpy.lib.format import open_memmap
from torch import Tensor

from ctxgcd.errors import UserError
from ctxgcd.files import replacing
from ctxgcd.images.streams import generator
from ctxgcd.images.views import Cropper
from ctxgcd.models.backbone import Backbone
from ctxgcd.progress import Progress

BATCH = 64  # images a forward pass; no result depends on it beyond rounding


@torch.no_grad()
def extract_test_view(backbone: Backbone, cropper: Cropper, out: Path) -> None:
    """Write float32 [N, ...]: the trunk's output for every image's test view, which never changes.

    A backbone that is all trunk (no tail blocks) gives the frozen features that k-means clusters.
    """
    batches = _batches(len(cropper.store), cropper)
    _write(out, len(cropper.store), (backbone.trunk(cropper.test_view(ids)) for ids in batches), "test views")


@torch.no_grad()
def extract_view_bank(backbone: Backbone, cropper: Cropper, images: int, views: int, seed: int, out: Path) -> None:
    """Write float32 [views * images, ...]: the trunk's output for fixed train views of the first `images` images.

    Training from it replaces fresh crops by `views` fixed ones: an approximation, so `views` and `seed` are
    part of the identity of every run that uses it. One generator a view; view v of image i is row v * images + i.
    """
    rows = (
        backbone.trunk(cropper.train_view(ids, stream))
        for stream in (generator(seed, "view_bank", view) for view in range(views))
        for ids in _batches(images, cropper)
    )
    _write(out, views * images, rows, f"view bank of {views} views")


def load_kept(path: Path, shape_start: tuple[int, ...]) -> Tensor:
    """Open kept features without reading them; raise UserError unless their shape starts as it should."""
    try:
        array = np.load(path, mmap_mode="c")
    except (OSError, ValueError, EOFError) as error:
        raise UserError(f"kept features {path} cannot be read ({error}); delete them and run again") from None
    if array.shape[: len(shape_start)] != shape_start:
        raise UserError(
            f"kept features {path} are of shape {array.shape}, expected {shape_start} first; delete them and run again"
        )
    return torch.from_numpy(array)


def _batches(n: int, cropper: Cropper) -> Iterator[Tensor]:
    return iter(torch.arange(n, device=cropper.device).split(BATCH))


def _write(out: Path, n: int, batches: Iterator[Tensor], what: str) -> None:
    """Fill a float32 .npy of n rows batch by batch, atomically, with progress."""
    done, progress = 0, Progress(what, n)
    with replacing(out) as temporary:
        for rows in batches:
            if done == 0:
                shape = (n, *rows.shape[1:])
                print(f"{what}: {shape} x 4 bytes = {int(np.prod(shape)) * 4 / 2**20:.0f} MiB", flush=True)
                array = open_memmap(temporary, mode="w+", dtype=np.float32, shape=shape)
            array[done : done + len(rows)] = rows.float().cpu().numpy()
            done += len(rows)
            progress.add(len(rows))
        array.flush()
