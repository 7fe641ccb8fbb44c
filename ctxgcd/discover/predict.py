"""Prediction of the classes of new images with the model of a discovery."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from ctxgcd.benchmarks.readers.own_images import misnamed, not_read
from ctxgcd.discover import model as models
from ctxgcd.discover.columns import PREDICTED
from ctxgcd.discover.presets import cores
from ctxgcd.errors import UserError
from ctxgcd.images.pack import pack
from ctxgcd.images.packed import left_out
from ctxgcd.models.features import batches, outputs
from ctxgcd.training.devices import borrowed_devices, make_deterministic
from ctxgcd.training.load import open_cropper
from ctxgcd.utils.progress import Progress


def predict(
    model: Path, folder: Path, paths: Sequence[str], threshold: float | None, false_alarms: float | None
) -> tuple[pd.DataFrame, dict[str, Any]]:
    """Return a row (columns.PREDICTED) for each readable image, and facts; see api.predict."""
    made = models.load(model)
    by = "score" if made.reference is None else "similarity"
    if false_alarms is not None:
        if made.quantiles is None:
            raise UserError(
                f"{model} is a model of an earlier version, which cannot be used with --false-alarms; give "
                "--threshold, or run `ctxgcd discover` again"
            )
        threshold = made.threshold_of(false_alarms)
    elif threshold is None:
        assert made.threshold is not None
        threshold = made.threshold
    if left := not_read(folder):
        print(f"note: {left}", flush=True)
    p = made.parameters
    with tempfile.TemporaryDirectory(prefix="ctxgcd-") as temporary, borrowed_devices(1) as [device]:
        torch.set_num_threads(cores())
        make_deterministic(device)
        made = made.to(device)
        store = Path(temporary) / "images.npz"
        pack("folder", folder, paths, p["resize"], store, cores(), leave_out=True)
        unreadable = left_out(store)
        cropper = open_cropper(p, store, device)
        images = len(cropper.store)

        def kept() -> Iterator[Tensor]:
            progress = Progress("classified", images)
            views = (cropper.test_view(ids) for ids in batches(images, cropper))
            for rows in outputs(made.backbone.trunk, views, p["precision"], device):
                yield rows
                progress.add(len(rows))

        table = made.table(made.find(kept(), [path for path in paths if path not in unreadable], np.arange(images)))
    table["none_of_these"] = (table[by] < threshold).astype(int)
    return table[list(PREDICTED)], {"threshold": threshold, "by": by, "unreadable": misnamed(folder) | unreadable}
