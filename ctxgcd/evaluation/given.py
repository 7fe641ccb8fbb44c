"""Scores of predictions that anyone gives: joined with a table of the truth, then scored as a run's own."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from ctxgcd.errors import UserError, nearest
from ctxgcd.evaluation.accuracy import DENSE_IDS, Ids, Mask, as_ids
from ctxgcd.evaluation.scores import score_all
from ctxgcd.names import METRICS, SETS
from ctxgcd.reading import Table, read_list

KEYS = ("path", "id")
PREDICTED = ("predicted", "class")
CLASSES = ("class_id", "class", "true_class", "class_name")
FLAGS = {"1": True, "0": False, "1.0": True, "0.0": False, "true": True, "false": False}


def score_given(
    predictions: Table,
    truth: Table,
    *,
    old: Sequence[str] | None = None,
    role: str | None = None,
    clusters: int | None = None,
    key: str | None = None,
    allow_missing: bool = False,
) -> dict[str, Any]:
    """Return what api.evaluate describes. `old`: classes and files of classes; None: as the column old says."""
    for table in (predictions, truth):
        if table.rows.empty:
            raise UserError(f"{table.name} has no line below its column names; write one for each image")
    key = key or _common_key(predictions, truth)
    named = truth.column(*CLASSES)
    is_old = _old(truth, named, old)
    role = _role(truth, role)
    known = Table(truth.name, truth.rows if is_old is None else truth.rows.assign(old=is_old))
    if role is not None:
        known = Table(known.name, known.rows[known.rows["role"] == role])
    joined, notes = _join(predictions, known, key, [named] if is_old is None else [named, "old"], allow_missing)
    mask = np.full(len(joined), True) if is_old is None else joined["old"].to_numpy("bool")
    if is_old is None:
        notes.append(
            f"{truth.name} has no column old and --old names no class: All alone is given, and no v1, which needs them"
        )
    sizes = joined["guess"].value_counts()
    if clusters is not None and clusters < len(sizes):
        raise UserError(
            f"{predictions.name} has {len(sizes)} clusters, more than the {clusters} of --clusters; give the K assumed"
        )
    p = _ids(joined["guess"])
    rows = score_all(p, _ids(joined[named]), mask, int(p.max()) + 1)
    if is_old is None:
        rows = [{**row, "old": None, "new": None, **({"all": None} if row["metric"] == "v1" else {})} for row in rows]
    return {
        "set": role,
        "n": len(joined),
        "joined_by": key,
        "clusters": clusters,
        "clusters_found": len(sizes),
        "empty_clusters": None if clusters is None else clusters - len(sizes),
        "classes": int(joined[named].nunique()),
        "old_classes": None if is_old is None else int(joined.loc[mask, named].nunique()),
        "old_share": None if is_old is None else 100 * float(mask.mean()),
        "scores": [row for row in rows if row["metric"] in METRICS],
        "histogram": {label: int(sizes[label]) for label in _sorted(sizes.index)},
        "notes": notes,
    }


def _common_key(predictions: Table, truth: Table) -> str:
    both = [key for key in KEYS if key in predictions.rows.columns and key in truth.rows.columns]
    if both:
        return both[0]
    for table in (predictions, truth):
        table.column(*KEYS)  # says so where one has neither
    raise UserError(
        f"{predictions.name} names its images by {predictions.column(*KEYS)} and {truth.name} by "
        f"{truth.column(*KEYS)}; give both the same column"
    )


def _role(truth: Table, role: str | None) -> str | None:
    """Which role of a split is scored; None for a table without roles."""
    if "role" not in truth.rows.columns:
        if role is not None:
            raise UserError(f"{truth.name} has no column role, so --set {role} cannot choose; leave --set out")
        return None
    role = role or SETS[0]
    if role not in set(truth.rows["role"]):
        raise UserError(
            f"{truth.name} has no image of the role {role}, only {', '.join(sorted(set(truth.rows['role'])))}; "
            "choose another --set, or leave the column role out"
        )
    return role


def _old(truth: Table, named: str, old: Sequence[str] | None) -> Mask | None:
    """Whether each row's class is Old, bool [rows]; None where nothing says it."""
    if old is not None:
        listed = _listed(truth, old)
        columns = [column for column in CLASSES if column in truth.rows.columns]
        # A split has ids and names; the list may be of either.
        column = next((c for c in columns if set(listed) <= set(truth.rows[c])), columns[-1])
        if stray := [name for name in listed if name not in set(truth.rows[column])]:
            raise UserError(
                f"--old names '{stray[0]}', which is neither a file nor a class of {truth.name}"
                f"{nearest(stray[0], set(truth.rows[column]))}"
            )
        mask: Mask = truth.rows[column].isin(listed).to_numpy()
    elif "old" in truth.rows.columns:
        flags = truth.rows["old"].str.lower().map(FLAGS)
        if (odd := truth.rows[flags.isna()]).size:
            raise UserError(f"{truth.name} line {odd.index[0]}: old is {odd['old'].iloc[0]!r}, expected 0 or 1")
        mask = flags.to_numpy("bool")
    else:
        return None
    if both := set(truth.rows.loc[mask, named]) & set(truth.rows.loc[~mask, named]):
        raise UserError(f"{truth.name} makes the class '{min(both)}' both old and new; make it one of them")
    return mask


def _listed(truth: Table, old: Sequence[str]) -> list[str]:
    """The classes that are named, or listed in the files that are named."""
    classes = []
    for name in old:
        classes += read_list(Path(name), *CLASSES) if Path(name).is_file() else [name]
    if not classes:
        raise UserError(f"{', '.join(old) or '--old'} names no class; write one class a line")
    return classes


def _join(
    predictions: Table, truth: Table, key: str, columns: Sequence[str], allow_missing: bool
) -> tuple[pd.DataFrame, list[str]]:
    """Return the rows of `truth` with their prediction as `guess`, and sentences on the images of one table alone.

    Raises UserError for images without a prediction, unless they are allowed.
    """
    predicted = predictions.column(*PREDICTED)
    guesses = predictions.filled(predictions.column(key), predicted).once(key).rows
    known = truth.filled(truth.column(key), *columns).once(key).rows
    joined = known.merge(guesses.rename(columns={predicted: "guess"}), on=key, how="left")
    without = joined.loc[joined["guess"].isna(), key]
    extra = guesses.loc[~guesses[key].isin(joined[key]), key]
    if len(without) == len(joined):
        raise UserError(
            f"{predictions.name} and {truth.name} have no image in common by {key}, as '{guesses[key].iloc[0]}' and "
            f"'{joined[key].iloc[0]}'; name the images alike in both"
        )
    if len(without) and not allow_missing:
        raise UserError(
            f"{predictions.name} lacks {len(without):,} of the {len(joined):,} images of {truth.name}, first "
            f"'{without.iloc[0]}'; predict them too, or add --allow-missing to score the others"
        )
    notes = []
    if len(without):
        notes.append(f"images without a prediction, not scored: {len(without):,} of {len(joined):,}")
    if len(extra):
        notes.append(f"predictions of other images than those scored: {len(extra):,}, first '{extra.iloc[0]}'")
    return joined.dropna(subset="guess"), notes


def _ids(labels: pd.Series) -> Ids:
    """Labels as ids: whole numbers as they are, so that scores equal the workflow's bit for bit; else by order."""
    if labels.str.fullmatch("0|[1-9][0-9]{0,8}").all() and (ids := labels.astype("int64")).max() < DENSE_IDS:
        return as_ids(ids, "labels")
    places = {label: place for place, label in enumerate(_sorted(set(labels)))}
    return as_ids(labels.map(places), "labels")


def _sorted(labels: Iterable[str]) -> list[str]:
    """Labels in order, numbers by their value."""
    labels = list(labels)
    try:
        return sorted(labels, key=lambda label: (float(label), label))
    except ValueError:
        return sorted(labels)
