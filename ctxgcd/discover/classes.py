"""The classes of a discovery: indices of the model's outputs, and the numbers and names by which people know them."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np

from ctxgcd.utils.files import read_object

FILE = "classes.json"  # in OUT/model: Shown
NUMBER = re.compile(r"new-([1-9]\d*)")


@dataclass(frozen=True)
class Classes:
    """The classes that a model was trained with, by index.

    The key of a class never changes and is never given to another class: its public number (new-5), or the name of a
    class of the labels that was never discovered.

    Attributes:
        known: number of classes of the labels, which are the first ones.
        names: names before corrections: of the labels, else the number.
        retired: numbers that belonged to classes of earlier results.
        made: (name, key) of the classes that were made by hand, in this order.
    """

    known: int
    keys: Sequence[str]
    names: Sequence[str]
    retired: Sequence[str] = ()
    made: Sequence[tuple[str, str]] = ()

    @classmethod
    def of(cls, record: dict[str, Any]) -> Classes:
        """Return the classes as stored by `stored`."""
        made = [(name, key) for name, key in record["made"]]
        return cls(record["known"], record["keys"], record["names"], record["retired"], made)

    def stored(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True)
class Shown:
    """The classes as people see them, by index: those of the model, then those made by hand since.

    Attributes:
        names: the given names, else the numbers.
        numbers: public numbers, empty for a class of the labels that was never discovered.
        into: the index of the class that a class was merged into, else its own.
    """

    names: list[str]
    numbers: list[str]
    into: list[int] = field(default_factory=list)

    def stored(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def read(cls, model: Path) -> Shown | None:
        """Return what is stored in the folder of a model, or None for a model of an earlier version."""
        if not (file := model / FILE).exists():
            return None
        found = read_object(file, "names", "numbers", "into")
        return cls(found["names"], found["numbers"], found["into"])


def spelling(name: str) -> str:
    """Return a name without differences of case and Unicode form."""
    return unicodedata.normalize("NFKC", name.casefold())


def is_number(name: str) -> bool:
    """Return whether a name looks like a public number, in any spelling."""
    return NUMBER.fullmatch(spelling(name)) is not None


def free_numbers(names: Iterable[str], used: Iterable[str] = ()) -> Iterable[str]:
    """Yield the public numbers after the used ones, in order, without those that are spelled like one of the names."""
    taken = {spelling(name) for name in names}
    last = max((int(found[1]) for name in used if (found := NUMBER.fullmatch(name))), default=0)
    return (name for number in count(last + 1) if spelling(name := f"new-{number}") not in taken)


def numbered(sizes: Sequence[int], names: Iterable[str], used: Iterable[str] = ()) -> list[str]:
    """Return a number for each class, from the largest to the smallest; see free_numbers."""
    order = np.argsort(-np.asarray(sizes, np.int64), kind="stable").tolist()
    of = dict(zip(order, free_numbers(names, used), strict=False))
    return [of[place] for place in range(len(sizes))]


def titled(name: str, number: str) -> str:
    """Return a class's name with its public number, if it has another name."""
    return f"{name} ({number})" if NUMBER.fullmatch(number) and number != name else name
