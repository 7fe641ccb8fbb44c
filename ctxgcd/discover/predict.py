"""Prediction of the classes of new images with the model of a discovery."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from ctxgcd.discover import model as models
from ctxgcd.discover.columns import PREDICTED
from ctxgcd.discover.features import device_for_images, packed, trunk_outputs
from ctxgcd.errors import UserError


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
    p = made.parameters
    with device_for_images() as device, packed(folder, paths, p, device) as (cropper, read, unreadable):
        made = made.to(device)
        kept = trunk_outputs(made.backbone.trunk, cropper, p["precision"], "classified")
        table = made.table(made.find(kept, read, np.arange(len(read))))
    table["none_of_these"] = (table[by] < threshold).astype(int)
    return table[list(PREDICTED)], {"threshold": threshold, "by": by, "unreadable": unreadable}
