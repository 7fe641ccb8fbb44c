"""Features of the images of a folder, by a pretrained backbone or by the model of a discovery."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.functional import normalize

from ctxgcd.benchmarks.readers.own_images import misnamed, not_read
from ctxgcd.discover import model as models
from ctxgcd.discover.presets import cores
from ctxgcd.images.pack import pack
from ctxgcd.images.packed import left_out
from ctxgcd.images.views import Cropper
from ctxgcd.methods.build import method_of
from ctxgcd.models.features import batches, outputs
from ctxgcd.models.weights import prepare
from ctxgcd.names import counted
from ctxgcd.training.devices import borrowed_devices, make_deterministic
from ctxgcd.training.load import load_backbone, open_cropper
from ctxgcd.utils.progress import Progress
from ctxgcd.utils.user_tables import listed


@contextmanager
def device_for_images() -> Iterator[torch.device]:
    """Yield a device, with deterministic operations and all cores."""
    with borrowed_devices(1) as [device]:
        torch.set_num_threads(cores())
        make_deterministic(device)
        yield device


@contextmanager
def packed(
    folder: Path, paths: Sequence[str], parameters: dict[str, Any], device: torch.device
) -> Iterator[tuple[Cropper, list[str], dict[str, str]]]:
    """Yield views of the readable images, their paths, and the unreadable images with the reasons."""
    if left := not_read(folder):
        print(f"note: {left}", flush=True)
    with tempfile.TemporaryDirectory(prefix="ctxgcd-") as temporary:
        store = Path(temporary) / "images.npz"
        pack("folder", folder, paths, parameters["resize"], store, cores(), leave_out=True)
        unreadable = left_out(store)
        read = [path for path in paths if path not in unreadable]
        yield open_cropper(parameters, store, device), read, misnamed(folder) | unreadable


def trunk_outputs(trunk: nn.Module, cropper: Cropper, precision: str, done: str) -> Iterator[Tensor]:
    """Yield the trunk's outputs for the test views of all images in batches, with progress: `done`, as `classified`."""
    images = len(cropper.store)
    progress = Progress(done, images)
    views = (cropper.test_view(ids) for ids in batches(images, cropper))
    for rows in outputs(trunk, views, precision, cropper.device):
        yield rows
        progress.add(len(rows))


def features(
    folder: Path, paths: Sequence[str], model: Path | None, values: dict[str, Any]
) -> tuple[NDArray[np.float32], list[str]]:
    """Return features and paths; see api.features. values: those of presets.chosen, not read with a model."""
    with device_for_images() as device, tempfile.TemporaryDirectory(prefix="ctxgcd-") as temporary:
        if model:
            made = models.load(model).to(device)
            parameters, trunk = made.parameters, made.backbone.trunk
        else:
            weights = Path(temporary) / "weights.pt"
            parameters = values
            prepare(values["model"], values["weights"], values["crop"], weights, values["sha256"])
            trunk = load_backbone(values, method_of(values).cut, values["precision"], weights, device).trunk
        with packed(folder, paths, parameters, device) as (cropper, read, unreadable):
            if unreadable:
                print(f"note: {counted(len(unreadable), 'image')} cannot be read: {listed(unreadable)}", flush=True)
            kept = trunk_outputs(trunk, cropper, parameters["precision"], "features")
            if model:
                rows = made.find(kept, read, np.arange(len(read))).features
            else:
                rows = normalize(torch.cat([*kept]).float(), dim=1).cpu().numpy()
    return rows, read
