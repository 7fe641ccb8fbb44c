"""Loading of the backbone and the images for training and feature extraction."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from ctxgcd.images.store import open_store
from ctxgcd.images.views import Cropper
from ctxgcd.models import weights
from ctxgcd.models.backbone import Backbone
from ctxgcd.training.devices import compiled


def load_backbone(
    parameters: Mapping[str, Any],
    cut: Callable[[nn.Module], Backbone],
    precision: str,
    prepared: Path,
    device: torch.device,
) -> Backbone:
    """Return the run's backbone with its prepared weights, cut, on the device; on a GPU, its trunk is compiled."""
    net = weights.load(parameters["model"], parameters["crop"], prepared, parameters.get("blocks", 0))
    backbone = cut(net).to(device)
    return replace(backbone, trunk=compiled(backbone.trunk, parameters["crop"], precision, device))


def open_cropper(parameters: Mapping[str, Any], store: Path, device: torch.device) -> Cropper:
    """Return the run's store with its crop and normalisation, on the device if it fits into half of its free memory."""
    packed = open_store(store)
    if _fits(packed.pixels, "image store", device):
        packed = packed.to(device)
    return Cropper(packed, parameters["crop"], parameters["mean"], parameters["std"], device)


def placed(mapped: torch.Tensor, what: str, device: torch.device) -> torch.Tensor:
    """Return a memory-mapped tensor, moved to the device if it fits."""
    return mapped.to(device) if _fits(mapped, what, device) else mapped


def _fits(mapped: torch.Tensor, what: str, device: torch.device) -> bool:
    """Return whether the tensor fits into half of a GPU's free memory; print a line if not. On a CPU, return False."""
    if device.type != "cuda":
        return False
    size, free = mapped.numel() * mapped.element_size(), torch.cuda.mem_get_info(device)[0]
    if size >= free / 2:
        print(
            f"the {what} is read from disk, because it has {size / 1e9:.0f} GB and the device {free / 1e9:.0f} GB free"
        )
    return size < free / 2
