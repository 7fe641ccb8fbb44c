"""Sources of a step's inputs: new views (exact) or the view bank (cached trunk outputs)."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from ctxgcd.images.views import Cropper
from ctxgcd.models.backbone import Backbone
from ctxgcd.models.features import images_of_pass, passes
from ctxgcd.models.precision import kept
from ctxgcd.training.processes import ALONE, Processes
from ctxgcd.utils.seeding import Draws

# Limits, in bytes, for caching the trunk's output of the test view: in memory (on a GPU: of its free memory), else in a
# file (and at most half of the free disk). A larger output is computed again whenever it is needed.
IN_MEMORY, OF_FREE_MEMORY, ON_DISK, OF_FREE_DISK = 4 * 2**30, 0.25, 64 * 2**30, 0.5
BATCH = 128  # images per forward pass of the tail in evaluation
MOST_ON_CPU = 16  # images per forward pass of the trunk; more small images would only fill up the last pass

Asked = Sequence[tuple[Tensor, Draws]]  # image ids int64 [n] on the host, and the draws of their views


class Views(Protocol):
    """A source of the trunk's outputs for images given by id.

    keeps_tests: whether the output for a test view is computed once at most.
    """

    @property
    def keeps_tests(self) -> bool: ...

    def pairs(self, groups: Asked, device: torch.device) -> Iterator[Tensor]:
        """Yield for each group two train views of each image [2n, ...]: the rows of view 1, then those of view 2."""
        ...

    def train(self, ids: Tensor, drawn: Draws) -> Tensor:
        """Return one train view of each image [b, ...]."""
        ...

    def test(self, ids: Tensor) -> Tensor:
        """Return the test view of each image [b, ...]."""
        ...


class BankViews:
    """Cached views: two different views of each image (for V = 1, the same view twice). The trunk is not run."""

    keeps_tests = True

    def __init__(self, bank: Tensor, test_view: Tensor) -> None:
        """bank: [V, N, ...], one image's views at bank[:, i]; test_view: [N + test images, ...].

        Each is on the device or memory-mapped; rows are returned in float32, on the device of the image ids.
        """
        self.bank, self.test_view = bank, test_view

    def pairs(self, groups: Asked, device: torch.device) -> Iterator[Tensor]:
        """Yield the pairs of each group. Equal pairs, as those of the sampled images of several rows, are read once."""
        asked = [(ids, drawn.kept(len(ids))) for ids, drawn in groups]
        keys = [b"".join(values.numpy().tobytes() for values in each) for each in asked]
        read: dict[bytes, Tensor] = {}
        for place, ((ids, draws), key) in enumerate(zip(asked, keys, strict=True)):
            rows = read.pop(key) if key in read else self._pair(sent(ids, device), draws)
            if key in keys[place + 1 :]:
                read[key] = rows
            yield rows

    def _pair(self, ids: Tensor, draws: Tensor) -> Tensor:
        """Return two views of each image [2b, ...]: the rows of view 1, then those of view 2."""
        views = len(self.bank)
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

    The trunk computes a fixed number of images in each pass, so that an image's output does not depend on how many
    others there are. Several processes divide the train views and gather the trunk's output. Each process computes the
    requested test views, which the caller divides.
    """

    def __init__(
        self, cropper: Cropper, backbone: Backbone, precision: str, folder: Path, processes: Processes = ALONE
    ) -> None:
        """folder: cache folder for the test view's output if it is too large for the memory."""
        self.cropper, self.trunk, self.processes = cropper, backbone.trunk, processes
        self.precision, self.folder = precision, folder
        self.images_of_pass = images_of_pass(cropper)
        if cropper.device.type == "cpu":
            self.images_of_pass = min(self.images_of_pass, MOST_ON_CPU)
        self.known = torch.zeros(len(cropper.store), dtype=torch.bool)

    def pairs(self, groups: Asked, device: torch.device) -> Iterator[Tensor]:
        """Yield the pairs of each group. A view of several groups (the same crop of an image) is computed once."""
        asked = [(ids, drawn.crop(len(ids))) for ids, drawn in groups for _ in range(2)]
        views = torch.cat([torch.cat([ids[:, None], draws], dim=1) for ids, draws in asked])
        unique, place = torch.unique(views, dim=0, return_inverse=True)
        made = self.outputs(unique[:, 0].long(), unique[:, 1:], device)
        *others, last = place.split([2 * len(ids) for ids, _ in groups])
        for part in others:
            yield made[sent(part, device)]
        rows = made[sent(last, device)]
        del made  # its memory is free while the last group is used
        yield rows

    def train(self, ids: Tensor, drawn: Draws) -> Tensor:
        return self.outputs(ids, drawn.crop(len(ids)), ids.device)

    def outputs(self, ids: Tensor, draws: Tensor, device: torch.device) -> Tensor:
        """Return the trunk's outputs for the train views with these numbers, [n, ...] on the device."""
        own = self.processes.share(len(ids))
        mine, numbers = sent(ids[own], device), sent(draws[own], device)
        rows = self._passed(len(mine), lambda part: self.cropper.drawn_view(mine[part], numbers[part]), device)
        return self.processes.gather(rows, len(ids))

    @property
    def keeps_tests(self) -> bool:
        return self.kept is not None

    @torch.no_grad()
    def test(self, ids: Tensor) -> Tensor:
        if self.kept is None:
            return self._made(ids).float()
        on_host = ids.cpu()
        missing = on_host[~self.known[on_host]]
        for part in missing.split(BATCH) if len(missing) else ():
            self.kept[part.to(self.kept.device)] = self._made(part.to(ids.device)).to(self.kept.device)
        self.known[missing] = True
        return self.kept[ids.to(self.kept.device)].to(ids.device).float()

    def _made(self, ids: Tensor) -> Tensor:
        rows = self._passed(len(ids), lambda part: self.cropper.test_view(ids[part]), ids.device)
        return kept(rows, self.precision)

    def _passed(self, n: int, view: Callable[[Tensor], Tensor], device: torch.device) -> Tensor:
        """Return the trunk's outputs for views 0 to n-1 [n, ...], in passes of equal size.

        The last view is repeated to fill up the last pass.

        view: positions int64 [b] on the device -> views [b, 3, crop, crop].
        """
        size, done = self.images_of_pass, 0
        positions = torch.arange(-(-n // size) * size, device=device).clamp(max=n - 1)
        made: Tensor | None = None
        for rows in passes(self.trunk, map(view, positions.split(size)), self.precision, device):
            made = rows.new_empty(n, *rows.shape[1:]) if made is None else made
            made[done : done + size] = rows[: n - done]
            done += size
        assert made is not None
        return made

    @cached_property
    def kept(self) -> Tensor | None:
        """Storage for the trunk's outputs for all test views, or None if the first process has not enough space."""
        one = self._made(torch.zeros(1, dtype=torch.int64, device=self.cropper.device))
        shape = (len(self.known), *one.shape[1:])
        place = self.processes.from_first(
            self._place(one[0].numel() * one.element_size() * len(self.known), one.device)
        )
        if place == "memory":
            return one.new_empty(shape)
        if place == "disk":
            dtype = np.float16 if one.dtype == torch.float16 else np.float32
            # A file without a name, which is deleted when the process ends.
            return torch.from_numpy(np.memmap(tempfile.TemporaryFile(dir=self.folder), dtype, "w+", shape=shape))
        return None

    def _place(self, size: int, device: torch.device) -> str:
        """Return where there is space for this many bytes: memory, disk, or an empty string."""
        free = OF_FREE_MEMORY * torch.cuda.mem_get_info(device)[0] if device.type == "cuda" else IN_MEMORY
        if size <= free:
            return "memory"
        return "disk" if size <= min(ON_DISK, OF_FREE_DISK * shutil.disk_usage(self.folder).free) else ""


def sent(values: Tensor, device: torch.device) -> Tensor:
    """Return values of the host on the device, copied asynchronously."""
    on_host = device.type == "cuda" and values.device.type == "cpu"
    return (values.pin_memory() if on_host else values).to(device, non_blocking=True)
