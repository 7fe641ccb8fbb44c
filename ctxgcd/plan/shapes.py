"""Shapes of backbones that are known without weights, and the sizes of their outputs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import ceil
from typing import Any

from ctxgcd.config import Images

IN_MEMORY, ON_DISK = 4 * 2**30, 64 * 2**30  # limits for the cached test views in training/views.py


@dataclass(frozen=True)
class Shape:
    """A backbone: its trunk returns (crop / stride)^2 + extra positions of `channels`, the backbone `dim` features."""

    stride: int
    extra: int
    channels: int
    dim: int
    block: int  # parameters of one trained block

    def values(self, crop: int, tail_blocks: int) -> int:
        """Return the number of cached values per view: the trunk's output, or the feature if there is no tail."""
        return (ceil(crop / self.stride) ** 2 + self.extra) * self.channels if tail_blocks else self.dim


def _vit(patch: int, prefix: int, dim: int, vectors: int) -> Shape:
    """Return the shape of a ViT. vectors: biases, norms and scales of a block, in units of `dim`."""
    return Shape(stride=patch, extra=prefix, channels=dim, dim=dim, block=12 * dim**2 + vectors * dim)


SHAPES = {
    "vit_base_patch16_224.dino": _vit(16, prefix=1, dim=768, vectors=13),
    "vit_small_patch14_dinov2.lvd142m": _vit(14, prefix=1, dim=384, vectors=15),
    "vit_base_patch14_dinov2.lvd142m": _vit(14, prefix=1, dim=768, vectors=15),
    "vit_small_patch14_reg4_dinov2.lvd142m": _vit(14, prefix=5, dim=384, vectors=15),
    "vit_base_patch14_reg4_dinov2.lvd142m": _vit(14, prefix=5, dim=768, vectors=15),
    "vit_small_patch16_dinov3.lvd1689m": _vit(16, prefix=5, dim=384, vectors=12),
    "vit_base_patch16_dinov3.lvd1689m": _vit(16, prefix=5, dim=768, vectors=12),
    "tf_efficientnet_lite0": Shape(stride=32, extra=0, channels=320, dim=1280, block=320 * 1280),
}


def test_bytes(shape: Shape, images: Images, p: Mapping[str, Any]) -> int:
    """Return the bytes of the trunk's outputs for the test views of all images."""
    values = shape.values(p["crop"], p.get("tail_blocks", 0))
    return (images.train + images.test) * values * (2 if p["precision"] == "bf16" else 4)


def keeps_tests(images: Images, p: Mapping[str, Any]) -> bool:
    """Return whether a training keeps the trunk's outputs for the test views; assumed for an unknown backbone."""
    shape = SHAPES.get(p["model"])
    return bool(p["view_bank"]) or shape is None or test_bytes(shape, images, p) <= ON_DISK
