"""Small tables of predictions and their truth."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from ctxgcd.evaluation.score_run import PREDICTION_COLUMNS
from ctxgcd.pipeline.runs import Run

PREDICTED = "path,predicted\na.jpg,7\nb.jpg,7\nc.jpg,3\nd.jpg,3\ne.jpg,1\n"
NAMED = "path,class,name,nearest\n" + "".join(
    f"{row},x.jpg\n" for row in ("a.jpg,7,cat", "b.jpg,7,cat", "c.jpg,3,new 3", "d.jpg,3,new 3", "e.jpg,1,new 1")
)


TRUTH = "path,class,old\na.jpg,cat,1\nb.jpg,cat,1\nc.jpg,dog,0\nd.jpg,dog,0\ne.jpg,dog,0\n"


def scores(found: dict[str, Any], metric: str = "v2") -> list[float | None]:
    row = next(row for row in found["scores"] if row["metric"] == metric)
    return [row["all"], row["old"], row["new"]]


def written(folder: Path, predictions: str | bytes = PREDICTED, truth: str | bytes = TRUTH) -> tuple[Path, Path]:
    files = folder / "predictions.csv", folder / "truth.csv"
    for file, content in zip(files, (predictions, truth), strict=True):
        file.write_bytes(content if isinstance(content, bytes) else content.encode())
    return files


def of_run(root: Path, run: Run, predicted: Sequence[int], old: int = 2) -> Path:
    """Write a run's predictions.csv, with one image of each class, and return it."""
    file = root / run.file("predictions.csv")
    file.parent.mkdir(parents=True, exist_ok=True)
    true = range(len(predicted))
    columns = [true, [f"{i}.jpg" for i in true], predicted, true, true, [int(i < old) for i in true]]
    pd.DataFrame(dict(zip(PREDICTION_COLUMNS, columns, strict=True))).to_csv(file, index=False)
    return file
