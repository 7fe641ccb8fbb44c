"""Evaluation of predictions of any code: they are joined with a table of true classes and scored like a run."""

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
from ctxgcd.utils.user_tables import (
    CLASS,
    GUESS,
    NAME,
    PATH,
    PREDICTED,
    TRUE_CLASS,
    Table,
    in_one_form,
    note_unicode_forms,
    read_list,
    spelled,
)

KEYS = ("path", "id")
NEAREST = "nearest"  # column with the nearest labelled image, written by `ctxgcd discover` and `ctxgcd predict`
DISCOVERED = ("confidence", NEAREST)
OLD_LISTS = ("class_id", "class", "true_class", "class_name")
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
    """Return the scores; see api.evaluate. `old`: classes and files of classes; None: use the column old."""
    for table in (predictions, truth):
        if table.rows.empty:
            raise UserError(f"{table.name} has no lines after the column names; write one line per image")
    if columns := _of_predictions(truth):
        raise UserError(
            f"{truth.name} contains predictions (columns {' and '.join(columns)}); give the predictions first and the "
            "truth second"
        )
    key = key or _common_key(predictions, truth)
    predictions, truth = (_named(table, key) for table in (predictions, truth))
    own = spelled(predictions.rows[key].unique(), truth.rows[key].unique(), truth.name)
    keys = predictions.rows[key].map(lambda name: own.get(name, name))
    predictions = Table(predictions.name, predictions.rows.assign(**{key: keys}))
    predicted, named = predictions.column(*PREDICTED), truth.column(*TRUE_CLASS)
    # Next to a column of predictions, `class` is the true class; `name` is a class name if `ctxgcd discover` wrote it.
    named_too = NAME if predictions.has(NEAREST) else ""
    predictions.require_same_classes(predicted, *(GUESS if predicted in GUESS else (*CLASS, named_too)))
    truth.require_same_classes(named, *TRUE_CLASS)
    predictions, notes = _in_one_form(predictions, predicted)
    truth, further = _in_one_form(truth, *truth.has(*TRUE_CLASS))
    notes += further + [f"{truth.name}: {line}" for line in note_unicode_forms(truth.rows[key].unique())]
    is_old = _old(truth, named, old)
    role = _role(truth, role)
    known = Table(truth.name, truth.rows if is_old is None else truth.rows.assign(old=is_old))
    if role is not None:
        known = Table(known.name, known.rows[known.rows["role"] == role])
    of_discover = bool(predictions.has(NEAREST)) and not predictions.has("none_of_these")  # which predict adds
    if of_discover:
        _refuse_labels(predictions, known, key)
    columns = [named] if is_old is None else [named, "old"]
    joined, further = _join(predictions.filled(key, predicted), known.filled(key, *columns), allow_missing, of_discover)
    notes += further
    mask = np.full(len(joined), True) if is_old is None else joined["old"].to_numpy("bool")
    if is_old is None:
        notes.append(f"{truth.name} has no column old and --old is not given, so only All is computed, without v1")
    sizes = joined["guess"].value_counts()
    if clusters is not None and clusters < len(sizes):
        raise UserError(
            f"{predictions.name} has {len(sizes)} clusters, but --clusters is {clusters}; give the assumed K"
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


def _of_predictions(truth: Table) -> list[str]:
    """Return the columns that show that a truth contains predictions and no true classes."""
    if truth.has("true_class"):
        return []
    of_discover = truth.has(*DISCOVERED)
    return of_discover if len(of_discover) == len(DISCOVERED) else [] if truth.has(*TRUE_CLASS) else truth.has(*GUESS)


def _refuse_labels(predictions: Table, truth: Table, key: str) -> None:
    """Raise UserError if the truth contains only the labelled images of a discovery, which have no predictions."""
    labelled = truth.rows.loc[truth.rows[key].isin(predictions.rows[NEAREST]), key]
    if len(labelled) and not truth.rows[key].isin(predictions.rows[key]).any():
        raise UserError(
            f"{truth.name} has no image of {predictions.name}, only labelled ones, such as '{labelled.iloc[0]}', which "
            f"discover does not predict; give the true classes of the unlabelled images"
        )


def _common_key(predictions: Table, truth: Table) -> str:
    if both := [key for key in KEYS if predictions.has(key) and truth.has(key)]:
        return both[0]
    if predictions.has(*PATH) and truth.has(*PATH):
        return "path"
    of = [table.column(*PATH, "id") for table in (predictions, truth)]  # raises an error if a table has neither
    raise UserError(
        f"{predictions.name} identifies images by {of[0]} and {truth.name} by {of[1]}; use the same column in both"
    )


def _named(table: Table, key: str) -> Table:
    """Return the table with its images named by the column `key`."""
    column = table.column(*(PATH if key == "path" else (key,)))
    return Table(table.name, table.rows.rename(columns={column: key})).plain()


def _in_one_form(table: Table, *columns: str) -> tuple[Table, list[str]]:
    """Return the table with one Unicode form for each class, and sentences on classes that have several."""
    notes: list[str] = []
    for column in columns:
        one, sentences = in_one_form(table.rows[column].unique().tolist())
        if sentences:
            table = Table(table.name, table.rows.assign(**{column: table.rows[column].map(one)}))
        notes += [f"{table.name}: {line}" for line in sentences]
    return table, notes


def _role(truth: Table, role: str | None) -> str | None:
    """Return which role of a split is scored; None for a table without roles."""
    if "role" not in truth.rows.columns:
        if role is not None:
            raise UserError(f"{truth.name} has no column role, so --set {role} cannot be used; remove --set")
        return None
    role = role or SETS[0]
    if role not in set(truth.rows["role"]):
        raise UserError(
            f"{truth.name} has no images with the role {role}, only {', '.join(sorted(set(truth.rows['role'])))}; "
            "choose another --set, or delete the column role"
        )
    return role


def _old(truth: Table, named: str, old: Sequence[str] | None) -> Mask | None:
    """Return whether each row's class is Old, bool [rows]; None if unknown."""
    if old is not None:
        listed = _listed(truth, old)
        # A split has ids and names; the list may contain either.
        for column in truth.has(*TRUE_CLASS):
            classes = truth.rows[column].unique()
            if len(found := spelled(listed, classes, truth.name)) == len(listed):
                break
        else:
            stray = next(name for name in listed if name not in found)
            raise UserError(
                f"--old is '{stray}', which is neither a file nor a class of {truth.name}{nearest(stray, classes)}"
            )
        mask: Mask = truth.rows[column].isin(found.values()).to_numpy()
    elif "old" in truth.rows.columns:
        flags = truth.rows["old"].str.lower().map(FLAGS)
        if (wrong := truth.rows[flags.isna()]).size:
            raise UserError(
                f"{truth.name} line {wrong.index[0]}: old is {wrong['old'].iloc[0]!r}, but expected 0 or 1; correct it"
            )
        mask = flags.to_numpy("bool")
    else:
        return None
    if both := set(truth.rows.loc[mask, named]) & set(truth.rows.loc[~mask, named]):
        raise UserError(f"{truth.name} marks the class '{min(both)}' both Old and New; use one of them")
    return mask


def _listed(truth: Table, old: Sequence[str]) -> list[str]:
    """Return the given classes and those listed in the given files."""
    classes = []
    for name in old:
        classes += read_list(Path(name), OLD_LISTS, TRUE_CLASS) if Path(name).is_file() else [name]
    if not classes:
        raise UserError(f"{', '.join(old) or '--old'} lists no class; write one class per line")
    return list(dict.fromkeys(classes))


def _join(predictions: Table, truth: Table, allow_missing: bool, of_discover: bool) -> tuple[pd.DataFrame, list[str]]:
    """Return the rows of `truth` with their prediction as `guess`, and notes on images in only one table.

    Raises UserError for images without a prediction, unless `allow_missing` is set.
    """
    key, predicted = predictions.rows.columns
    guesses, known = (table.once(key).rows for table in (predictions, truth))
    joined = known.merge(guesses.rename(columns={predicted: "guess"}), on=key, how="left")
    without = joined.loc[joined["guess"].isna(), key]
    extra = guesses.loc[~guesses[key].isin(joined[key]), key]
    if len(without) == len(joined):
        raise UserError(
            f"{predictions.name} and {truth.name} have no image in common by {key}, as '{guesses[key].iloc[0]}' and "
            f"'{joined[key].iloc[0]}'; use the same names in both"
        )
    if len(without) and not allow_missing:
        advice = "predict them too, or add --allow-missing to score the others"
        if of_discover:
            advice = "add --allow-missing to score the others (discover only predicts the unlabelled images)"
        raise UserError(
            f"{predictions.name} lacks {len(without):,} of the {len(joined):,} images of {truth.name}, first "
            f"'{without.iloc[0]}'; {advice}"
        )
    notes = []
    if len(without):
        notes.append(f"images without a prediction, not scored: {len(without):,} of {len(joined):,}")
    if len(extra):
        notes.append(f"predictions of other images than those scored: {len(extra):,}, first '{extra.iloc[0]}'")
    return joined.dropna(subset="guess"), notes


def _ids(labels: pd.Series) -> Ids:
    """Return labels as ids: integers unchanged, so that scores equal the workflow's exactly; else by sorted order."""
    if labels.str.fullmatch("0|[1-9][0-9]{0,8}").all() and (ids := labels.astype("int64")).max() < DENSE_IDS:
        return as_ids(ids, "labels")
    places = {label: place for place, label in enumerate(_sorted(set(labels)))}
    return as_ids(labels.map(places), "labels")


def _sorted(labels: Iterable[str]) -> list[str]:
    """Return labels in sorted order, numbers by value."""
    labels = list(labels)
    try:
        return sorted(labels, key=lambda label: (float(label), label))
    except ValueError:
        return sorted(labels)
