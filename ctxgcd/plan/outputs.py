"""The sizes of the trunk's outputs for the test views, and whether a training keeps them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ctxgcd.config import Images
from ctxgcd.models.shapes import SHAPES, Shape

IN_MEMORY, ON_DISK = 4 * 2**30, 64 * 2**30  # limits for the cached test views in training/views.py


def test_bytes(shape: Shape, images: Images, p: Mapping[str, Any]) -> int:
    """Return the bytes of the trunk's outputs for the test views of all images."""
    values = shape.values(p["crop"], p.get("tail_blocks", 0))
    return (images.train + images.test) * values * (2 if p["precision"] == "bf16" else 4)


def keeps_tests(images: Images, p: Mapping[str, Any]) -> bool:
    """Return whether a training keeps the trunk's outputs for the test views; assumed for an unknown backbone."""
    shape = SHAPES.get(p["model"])
    return bool(p["view_bank"]) or shape is None or test_bytes(shape, images, p) <= ON_DISK
