"""Sizes on disk: by hand, and the shapes of the real models."""

from __future__ import annotations

from typing import Any

import pytest
import timm
import torch

from ctxgcd.config import Images, Params
from ctxgcd.models.backbone import cut
from ctxgcd.pipeline.resolve import resolve
from ctxgcd.plan import sizes
from ctxgcd.training import views

DEMO = Images(train=2000, test=500)


@pytest.mark.parametrize(
    ("model", "crops", "smaller"),
    [
        ("tf_efficientnet_lite0", (64, 90), {}),
        *((model, (224,), {"depth": 1, "img_size": 224}) for model in sizes.SHAPES if model.startswith("vit_")),
    ],
)
def test_shapes_are_those_of_the_models(model: str, crops: tuple[int, ...], smaller: dict[str, int]) -> None:
    net = timm.create_model(model, num_classes=0, **smaller).eval().requires_grad_(False)
    shape, backbone = sizes.SHAPES[model], cut(net, 1)
    for crop in crops:
        with torch.no_grad():
            assert backbone.trunk(torch.zeros(1, 3, crop, crop)).numel() == shape.values(crop, 1)
    assert shape.values(crops[0], 0) == backbone.dim == shape.dim
    assert sum(p.numel() for p in backbone.tail.parameters() if p.requires_grad) == shape.block


def test_disk_of_the_demo_by_hand(demo: Params) -> None:
    runs = [resolve(demo, "fashion", row, 0) for row in ("kmeans", "gcd", "simgcd")]
    disk = sizes.disk_of(demo.benchmarks["fashion"], DEMO, 73, runs)
    assert disk.store == 3 * 2500 * 28 * 28
    assert disk.kept == (2500 + 2500 + 4 * 2000) * 1280 * 4  # frozen features, test views, bank of 2 x 2 x 320 values
    tail, projector = 320 * 1280, 1280 * 128 + 128 + 128 * 128 + 128 + 128 * 64 + 64
    kmeans, simgcd = 4 * 10 * 1280, 4 * (tail + projector + 10 * 1280)
    gcd = simgcd + 4 * 2048 * 64
    assert disk.results == kmeans + gcd + simgcd + 3 * (2500 * 80 + 2000 * 1280 * 2)
    assert disk.scratch == 2 * gcd


def test_disk_of_fresh_views_and_of_unknown_backbones(params: Params, committed: dict[str, Any]) -> None:
    entry, p = params.benchmarks["cifar10"], resolve(params, "cifar10", "simgcd", 0)
    disk = sizes.disk_of(entry, entry.images, 256, [p])
    assert disk.kept == 0
    assert disk.scratch is not None
    assert disk.scratch > 60_000 * 197 * 768 * 2  # the test views' file
    odd = sizes.disk_of(entry, entry.images, 256, [p | {"model": "resnet50"}])
    assert (odd.store, odd.kept) == (disk.store, None)


def test_disk_of_rows_with_two_backbones_is_the_sum(params: Params) -> None:
    entry = params.benchmarks["cifar10"]
    runs = [resolve(params, "cifar10", row, 0) for row in ("kmeans", "kmeans+backbone=dinov2_vits14")]
    both, *each = (sizes.disk_of(entry, entry.images, 256, of) for of in (runs, runs[:1], runs[1:]))
    assert [one.kept for one in each] == [60_000 * 768 * 2, 60_000 * 384 * 2]
    assert (both.store, both.kept) == (each[0].store, each[0].kept + each[1].kept)
    assert both.results == each[0].results + each[1].results


def test_the_plan_has_the_cache_limits_of_a_training() -> None:
    """The plan does not load torch, so it has its own copy of the limits."""
    assert (sizes.IN_MEMORY, sizes.ON_DISK) == (views.IN_MEMORY, views.ON_DISK)
