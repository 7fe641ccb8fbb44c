"""Corrections of a discovery: lines of OUT/corrections.csv, and the names, labels and merged classes that they make."""

from __future__ import annotations

import csv
import io
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ctxgcd.discover.classes import NUMBER, Classes, Shown, free_numbers, is_number, spelling
from ctxgcd.errors import UserError, nearest
from ctxgcd.names import counted
from ctxgcd.pipeline.identity import content_hash
from ctxgcd.utils.user_tables import read_table, spelled

FILE = "corrections.csv"
COLUMNS = ("action", "image", "class", "target")
# The cells that an action reads; the others are empty.
ACTIONS = {
    "name": ("class", "target"),
    "merge": ("class", "target"),
    "move": ("image", "target"),
    "confirm": ("image", "class"),
    "out": ("image",),
    "undo": (),
}


@dataclass(frozen=True)
class Line:
    """A line of corrections.csv; `cls` is its cell `class`."""

    action: str
    image: str = ""
    cls: str = ""
    target: str = ""

    @property
    def cells(self) -> tuple[str, str, str, str]:
        return self.action, self.image, self.cls, self.target


def read(file: Path) -> list[tuple[str, Line]]:
    """Return each line of a file of corrections with its place, for messages. Raises UserError for another line."""
    table = read_table(file, ",".join(COLUMNS))
    if missing := [name for name in COLUMNS if not table.has(name)]:
        raise UserError(f"{file} has no column {missing[0]}; its first line must be {','.join(COLUMNS)}")
    lines = []
    for number, cells in zip(table.rows.index, table.rows[list(COLUMNS)].itertuples(index=False), strict=True):
        where, line = f"{file} line {number}", Line(*cells)
        if line.action not in ACTIONS:
            raise UserError(
                f"{where}: unknown action '{line.action}'{nearest(line.action, ACTIONS)}; valid: {', '.join(ACTIONS)}"
            )
        given = dict(zip(COLUMNS, line.cells, strict=True))
        if empty := [name for name in ACTIONS[line.action] if not given[name]]:
            raise UserError(f"{where}: {line.action} needs the cell {empty[0]}; fill it or delete the line")
        lines.append((where, line))
    return lines


def text_of(lines: Iterable[Line]) -> str:
    """Return the content of corrections.csv."""
    text = io.StringIO(newline="")
    csv.writer(text, lineterminator="\n").writerows([COLUMNS, *(line.cells for line in lines)])
    return text.getvalue()


def in_effect(lines: Iterable[Line]) -> list[Line]:
    """Return the lines that are not taken back. Raises UserError for an `undo` without a line before it."""
    found: list[Line] = []
    for line in lines:
        if line.action != "undo":
            found.append(line)
        elif found:
            found.pop()
        else:
            raise UserError("there is no correction to take back")
    return found


@dataclass
class State:
    """What the corrections make of the classes of a model; classes are given by their keys (see Classes).

    Attributes:
        names: the name of every class, also of retired ones.
        known: the classes of the labels.
        alive: the classes of the model that are not merged, in order, then those made by hand.
        merged: class -> the class that it was merged into.
        labels: path -> class, of moved and confirmed images; `confirmed` are those of the latter.
        out: paths of images that were thrown out.
        named: classes that were given a name.
        made: (name, class) of the classes that were made by hand; earlier: of those that had a number before the lines.
        without_effect: lines whose class or name does not exist any more.
    """

    names: dict[str, str]
    known: Collection[str]
    alive: list[str]
    merged: dict[str, str] = field(default_factory=dict)
    labels: dict[str, str] = field(default_factory=dict)
    confirmed: set[str] = field(default_factory=set)
    out: set[str] = field(default_factory=set)
    named: set[str] = field(default_factory=set)
    made: list[tuple[str, str]] = field(default_factory=list)
    earlier: Sequence[tuple[str, str]] = ()
    without_effect: list[Line] = field(default_factory=list)

    def find(self, text: str) -> str | None:
        """Return the class with a key or a name, in any spelling if only one has it; a merged class is followed."""
        key: str | None = text if text in self.names else None
        if key is None:
            exact = [key for key in self.alive if self.names[key] == text]
            found = exact or [key for key in self.alive if spelling(self.names[key]) == spelling(text)]
            key = found[0] if len(found) == 1 else None
        while key in self.merged:
            key = self.merged[key]
        return key

    def key_of(self, name: str) -> str:
        """Return the class of a name of the labels: the one that is called so, else a new one."""
        exact = [key for key in self.alive if self.names[key] == name]
        return exact[0] if exact else (self.find(name) or name) if name in self.names else name

    def label_of(self, path: str) -> str | None:
        """Return the class of a moved or confirmed image, or None."""
        return self.find(self.labels[path]) if path in self.labels else None

    def of(self, image: str) -> tuple[Any, ...]:
        """Return what a line on this image (empty: on a class) can change."""
        own = self.label_of(image), image in self.confirmed, image in self.out
        return *own, dict(self.names), dict(self.merged)

    @property
    def digest(self) -> str:
        """Return a hash of what a training takes from the corrections; names are not part of it."""
        labels = {path: self.label_of(path) for path in self.labels}
        return content_hash([labels, {key: self.find(key) for key in self.merged}, sorted(self.out)])

    def apply(self, line: Line) -> None:
        """Add a line. Raises UserError if it is impossible."""
        getattr(self, f"_{line.action}")(line)

    def _class(self, text: str) -> str:
        if (key := self.find(text)) is not None:
            return key
        valid = [name for key in self.alive for name in {key, self.names[key]}]
        raise UserError(
            f"there is no class {text!r}{nearest(text, valid)}; give a number (new-5) or a name, as in predictions.csv"
        )

    def _numbered(self, text: str, verb: str) -> str:
        if (key := self._class(text)) in self.known:
            raise UserError(
                f"{self.names[key]!r} is a class of your labels and cannot be {verb}; change the file of labels"
            )
        return key

    def _name(self, line: Line) -> None:
        if self.names.get(key := self.find(line.cls) or "") == line.target:
            return
        key = self._numbered(line.cls, "renamed")
        if is_number(line.target) and line.target != key:
            raise UserError(f"{line.target!r} is the number of a class; give {line.cls} another name")
        if self.find(line.target) not in (None, key):
            raise UserError(
                f"{line.target!r} is the name of another class; to merge both, write "
                f"{line.cls},{line.target}={line.target}"
            )
        self.names[key] = line.target
        self.named = self.named - {key} | ({key} if line.target != key else set())

    def _merge(self, line: Line) -> None:
        key, target = self._numbered(line.cls, "merged into another one"), self._class(line.target)
        if key == target:
            if line.cls in self.merged:
                return
            raise UserError(f"{line.cls} and {line.target} are the same class; give two classes")
        self.merged[key] = target
        self.alive = [one for one in self.alive if one != key]

    def _move(self, line: Line) -> None:
        key = self.find(line.target)
        if key is None:
            if is_number(line.target):
                self._class(line.target)
            key = self._make(line.target)
        self._label(line.image, key)

    def _make(self, name: str) -> str:
        """Return the number of a new class: the one that the same line gave it in earlier results, else a free one."""
        had = [key for other, key in self.earlier if other == name]
        count = sum(other == name for other, _ in self.made)
        key = had[count] if count < len(had) else next(iter(free_numbers(self.names.values(), self.names)))
        self.names[key] = name
        self.made.append((name, key))
        return key

    def _confirm(self, line: Line) -> None:
        self._label(line.image, self._class(line.cls))
        self.confirmed.add(line.image)

    def _label(self, image: str, key: str) -> None:
        if key not in self.alive:  # made by hand, or of an earlier result
            self.alive.append(key)
        self.labels[image] = key
        self.confirmed.discard(image)
        self.out.discard(image)

    def _out(self, line: Line) -> None:
        self.out.add(line.image)
        self.labels.pop(line.image, None)
        self.confirmed.discard(line.image)

    def keys(self, classes: Classes) -> list[str]:
        """Return the classes (keys) by index: those of the model, then those made by hand."""
        return [*classes.keys, *(key for key in self.alive if key not in classes.keys)]

    def shown(self, classes: Classes) -> Shown:
        """Return the classes by index, those of the model first."""
        keys = self.keys(classes)
        place = {key: number for number, key in enumerate(keys)}
        into = [place[self.find(key) or key] for key in keys]
        given = [key for key in self.known if self.names[key] == key]  # may look like a number
        numbers = [key if NUMBER.fullmatch(key) and key not in given else "" for key in keys]
        return Shown([self.names[key] for key in keys], numbers, into)

    @property
    def said(self) -> list[str]:
        """Sentences on the corrections; empty if there are none."""
        moved, named = len(self.labels) - len(self.confirmed), len(self.named & set(self.alive))
        parts = [
            *([f"{counted(named, 'class')} named"] * bool(named)),
            *([f"{counted(len(self.merged), 'class')} merged into another one"] * bool(self.merged)),
            *([f"{counted(moved, 'image')} moved"] * bool(moved)),
            *([f"{counted(len(self.confirmed), 'image')} confirmed"] * bool(self.confirmed)),
            *([f"{counted(len(self.out), 'image')} thrown out (thrown_out.csv)"] * bool(self.out)),
        ]
        lost = len(self.without_effect)
        return [
            *([f"Corrected by hand: {', '.join(parts)}."] * bool(parts)),
            *(
                [f"{counted(lost, 'correction')} {'has' if lost == 1 else 'have'} no effect any more (class gone)."]
                * bool(lost)
            ),
        ]


def replayed(classes: Classes, lines: Iterable[Line]) -> State:
    """Return the state that the lines make of the classes of a model."""
    names = {key: key for key in classes.retired} | dict(zip(classes.keys, classes.names, strict=True))
    state = State(names, classes.keys[: classes.known], list(classes.keys), earlier=classes.made)
    for line in in_effect(lines):
        try:
            state.apply(line)
        except UserError:
            state.without_effect.append(line)
    return state


def appended(
    classes: Classes, before: Sequence[Line], given: Sequence[tuple[str, Line]], predicted: Mapping[str, str]
) -> list[Line]:
    """Return the given lines with the paths as in predictions.csv, after checking that all of them are possible.

    Lines that change nothing are left out: the report offers all corrections again that were made in it.

    Args:
        given: where each line comes from, for messages, and the line.
        predicted: path -> class of the model, of all images that can be corrected.

    Raises:
        UserError: the first line that is impossible.
    """
    found: list[Line] = []
    state = replayed(classes, before)
    valid = {*predicted, *state.out}
    own = spelled({line.image for _, line in given if line.image}, sorted(valid), "predictions.csv")
    for where, line in given:
        try:
            if line.image and line.image not in own:
                raise UserError(f"{line.image!r} is not an image of predictions.csv{nearest(line.image, valid)}")
            line = Line(line.action, own.get(line.image, ""), line.cls, line.target)
            if line.action == "undo":
                state = replayed(classes, [*before, *found, line])
            else:
                if line.action == "confirm":
                    _require_there(state, line, predicted)
                earlier = state.of(line.image)
                state.apply(line)
                if state.of(line.image) == earlier:
                    continue
        except UserError as error:
            raise UserError(f"{where}: {error}") from None
        found.append(line)
    return found


def _require_there(state: State, line: Line, predicted: Mapping[str, str]) -> None:
    """Raise UserError if an image to confirm is not in the class that the line gives."""
    if line.image in state.out:
        raise UserError(f"{line.image} was thrown out; write move with its class instead")
    own = state.label_of(line.image) or state.find(predicted[line.image])
    if own != state.find(line.cls):
        raise UserError(f"{line.image} is in {state.names[own or '']}, not in {line.cls}; write move instead")
