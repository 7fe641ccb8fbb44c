"""The results in OUT with their corrections, read without torch."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from filelock import FileLock

from ctxgcd.discover import corrections
from ctxgcd.discover.classes import Classes
from ctxgcd.discover.corrections import Line, State
from ctxgcd.discover.found import FILE as FOUND
from ctxgcd.discover.found import classes_of
from ctxgcd.discover.output import CORRECTIONS, FROM_MODEL, LOCK, MADE, PREDICTIONS, Output, read_record
from ctxgcd.errors import UserError
from ctxgcd.utils.files import file_sha256, on_disk


@dataclass(frozen=True)
class Results:
    """Complete results in OUT.

    record: the content of OUT/asked.json.
    """

    out: Path
    record: dict[str, Any]

    @classmethod
    def there(cls, out: Path) -> Results | None:
        """Return the results in OUT that can be corrected, or None; completes a replacement that was killed."""
        with on_disk(out):
            if (out / "work" / "complete").is_dir():
                with FileLock(out / "work" / LOCK):
                    Output(out, {}).recover()
            record = read_record(out)
            return cls(out, record) if record.get("numbers") and (out / "model" / FOUND).is_file() else None

    @classmethod
    def of(cls, out: Path) -> Results:
        """Return the results in OUT. Raises UserError if there are none."""
        if found := cls.there(out):
            return found
        if "files" in read_record(out):
            raise UserError(
                f"{out} was written by an earlier version, without what corrections need; run `ctxgcd discover` with "
                "the same options again"
            )
        raise UserError(f"{out} contains no results of `ctxgcd discover`; give its --out")

    @property
    def asked(self) -> dict[str, Any]:
        """The request."""
        return {key: value for key, value in self.record.items() if key not in MADE}

    @property
    def output(self) -> Output:
        return Output(self.out, self.asked)

    @property
    def model(self) -> Path:
        return self.out / "model"

    @cached_property
    def classes(self) -> Classes:
        return Classes.of(self.record["numbers"])

    @cached_property
    def lines(self) -> list[Line]:
        """The lines of OUT/corrections.csv. Raises UserError if they cannot be read."""
        file = self.out / CORRECTIONS
        try:
            lines = [line for _, line in corrections.read(file)] if file.is_file() else []
            corrections.in_effect(lines)
        except UserError as error:
            raise UserError(
                f"{file}, to which corrections are added, was changed and cannot be read ({error}); restore it, or "
                "delete it to drop all corrections"
            ) from None
        return lines

    @cached_property
    def state(self) -> State:
        """What the corrections make of the classes."""
        return corrections.replayed(self.classes, self.lines)

    @property
    def continues(self) -> bool:
        """Whether a discovery in OUT continues from these results: they are corrected, or were continued before."""
        return FROM_MODEL in self.record or bool(corrections.in_effect(self.lines))

    @property
    def predicted(self) -> dict[str, str]:
        """Path -> class (key) by the model, of all images that can be corrected."""
        return {path: self.classes.keys[c] for path, c in classes_of(self.model).items()}

    @property
    def shown(self) -> dict[str, str]:
        """Path -> class (key) with corrections, of the images in predictions.csv."""
        state = self.state
        own = {path: state.label_of(path) or state.find(key) or key for path, key in self.predicted.items()}
        return {path: key for path, key in own.items() if path not in state.out}

    def refuse_ids(self, file: Path, labels: Mapping[str, str]) -> None:
        """Raise UserError if labels (path -> class) are the ids of the classes in predictions.csv instead of names."""
        ids = {key: str(number) for number, key in enumerate(self.state.keys(self.classes))}
        shown = self.shown
        pairs = [(labels[path], shown[path]) for path in labels if path in shown]
        if pairs and all(given == ids[key] != self.state.names[key] for given, key in pairs):
            raise UserError(
                f"{file} has the ids of the column class of {self.out / PREDICTIONS}, such as {pairs[0][0]}, which are "
                f"not labels; to correct the results, run `ctxgcd label {self.out}` with names"
            )

    @property
    def photos(self) -> Path:
        """The folder of the images."""
        return Path(os.path.normpath(self.out.resolve() / self.record["folder"]))

    def refuse_edited(self) -> None:
        """Raise UserError if predictions.csv was edited, because it would be overwritten."""
        file = self.out / PREDICTIONS
        if file.is_file() and file_sha256(file) != self.record["written"]:
            raise UserError(
                f"{file} was edited after it was written; take its changes in with `ctxgcd label {self.out} {file}`, "
                "or delete it to drop them"
            )
