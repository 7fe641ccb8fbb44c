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
from ctxgcd.utils.user_tables import (
    CLASS,
    GUESS,
    NAME,
    PATH,
    PREDICTED,
    TRUE_CLASS,
    Table,
    in_one_form,
    read_list,
    spelled,
    told_alike,
)

KEYS = ("path", "id")
NEAREST = "nearest"  # labelled image, in what `ctxgcd discover` and `ctxgcd predict` write
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
    """Return what api.evaluate describes. `old`: classes and files of classes; None: as the column old says."""
    for table in (predictions, truth):
        if table.rows.empty:
            raise UserError(f"{table.name} has no line below its column names; write one for each image")
    if columns := _of_predictions(truth):
        raise UserError(
            f"{truth.name} holds predictions, as its columns say ({' and '.join(columns)}); give the predictions "
            "first and the truth second"
        )
    key = key or _common_key(predictions, truth)
    predictions, truth = (_named(table, key) for table in (predictions, truth))
    own = spelled(predictions.rows[key].unique(), truth.rows[key].unique(), truth.name)
    keys = predictions.rows[key].map(lambda name: own.get(name, name))
    predictions = Table(predictions.name, predictions.rows.assign(**{key: keys}))
    predicted, named = predictions.column(*PREDICTED), truth.column(*TRUE_CLASS)
    # Beside a column of predictions, classes are the true ones; `name` is a class's where `ctxgcd discover` wrote it.
    named_too = NAME if predictions.has(NEAREST) else ""
    predictions.require_same_classes(predicted, *(GUESS if predicted in GUESS else (*CLASS, named_too)))
    truth.require_same_classes(named, *TRUE_CLASS)
    predictions, notes = _in_one_form(predictions, predicted)
    truth, said = _in_one_form(truth, *truth.has(*TRUE_CLASS))
    notes += said + [f"{truth.name}: {line}" for line in told_alike(truth.rows[key].unique())]
    is_old = _old(truth, named, old)
    role = _role(truth, role)
    known = Table(truth.name, truth.rows if is_old is None else truth.rows.assign(old=is_old))
    if role is not None:
        known = Table(known.name, known.rows[known.rows["role"] == role])
    of_discover = bool(predictions.has(NEAREST)) and not predictions.has("none_of_these")  # which predict adds
    if of_discover:
        _refuse_labels(predictions, known, key)
    columns = [named] if is_old is None else [named, "old"]
    joined, said = _join(predictions.filled(key, predicted), known.filled(key, *columns), allow_missing, of_discover)
    notes += said
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


def _of_predictions(truth: Table) -> list[str]:
    """Return the columns that show a truth to be predictions, of this or other code, without true classes."""
    if truth.has("true_class"):
        return []
    of_discover = truth.has(*DISCOVERED)
    return of_discover if len(of_discover) == len(DISCOVERED) else [] if truth.has(*TRUE_CLASS) else truth.has(*GUESS)


def _refuse_labels(predictions: Table, truth: Table, key: str) -> None:
    """Refuse the labels of a discovery as the truth of its predictions: an image of them is the nearest of another."""
    labelled = truth.rows.loc[truth.rows[key].isin(predictions.rows[NEAREST]), key]
    if len(labelled) and not truth.rows[key].isin(predictions.rows[key]).any():
        raise UserError(
            f"{truth.name} names none of the images of {predictions.name} but labelled ones, such as "
            f"'{labelled.iloc[0]}', which discover does not predict; give the true classes of the unlabelled images"
        )


def _common_key(predictions: Table, truth: Table) -> str:
    if both := [key for key in KEYS if predictions.has(key) and truth.has(key)]:
        return both[0]
    if predictions.has(*PATH) and truth.has(*PATH):
        return "path"
    of = [table.column(*PATH, "id") for table in (predictions, truth)]  # says so where one has neither
    raise UserError(
        f"{predictions.name} names its images by {of[0]} and {truth.name} by {of[1]}; give both the same column"
    )


def _named(table: Table, key: str) -> Table:
    """Return the table with its images named by the column `key`."""
    column = table.column(*(PATH if key == "path" else (key,)))
    return Table(table.name, table.rows.rename(columns={column: key})).plain()


def _in_one_form(table: Table, *columns: str) -> tuple[Table, list[str]]:
    """Return the table with one Unicode form for each class, and sentences on classes that have several."""
    notes: list[str] = []
    for column in columns:
        one, said = in_one_form(table.rows[column].unique().tolist())
        if said:
            table = Table(table.name, table.rows.assign(**{column: table.rows[column].map(one)}))
        notes += [f"{table.name}: {line}" for line in said]
    return table, notes


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
        # A split has ids and names; the list may be of either.
        for column in truth.has(*TRUE_CLASS):
            classes = truth.rows[column].unique()
            if len(found := spelled(listed, classes, truth.name)) == len(listed):
                break
        else:
            stray = next(name for name in listed if name not in found)
            raise UserError(
                f"--old names '{stray}', which is neither a file nor a class of {truth.name}{nearest(stray, classes)}"
            )
        mask: Mask = truth.rows[column].isin(found.values()).to_numpy()
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
        classes += read_list(Path(name), OLD_LISTS, TRUE_CLASS) if Path(name).is_file() else [name]
    if not classes:
        raise UserError(f"{', '.join(old) or '--old'} names no class; write one class a line")
    return list(dict.fromkeys(classes))


def _join(predictions: Table, truth: Table, allow_missing: bool, of_discover: bool) -> tuple[pd.DataFrame, list[str]]:
    """Return the rows of `truth` with their prediction as `guess`, and sentences on the images of one table alone.

    Raises UserError for images without a prediction, unless they are allowed.
    """
    key, predicted = predictions.rows.columns
    guesses, known = (table.once(key).rows for table in (predictions, truth))
    joined = known.merge(guesses.rename(columns={predicted: "guess"}), on=key, how="left")
    without = joined.loc[joined["guess"].isna(), key]
    extra = guesses.loc[~guesses[key].isin(joined[key]), key]
    if len(without) == len(joined):
        raise UserError(
            f"{predictions.name} and {truth.name} have no image in common by {key}, as '{guesses[key].iloc[0]}' and "
            f"'{joined[key].iloc[0]}'; name the images alike in both"
        )
    if len(without) and not allow_missing:
        advice = "predict them too, or add --allow-missing to score the others"
        if of_discover:
            advice = "add --allow-missing to score the others (discover predicts the unlabelled images alone)"
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
