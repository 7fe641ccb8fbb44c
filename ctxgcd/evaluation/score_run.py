"""Scores and predictions of a run from its assignments. Only this module reads the labels of D^u."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from ctxgcd.errors import UserError
from ctxgcd.evaluation.accuracy import assign, contingency
from ctxgcd.evaluation.scores import histogram, score_all
from ctxgcd.names import METRICS
from ctxgcd.utils.files import read_object, read_rows, replacing, write_text

SCHEMA = 1
PREDICTION_COLUMNS = ["id", "path", "predicted", "matched_class", "true_class", "old"]


def read_assignments(paths: Sequence[Path]) -> pd.DataFrame:
    """Read the assignments of a run, one file per process, as one table of id, predicted, without duplicates.

    Processes pad their parts of the images with images of other parts, so an image may occur more than once. Raises
    UserError if two processes have different predictions for an image.
    """
    every = pd.concat([_part(path) for path in paths], ignore_index=True).drop_duplicates()
    if len(twice := every[every["id"].duplicated()]):
        raise UserError(
            f"image {twice['id'].iloc[0]} has two classes in {', '.join(map(str, paths))}, so the files are not from "
            "the same run; train the run again"
        )
    return every


def _part(path: Path) -> pd.DataFrame:
    """Read one process's assignments; a process without images writes only the header."""
    columns = ["id", "predicted"]
    return read_rows(path, usecols=columns, dtype=dict.fromkeys(columns, "int64"))


def score_run(
    run: Path,
    assignments: Sequence[Path],
    split: pd.DataFrame,
    metrics: Path,
    predictions: dict[str, Path],
    *,
    code: str,
) -> None:
    """Score D^u (transductive) and the official test part (inductive) separately; write metrics.json and both CSVs.

    Args:
        run: run.json of the training; its content is copied, except the digests of modules.
        assignments: CSVs with id and predicted, one or one per process (read_assignments).
        predictions: output file of each of the sets `unlabelled` and `test`; for a set without images, only the header.
        code: hash of the scoring code, stored as `scoring_code`.
    """
    about = read_object(run, "parameters", "epoch")
    parameters, classes = about["parameters"], about["parameters"]["K"]
    joined = read_assignments(assignments).merge(split, on="id", how="left", validate="one_to_one")
    expected = set(split.loc[split.role != "labelled", "id"])
    if set(joined["id"]) != expected:
        raise UserError(
            f"{assignments[0]} has {len(expected & set(joined['id']))} of the {len(expected)} images of the split and "
            f"{len(set(joined['id']) - expected)} others; train the run again"
        )
    scores: list[dict[str, Any]] = []
    clusters: dict[str, dict[str, Any]] = {}
    for role, out in predictions.items():
        part = joined[joined.role == role].sort_values("id")
        if len(part):
            rows = score_all(part.predicted, part.class_id, part.old == 1, classes)
            known = {"set": role, "K": classes, "K_source": parameters["K_source"], "epoch": about["epoch"]}
            scores += [{**known, **row} for row in rows if row["metric"] in METRICS]
            clusters[role] = {row["metric"]: row["all"] for row in rows if row["metric"] not in METRICS}
            clusters[role]["histogram"] = histogram(part.predicted, classes).tolist()
        _write_predictions(part, out)
    content = {
        "schema": SCHEMA,
        **{key: parameters[key] for key in ("benchmark", "row", "method", "seed", "K", "K_source")},
        "variant": parameters.get("variant"),
        "scores": scores,
        "clusters": clusters,
        **{key: value for key, value in about.items() if key != "modules"},
        "scoring_code": code,
    }
    write_text(metrics, json.dumps(content, indent=1) + "\n")
    best = next(s for s in scores if (s["set"], s["metric"]) == ("unlabelled", "v2"))
    shown = "  ".join(
        f"{name} {best[name]:.1f}" if best[name] is not None else f"{name} -" for name in ("all", "old", "new")
    )
    print(f"{parameters['benchmark']} {parameters['row']} seed {parameters['seed']}: v2 on D^u  {shown}")


def _write_predictions(part: pd.DataFrame, out: Path) -> None:
    matched = assign(contingency(part.predicted, part.class_id))[part.predicted] if len(part) else np.empty(0, np.int64)
    table = part.assign(matched_class=matched, true_class=part.class_id)[PREDICTION_COLUMNS]
    with replacing(out) as temporary:
        table.to_csv(temporary, index=False, lineterminator="\n")
