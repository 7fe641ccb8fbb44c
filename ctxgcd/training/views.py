"""Sources of a step's inputs: new views (exact) or the view bank (cached trunk outputs)."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from ctxgcd.images.views import Cropper
from ctxgcd.models.backbone import Backbone
from ctxgcd.models.precision import kept
from ctxgcd.training.processes import ALONE, Processes
from ctxgcd.utils.seeding import Draws

# Limits, in bytes, for caching the trunk's output of the test view: in memory (on a GPU: of its free memory), else in a
# file (and at most half of the free disk). A larger output is computed again whenever it is needed.
IN_MEMORY, OF_FREE_MEMORY, ON_DISK, OF_FREE_DISK = 4 * 2**30, 0.25, 64 * 2**30, 0.5
BATCH = 128  # images per forward pass in evaluation


class Views(Protocol):
    """A source of the trunk's outputs for images given by id."""

    def pair(self, ids: Tensor, drawn: Draws) -> Tensor:
        """Return two train views of each image [2b, ...]: the rows of view 1, then those of view 2."""
        ...

    def train(self, ids: Tensor, drawn: Draws) -> Tensor:
        """Return one train view of each image [b, ...]."""
        ...

    def test(self, ids: Tensor) -> Tensor:
        """Return the test view of each image [b, ...]."""
        ...


class BankViews:
    """Cached views: two different views of each image (for V = 1, the same view twice). The trunk is not run."""

    def __init__(self, bank: Tensor, test_view: Tensor) -> None:
        """bank: [V, N, ...], one image's views at bank[:, i]; test_view: [N + test images, ...].

        Each is on the device or memory-mapped; rows are returned in float32, on the device of the image ids.
        """
        self.bank, self.test_view = bank, test_view

    def pair(self, ids: Tensor, drawn: Draws) -> Tensor:
        views, draws = len(self.bank), drawn.kept(len(ids))
        first = (draws[0] * views).long()
        second = (first + 1 + (draws[1] * (views - 1)).long()) % views
        return self._kept(torch.cat([first, second]), ids.repeat(2))

    def train(self, ids: Tensor, drawn: Draws) -> Tensor:
        return self._kept((drawn.kept(len(ids))[0] * len(self.bank)).long(), ids)

    def _kept(self, views: Tensor, ids: Tensor) -> Tensor:
        device = self.bank.device
        return self.bank[views.to(device, non_blocking=True), ids.to(device)].to(ids.device).float()

    def test(self, ids: Tensor) -> Tensor:
        return self.test_view[ids.to(self.test_view.device)].to(ids.device).float()


class FreshViews:
    """A new crop and flip every time; the trunk's output for the test view is cached if it fits in memory.

    Several processes divide the train views and gather the trunk's output. Each process computes the requested test
    views, which the caller divides.
    """

    def __init__(
        self, cropper: Cropper, backbone: Backbone, precision: str, folder: Path, processes: Processes = ALONE
    ) -> None:
        """folder: cache folder for the test view's output if it is too large for the memory."""
        self.cropper, self.trunk, self.processes = cropper, backbone.trunk, processes
        self.precision, self.folder = precision, folder
        self.kept: Tensor | None = None
        self.known = torch.zeros(len(cropper.store), dtype=torch.bool)

    def pair(self, ids: Tensor, drawn: Draws) -> Tensor:
        return torch.cat([self.train(ids, drawn) for _ in range(2)])

    @torch.no_grad()
    def train(self, ids: Tensor, drawn: Draws) -> Tensor:
        own = self.processes.share(len(ids))
        return self.processes.gather(self.trunk(self.cropper.train_view(ids, drawn, own)), len(ids))

    @torch.no_grad()
    def test(self, ids: Tensor) -> Tensor:
        if self.kept is None:
            self.kept = self._place(self._made(ids[:1]))
        if self.kept is None:
            return self._made(ids).float()
        on_host = ids.cpu()
        missing = on_host[~self.known[on_host]]
        for part in missing.split(BATCH) if len(missing) else ():
            self.kept[part.to(self.kept.device)] = self._made(part.to(ids.device)).to(self.kept.device)
        self.known[missing] = True
        return self.kept[ids.to(self.kept.device)].to(ids.device).float()

    def _made(self, ids: Tensor) -> Tensor:
        return kept(self.trunk(self.cropper.test_view(ids)), self.precision)

    def _place(self, one: Tensor) -> Tensor | None:
        """Return storage for rows like `one` of all images, or None if there is not enough space."""
        shape = (len(self.known), *one.shape[1:])
        size = one[0].numel() * one.element_size() * len(self.known)
        free = OF_FREE_MEMORY * torch.cuda.mem_get_info(one.device)[0] if one.device.type == "cuda" else IN_MEMORY
        if size <= free:
            return one.new_empty(shape)
        if size <= min(ON_DISK, OF_FREE_DISK * shutil.disk_usage(self.folder).free):
            dtype = np.float16 if one.dtype == torch.float16 else np.float32
            # A file without a name, which is deleted when the process ends.
            return torch.from_numpy(np.memmap(tempfile.TemporaryFile(dir=self.folder), dtype, "w+", shape=shape))
        return None
