"""Versioned lists of the Old and New classes of benchmarks, which do not depend on the data."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from ctxgcd.errors import UserError, nearest

if TYPE_CHECKING:
    import pandas as pd

FOLDER = Path(__file__).parent / "class_lists"


@dataclass(frozen=True)
class ClassList:
    """Old and New classes as raw 0-based ids, in the order of the dense ids 0..K-1 (Old, then New).

    `classes` is the size of the raw class index. `names`, if given, are the folder names of old + new: data with other
    class names is refused. `left_out` are paths of images that the benchmark does not use.
    """

    name: str
    source: str
    classes: int
    old: tuple[int, ...]
    new: tuple[int, ...]
    names: tuple[str, ...] = ()
    left_out: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        listed = self.old + self.new
        if not self.old or not self.new:
            raise UserError(
                f"class list {self.name!r} has {len(self.old)} old and {len(self.new)} new classes, "
                "but expected at least one of each; choose other classes"
            )
        if len(set(listed)) != len(listed) or not all(0 <= raw < self.classes for raw in listed):
            raise UserError(
                f"class list {self.name!r} repeats a class or has one outside 0..{self.classes - 1}; "
                "list each raw class once, as old or as new"
            )

    @property
    def num_classes(self) -> int:
        """Return the number of classes, Old and New together."""
        return len(self.old) + len(self.new)

    @property
    def sha256(self) -> str:
        """Return a hash of the Old and New classes in order and of the images left out, recorded with a split."""
        content = [self.old, self.new, *([self.left_out] if self.left_out else [])]
        return hashlib.sha256(json.dumps(content).encode()).hexdigest()

    def used(self, manifest: pd.DataFrame) -> pd.DataFrame:
        """Return the rows of a manifest that belong to the benchmark: images of listed classes, none left out."""
        listed = manifest["class_id"].isin(self.old + self.new)
        return manifest[listed & ~manifest["path"].isin(self.left_out)]

    def subset(self, classes: Sequence[int]) -> ClassList:
        """Return a list with only the given raw classes, in the order of this list."""
        kept = set(classes)
        if unknown := sorted(kept - set(self.old) - set(self.new)):
            raise UserError(f"class list {self.name!r} has no raw class {unknown[0]}; choose from its classes")
        names = dict(zip(self.old + self.new, self.names, strict=False))
        return replace(
            self,
            old=tuple(raw for raw in self.old if raw in kept),
            new=tuple(raw for raw in self.new if raw in kept),
            names=tuple(name for raw, name in names.items() if raw in kept),
        )


def load(name: str, classes: Literal["all"] | int | Sequence[int] = "all") -> ClassList:
    """Return a class list by name, with all, the first n or the given raw classes.

    Raises UserError, with the valid names, for an unknown list.
    """
    path = FOLDER / f"{name}.json"
    valid = sorted(file.stem for file in FOLDER.glob("*.json"))
    if name not in valid:
        raise UserError(f"unknown class list {name!r}{nearest(name, valid)}; valid: {', '.join(valid)}")
    content: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    listed = ClassList(
        name=content["name"],
        source=content["source"],
        classes=content["classes"],
        old=tuple(content["old"]),
        new=tuple(content["new"]),
        names=tuple(content.get("names", ())),
        left_out=tuple(content.get("left_out", ())),
    )
    if classes == "all":
        return listed
    return listed.subset(range(classes) if isinstance(classes, int) else classes)
