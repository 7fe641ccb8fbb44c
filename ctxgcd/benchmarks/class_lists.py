"""Which raw classes of a benchmark are old and which are new: versioned lists that need no data."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from ctxgcd.errors import UserError, nearest

FOLDER = Path(__file__).parent / "class_lists"


@dataclass(frozen=True)
class ClassList:
    """Old and new classes as raw 0-based ids, in the order that gives the class ids 0..k-1 (old, then new).

    `classes` is the size of the raw class index. `names`, where given, are the folder names of old + new:
    data in which a class has another name is refused.
    """

    name: str
    source: str
    classes: int
    old: tuple[int, ...]
    new: tuple[int, ...]
    names: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        listed = self.old + self.new
        if not self.old or not self.new:
            raise UserError(
                f"class list {self.name!r} has {len(self.old)} old and {len(self.new)} new classes, "
                "expected at least one of each; choose other classes"
            )
        if len(set(listed)) != len(listed) or not all(0 <= raw < self.classes for raw in listed):
            raise UserError(
                f"class list {self.name!r} repeats a class or leaves 0..{self.classes - 1}; "
                "list each raw class once, as old or as new"
            )

    @property
    def k(self) -> int:
        """Number of classes, old and new together."""
        return len(self.old) + len(self.new)

    @property
    def sha256(self) -> str:
        """Hash of old and new classes in their order, for the record of a split."""
        return hashlib.sha256(json.dumps([self.old, self.new]).encode()).hexdigest()

    def subset(self, classes: Sequence[int]) -> ClassList:
        """Keep only the given raw classes, in the order of this list."""
        kept = set(classes)
        if unknown := sorted(kept - set(self.old) - set(self.new)):
            raise UserError(f"class list {self.name!r} has no raw class {unknown[0]}; choose among its classes")
        names = dict(zip(self.old + self.new, self.names, strict=False))
        return replace(
            self,
            old=tuple(raw for raw in self.old if raw in kept),
            new=tuple(raw for raw in self.new if raw in kept),
            names=tuple(name for raw, name in names.items() if raw in kept),
        )


def load(name: str, classes: Literal["all"] | int | Sequence[int] = "all") -> ClassList:
    """Return a class list by name, or of it the first n or the given raw classes; UserError with the valid names."""
    path = FOLDER / f"{name}.json"
    valid = sorted(file.stem for file in FOLDER.glob("*.json"))
    if name not in valid:
        raise UserError(f"no class list {name!r}{nearest(name, valid)}; valid: {', '.join(valid)}")
    content: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    listed = ClassList(
        name=content["name"],
        source=content["source"],
        classes=content["classes"],
        old=tuple(content["old"]),
        new=tuple(content["new"]),
        names=tuple(content.get("names", ())),
    )
    if classes == "all":
        return listed
    return listed.subset(range(classes) if isinstance(classes, int) else classes)
