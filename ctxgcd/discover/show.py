"""The files in OUT that show the results with their corrections: predictions.csv, report.html, classes.json, ..."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from ctxgcd.discover.classes import FILE as SHOWN
from ctxgcd.discover.classes import Classes, Shown
from ctxgcd.discover.columns import DISCOVERED
from ctxgcd.discover.corrections import State
from ctxgcd.discover.found import Found
from ctxgcd.discover.model import Model
from ctxgcd.discover.output import PREDICTIONS, REPORT, THROWN_OUT
from ctxgcd.discover.report import Discovered, write_report
from ctxgcd.discover.sentences import FEW
from ctxgcd.utils.files import replacing, write_rows, write_text


@dataclass(frozen=True)
class Pictures:
    """The packed store of the images for the report, path -> id in it, and the images' folder relative to OUT.

    ids: of the images that the model assigned and of the labelled ones.
    """

    store: Path
    ids: Mapping[str, int]
    folder: str


def write_shown(
    model: Model,
    found: Found,
    classes: Classes,
    state: State,
    labels: Mapping[str, str],
    facts: dict[str, Any],
    pictures: Pictures | None,
    to: Path,
) -> None:
    """Write the files to a folder, without the report if there are no pictures; update the facts.

    Args:
        model: the model with its classes before corrections.
        labels: path -> class name of the images that have a label and are not in `found`.
        facts: the values returned by api.discover.
    """
    shown = state.shown(classes)
    model = model.with_shown(shown)
    table = corrected(model.table(found), found, classes, state, shown)
    with replacing(to / PREDICTIONS) as temporary:
        table[list(DISCOVERED)].to_csv(temporary, index=False, lineterminator="\n")
    write_text(to / "model" / SHOWN, json.dumps(shown.stored(), indent=1, ensure_ascii=False) + "\n")
    if state.out:
        write_rows(to / THROWN_OUT, ("path",), ({"path": path} for path in sorted(state.out)))
    sizes = np.bincount(table["class"], minlength=len(shown.names))
    new = [c for c, into in enumerate(shown.into) if c == into and c >= classes.known]
    by_hand = int(table["by_hand"].sum())
    facts |= {
        "images": len(labels) + len(table),
        "labelled": len(labels) + by_hand,
        "by_hand": by_hand,
        "K": len(new) + classes.known,
        "found": int((sizes > 0).sum()),
        "few": int((sizes[new] < FEW).sum()),
        "corrected": state.said,
    }
    if pictures:
        seen = table["path"].isin(pictures.ids.keys()).to_numpy()
        ids = np.array([pictures.ids[path] for path in table["path"][seen]], np.int64)
        features = found.features[rows_of(found, table)][seen]
        place = {key: number for number, key in enumerate(state.keys(classes))}
        drawable = {path: place[state.key_of(name)] for path, name in labels.items() if path in pictures.ids}
        ids_of = [pictures.ids[path] for path in drawable]
        labelled = pd.DataFrame({"path": list(drawable), "class": list(drawable.values()), "id": ids_of})
        drawn = Discovered(
            model, table[seen].reset_index(drop=True), features, ids, labelled, pictures.store, pictures.folder
        )
        write_report(drawn, facts, to / REPORT)


def rows_of(found: Found, table: pd.DataFrame) -> NDArray[np.int64]:
    """Return the rows of `found` of the images in a table."""
    place = {path: row for row, path in enumerate(found.paths)}
    return np.array([place[path] for path in table["path"]], np.int64)


def corrected(table: pd.DataFrame, found: Found, classes: Classes, state: State, shown: Shown) -> pd.DataFrame:
    """Return the table without images that were thrown out, and with the classes of moved and confirmed images.

    The confidence of these and their margin are 1, and the score of an image in a class made by hand, which has no
    output of the model yet, is that of the class in which the model has it. The column by_hand says which images have
    such a class.
    """
    place = {key: number for number, key in enumerate(state.keys(classes))}
    own = [place[key] if (key := state.label_of(path)) else -1 for path in found.paths]
    rows = [row for row, number in enumerate(own) if number >= 0]
    to = [own[row] for row in rows]
    scores = [
        round(float(found.cosines[row, c]), 4) if c < found.cosines.shape[1] else table["score"][row]
        for row, c in zip(rows, to, strict=True)
    ]
    table["by_hand"] = False
    values: dict[str, Any] = {
        "by_hand": True,
        "class": to,
        "name": [shown.names[c] for c in to],
        "number": [shown.numbers[c] for c in to],
        "confidence": 1.0,
        "margin": 1.0,
        "score": scores,
    }
    for column, given in values.items():
        table.loc[rows, column] = given
    return table[~table["path"].isin(state.out)].reset_index(drop=True)
