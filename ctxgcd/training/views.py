"""Where a step's input comes from: fresh views (exact) or the view bank (kept trunk output)."""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor

from ctxgcd.images.views import Cropper
from ctxgcd.models.backbone import Backbone

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
    """A new crop and flip every time; the trunk's output for the test view is kept where it fits in memory."""

    def __init__(self, cropper: Cropper, backbone: Backbone) -> None:
        self.cropper, self.trunk = cropper, backbone.trunk
        self.kept: Tensor | None = None

    @torch.no_grad()
    def pair(self, ids: Tensor, stream: torch.Generator) -> Tensor:
        return torch.cat([self.trunk(self.cropper.train_view(ids, stream)) for _ in range(2)])

    @torch.no_grad()
    def test(self, ids: Tensor) -> Tensor:
        if self.kept is None:
            one = self.trunk(self.cropper.test_view(ids[:1]))
            n = len(self.cropper.store)
            if n * one.numel() * one.element_size() > KEEP_LIMIT:
                return self.trunk(self.cropper.test_view(ids))
            every = torch.arange(n, device=ids.device).split(BATCH)
            self.kept = torch.cat([self.trunk(self.cropper.test_view(part)) for part in every])
        return self.kept[ids]
