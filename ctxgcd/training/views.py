"""Where a step's input comes from: fresh views (exact) or the view bank (kept trunk output)."""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor

from ctxgcd.images.views import Cropper
from ctxgcd.models.backbone import Backbone
from ctxgcd.training.processes import ALONE, Processes

KEEP_LIMIT = 4 * 2**30  # bytes of test-view trunk output held in memory; above, it is computed again
BATCH = 128  # images a pass in evaluation


class Views(Protocol):
    """The trunk's output for images given by id."""

    def pair(self, ids: Tensor, stream: torch.Generator) -> Tensor:
        """Two train views of each image [2b, ...]: view 1's rows, then view 2's."""
        ...

    def test(self, ids: Tensor) -> Tensor:
        """The test view of each image [b, ...]."""
        ...


class BankViews:
    """Two different kept views of each image; the trunk never runs."""

    def __init__(self, bank: Tensor, test_view: Tensor) -> None:
        """bank: [V, N, ...], one image's views at bank[:, i]; test_view: [N + test images, ...]."""
        self.bank, self.test_view = bank, test_view

    def pair(self, ids: Tensor, stream: torch.Generator) -> Tensor:
        views = len(self.bank)
        draws = torch.rand(2, len(ids), generator=stream, dtype=torch.float64).to(ids.device)
        first = (draws[0] * views).long()
        second = (first + 1 + (draws[1] * (views - 1)).long()) % views
        return torch.cat([self.bank[first, ids], self.bank[second, ids]])

    def test(self, ids: Tensor) -> Tensor:
        return self.test_view[ids]


class FreshViews:
    """A new crop and flip every time; the trunk's output for the test view is kept where it fits in memory.

    Several processes share out the train views and gather the trunk's output. Of test views each makes what it is
    asked for: they are shared out by the caller.
    """

    def __init__(self, cropper: Cropper, backbone: Backbone, processes: Processes = ALONE) -> None:
        self.cropper, self.trunk, self.processes = cropper, backbone.trunk, processes
        self.kept: Tensor | None = None
        self.known = torch.zeros(len(cropper.store), dtype=torch.bool, device=cropper.device)

    @torch.no_grad()
    def pair(self, ids: Tensor, stream: torch.Generator) -> Tensor:
        own = self.processes.share(len(ids))
        views = [self.trunk(self.cropper.train_view(ids, stream, own)) for _ in range(2)]
        return torch.cat([self.processes.gather(view, len(ids)) for view in views])

    @torch.no_grad()
    def test(self, ids: Tensor) -> Tensor:
        if self.kept is None:
            one = self.trunk(self.cropper.test_view(ids[:1]))
            if len(self.known) * one.numel() * one.element_size() > KEEP_LIMIT:
                return self.trunk(self.cropper.test_view(ids))
            self.kept = one.new_empty(len(self.known), *one.shape[1:])
        missing = ids[~self.known[ids]]
        for part in missing.split(BATCH) if len(missing) else ():
            self.kept[part] = self.trunk(self.cropper.test_view(part))
        self.known[missing] = True
        return self.kept[ids]
