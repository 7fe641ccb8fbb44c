"""Corrections as a user gives them: words such as new-5=sunflower, corrections.csv, or an edited predictions.csv."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import pandas as pd

from ctxgcd.discover.classes import titled
from ctxgcd.discover.corrections import COLUMNS, Line, appended, in_effect, read, text_of
from ctxgcd.discover.output import CORRECTIONS, PREDICTIONS
from ctxgcd.discover.results import Results
from ctxgcd.discover.split import below
from ctxgcd.errors import UserError, shown
from ctxgcd.utils.user_tables import CLASS, NAME, PATH, Table, nfc, read_table, spelled


@dataclass(frozen=True)
class Given:
    """Corrections that are possible, to be added to those of the results; `note`: a sentence on them, or nothing."""

    results: Results
    lines: Sequence[Line]
    note: str


def checked(out: Path, corrections: Sequence[str], undo: bool) -> Given:
    """Check the arguments of api.label. Raises UserError."""
    results = Results.of(out)
    if undo == bool(corrections):
        raise UserError("give corrections or --undo, such as new-5=sunflower, a corrections.csv or a predictions.csv")
    files = [word for word in corrections if "=" not in word or Path(word).is_file()]
    if wrong := [word for word in files if len(corrections) > 1 or not Path(word).exists()]:
        problem = "is not the only argument" if Path(wrong[0]).exists() else "is neither NUMBER=NAME nor a file"
        raise UserError(f"{wrong[0]!r} {problem}; give names, such as new-5=sunflower, or one file")
    taken_in = results.out / PREDICTIONS
    if not (files and taken_in.exists() and Path(files[0]).exists() and taken_in.samefile(files[0])):
        results.refuse_edited()
    if undo:
        given = [("--undo", Line("undo"))]
    elif files:
        given = _of_file(results, Path(files[0]))
        if not given:
            raise UserError(f"{files[0]} has no correction; write one line for each below the names of the columns")
    else:
        given = [(word, line) for word in corrections for line in _of_word(word)]
    lines = appended(results.classes, results.lines, _of_images(results, given), results.predicted)
    note = "" if lines else "these corrections are in effect already"
    if undo:
        _, _, last = text_of(in_effect(results.lines)[-1:]).partition("\n")
        note = f"taken back: {shown(last.strip())}"
    return Given(results, lines, note)


def _of_images(results: Results, given: Sequence[tuple[str, Line]]) -> list[tuple[str, Line]]:
    """Return the lines with paths below the folder of the images, without labels that are those of the discovery.

    Raises UserError for another class of a labelled image.
    """
    predicted, labels = results.predicted, results.asked["labels"]
    images = pd.Series([line.image for _, line in given], dtype="str")
    found = []
    for (where, line), path in zip(given, below(results.photos, images), strict=True):
        image = line.image if line.image in predicted else path
        label = labels.get(image) if image not in predicted else None
        if label is None:
            found.append((where, replace(line, image=image)))
        elif label not in (line.cls, line.target) or line.action == "out":
            raise UserError(f"{where}: {image!r} has the label {shown(label)}; change it in the file of labels")
    return found


def _of_word(word: str) -> list[Line]:
    """Return the lines of NUMBER=NAME, or of NUMBER,NUMBER=NAME, which merges into the last one."""
    left, _, name = word.partition("=")
    *merged, target = (part.strip() for part in left.split(","))
    if not all([target, name.strip(), *merged]):
        raise UserError(f"{word!r} is not NUMBER=NAME, such as new-5=sunflower or new-2,new-7=leopard")
    lines = [Line("merge", cls=one, target=target) for one in merged]
    return [*lines, Line("name", cls=target, target=name.strip())]


def _of_file(results: Results, file: Path) -> list[tuple[str, Line]]:
    table = read_table(file, f"{','.join(COLUMNS)}, or that of {PREDICTIONS}")
    if table.has("action"):
        if file.exists() and (own := results.out / CORRECTIONS).exists() and own.samefile(file):
            raise UserError(f"{file} is the file to which corrections are added; give another file")
        return read(file)
    if table.has(NAME) and table.has(*PATH):
        return _edited(results, table)
    if table.has(*CLASS) and table.has(*PATH):
        rows = table.rows[[table.column(*PATH), table.column(*CLASS)]]
        _refuse_ids(results, table.name, rows.itertuples())
        return [
            (f"{file} line {number}", Line("move", image=path, target=name))
            for number, path, name in rows.itertuples()
            if name
        ]
    raise UserError(
        f"{file} has the columns {', '.join(table.rows.columns)}; give a table with {','.join(COLUMNS)}, an edited "
        f"{PREDICTIONS}, or one with path,class"
    )


def _refuse_ids(results: Results, name: str, rows: Iterable[tuple[int, str, str]]) -> None:
    """Raise UserError for the id of a class, as in the column class of predictions.csv, instead of its name.

    rows: line, path and class of a table.
    """
    state, keys = results.state, results.state.keys(results.classes)
    for line, _, given in rows:
        if given.isdecimal() and int(given) < len(keys) and state.find(given) is None:
            key = state.find(keys[int(given)]) or ""
            own = f"; if {given} is its name, give it this name first: {key}={given}" if key not in state.known else ""
            raise UserError(
                f"{name} line {line}: {given!r} is the id of {titled(state.names[key], key)} in the column class of "
                f"{PREDICTIONS}, not a name; give names, as in its column name{own}"
            )


def _edited(results: Results, table: Table) -> list[tuple[str, Line]]:
    """Return the changes of an edited predictions.csv.

    A class whose images all have one new name is named, or merged if another class has, or gets, this name; every other
    changed image is moved. Lines that were deleted change nothing.
    """
    state, shown, path = results.state, results.shown, table.column(*PATH)
    own = spelled(table.rows[path], shown, PREDICTIONS)
    titles = state.shown(results.classes)
    place = {key: number for number, key in enumerate(state.keys(results.classes))}
    changed: dict[tuple[str, str], list[tuple[str, str]]] = {}  # (class, new name) -> lines and images
    for number, row in zip(table.rows.index, table.rows.to_dict("records"), strict=True):
        where = f"{table.name} line {number}"
        if (image := own.get(row[path])) is None:
            raise UserError(f"{where}: {row[path]!r} is not an image of {results.out / PREDICTIONS}")
        key, name = shown[image], row[NAME]
        if not name:
            raise UserError(
                f"{where}: the name is empty; give a name, or throw the image out with a line of corrections.csv "
                "(out,IMAGE,,)"
            )
        for column, expected in (("class", str(place[key])), ("number", titles.numbers[place[key]])):
            if row.get(column, expected) != expected:
                raise UserError(
                    f"{where}: {column} is {row[column]!r}, but {expected!r} in {results.out / PREDICTIONS}; change "
                    "only the column name of that table"
                )
        if nfc(name) != nfc(state.names[key]) and state.find(name) != key:
            _refuse_ids(results, table.name, [(number, image, name)])
            changed.setdefault((key, name), []).append((where, image))
    if not changed:
        raise UserError(f"{table.name} has no changed name, so there is nothing to take in")
    sizes = Counter(shown.values())
    whole = {key: name for (key, name), rows in changed.items() if len(rows) == sizes[key] and key not in state.known}
    # Names of classes whose images all have another one are free.
    freed = {key for key in whole if state.names[key] != key and state.names[key] in whole.values()}
    lines = [(table.name, Line("name", cls=key, target=key)) for key in freed]
    moves: list[tuple[str, Line]] = []
    taken = set[str]()
    for (key, name), rows in changed.items():
        if key in whole:
            there = name in taken or state.find(name) not in (None, *freed)
            lines.append((rows[0][0], Line("merge" if there else "name", cls=key, target=name)))
            taken.add(name)
        else:
            moves += [(where, Line("move", image=image, target=name)) for where, image in rows]
    return [*lines, *moves]
