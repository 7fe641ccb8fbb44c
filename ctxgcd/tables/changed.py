"""The share of images whose class differs between two rows, from the predictions of their runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from ctxgcd.errors import UserError
from ctxgcd.evaluation.changed import percent_changed
from ctxgcd.pipeline.rows import parse_row
from ctxgcd.pipeline.runs import Run
from ctxgcd.utils.files import read_rows

COLUMNS = ["id", "predicted", "true_class", "old"]


def predictions_of(files: Sequence[Path], metrics: Sequence[Mapping[str, Any]]) -> dict[Run, Path]:
    """Return the predictions.csv beside each metrics.json, given with its content, by run."""
    runs = (Run(*(run["parameters"][key] for key in ("benchmark", "row", "seed"))) for run in metrics)
    return {run: file.with_name("predictions.csv") for run, file in zip(runs, files, strict=True)}


def mean_changed(predictions: Mapping[Run, Path], pairs: Mapping[str, str]) -> dict[tuple[str, str], float]:
    """Return the percent of the images of D^u whose class differs between two rows, mean over their common seeds.

    The result has an entry for each benchmark and row with a common seed. Rows without an entry: one compared with
    itself, and one of a pair in which a row does not train, because then no cluster stands for an Old class.

    Args:
        predictions: predictions.csv of each run.
        pairs: row -> the row that it is compared with.

    Raises:
        UserError: a file is damaged, or two runs of one benchmark have different images.
    """
    read = cache(_read)  # of a run that many rows are compared with
    of_seeds: dict[tuple[str, str], list[float]] = {}
    for run, file in predictions.items():
        other = replace(run, row=pairs.get(run.row, run.row))
        if other == run or other not in predictions or not (parse_row(run.row).trains and parse_row(other.row).trains):
            continue
        own, base = _read(file), read(predictions[other])
        if not np.array_equal(own["id"], base["id"]):
            raise UserError(f"{file} and {predictions[other]} have different images; make both runs again")
        percent = percent_changed(own["predicted"], base["predicted"], _old_classes(base))
        of_seeds.setdefault((run.benchmark, run.row), []).append(percent)
    return {key: float(np.mean(values)) for key, values in of_seeds.items()}


def _read(file: Path) -> pd.DataFrame:
    return read_rows(file, usecols=COLUMNS, dtype=dict.fromkeys(COLUMNS, "int64"))


def _old_classes(images: pd.DataFrame) -> int:
    """Return the number of Old classes: they come first, and every New class has an image in D^u."""
    new = images.loc[images["old"] == 0, "true_class"]
    return int(new.min() if len(new) else images["true_class"].max() + 1)
