"""The folder OUT of a discovery: which request it holds, and how the results of another one replace its results."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from ctxgcd.errors import UserError
from ctxgcd.utils.files import on_disk, read_object, require_space, require_writable, write_text

RECORD = "asked.json"  # in OUT/work: the request that OUT holds
MADE = ("place", "files", "facts", "code")  # keys of the record beside those of the request
MODEL = "model.pt"  # in OUT/model
OPTIONS = {"preset": "settings", "crop": "size"}  # of the command, where the request has another name for it
OPTIONS |= {key: key for key in ("images", "labels", "classes", "backbone", "weights", "seed")}
RESULTS = ("predictions.csv", "report.html", "unreadable.csv", f"model/{MODEL}", "model/params.yaml")


@dataclass(frozen=True)
class Output:
    """OUT, used by one request.

    What a request computes lies in OUT/work/images-*/features-*/run-*, folders named by their content, so those of
    several requests lie side by side. The record is that of the request which OUT holds; nothing of it is deleted
    before the results of another request are complete. These are written to OUT/work/new, which is renamed to
    OUT/work/complete: from then on they replace the old results, file by file, also in the next call where this one
    is killed. The record follows last.

    Attributes:
        out: the folder.
        asked: the request.
    """

    out: Path
    asked: Mapping[str, Any]

    @cached_property
    def work(self) -> Path:
        return self.out / "work"

    @cached_property
    def request(self) -> dict[str, Any]:
        """The request as the record keeps it."""
        kept: dict[str, Any] = json.loads(json.dumps(self.asked))
        return kept

    def check(self) -> None:
        """Refuse a folder that is not a discovery's, or that cannot be written; nothing is changed."""
        with on_disk(self.out):
            if self.out.exists() and not self.out.is_dir():
                raise UserError(f"{self.out} is a file; name a new or an empty folder with --out")
            if self.out.is_dir() and any(self.out.iterdir()) and not (self.work / RECORD).is_file():
                raise UserError(f"{self.out} holds other files; name a new or an empty folder with --out")
        require_writable(self.out / RESULTS[0])
        require_writable(self.work / RECORD)

    def claim(self) -> None:
        """Make a new folder that of this request."""
        if not (self.work / RECORD).is_file():
            write_text(self.work / RECORD, json.dumps(self.request, indent=1) + "\n")

    def begin(self) -> None:
        """Complete what a killed call was replacing, delete what it left, and tell where OUT holds another request.

        Only for the one process that owns OUT/work, as all that follows.
        """
        self._replace()
        self._delete_new()
        before = self._held()
        if self._is_own(before):
            return
        if not any(self.work.glob("images-*")):  # nothing was computed yet
            write_text(self.work / RECORD, json.dumps(self.request, indent=1) + "\n")
            return
        changed = [key for key in self.request if before.get(key) != self.request[key]]
        told = [OPTIONS[key] for key in changed if key in OPTIONS] or changed
        print(
            f"{self.out} holds a discovery with other {', '.join(told)}; it is kept until this one is complete",
            flush=True,
        )

    def folder(self, path: Path) -> Path:
        """Make a folder of OUT/work, and delete those beside it that neither this nor the held request uses."""
        held = self._held()
        with on_disk(path):
            path.mkdir(parents=True, exist_ok=True)
        if self._is_own(held):
            if "files" not in held:  # not complete yet, so the folders are recorded as they are made
                self._record(self.work / RECORD, path)
        elif "place" in held:
            _delete_others(path, self.work / held["place"])
        return path

    def require_space(self, needed: int, what: str) -> None:
        """Refuse to begin where `needed` bytes, beside all that OUT holds, are not free."""
        beside = "" if self._is_own(self._held()) else " beside the discovery that is kept there until then"
        require_space(self.out, needed, what + beside)

    def finished(self, place: Path, code: str) -> dict[str, Any] | None:
        """The facts of the results that OUT holds, where they are whole, this request's and made by this code.

        place, code: as of `replaced`.
        """
        held = self._held()
        if self._is_own(held) and (held.get("place"), held.get("code")) == (self._name(place), code):
            facts: dict[str, Any] | None = held.get("facts")
            return facts if all((self.out / name).is_file() for name in held["files"]) else None
        return None

    @contextmanager
    def replaced(self, place: Path, code: str) -> Iterator[tuple[Path, dict[str, Any]]]:
        """Give an empty folder to write RESULTS to, and put them in place of the old ones when all are written.

        With it comes an empty dict for what is to be told of them, in plain types.

        place: the innermost folder of OUT/work that they were made from.
        code: hash of the code that makes them.
        """
        new, facts = self.work / "new", dict[str, Any]()
        self._delete_new()
        with on_disk(new):
            (new / "model").mkdir(parents=True)
        try:
            yield new, facts
            files = [name for name in RESULTS if (new / name).exists()]
            self._record(new / RECORD, place, files=files, facts=facts, code=code)
            with on_disk(new):
                os.replace(new, self.work / "complete")
        finally:
            self._delete_new()
        self._replace()

    def _delete_new(self) -> None:
        with on_disk(new := self.work / "new"):
            if new.exists():
                shutil.rmtree(new)

    def _replace(self) -> None:
        """Put complete results in place of the old ones; each step may have been done by a call that was killed."""
        complete = self.work / "complete"
        if not complete.is_dir():
            return
        with on_disk(self.out):
            if (complete / RECORD).is_file():
                record = read_object(complete / RECORD, "place", "files")
                (self.out / "model").mkdir(exist_ok=True)
                for name in RESULTS:
                    if name not in record["files"]:
                        (self.out / name).unlink(missing_ok=True)
                    elif (complete / name).exists():
                        os.replace(complete / name, self.out / name)
                if record != self._held():  # else a request that is under way beside it loses nothing
                    place = self.work / record["place"]
                    for folder in (place, *place.parents)[: len(Path(record["place"]).parts)]:
                        _delete_others(folder, place)
                os.replace(complete / RECORD, self.work / RECORD)
            shutil.rmtree(complete)

    def _held(self) -> dict[str, Any]:
        """The record; empty where it is damaged."""
        try:
            return read_object(self.work / RECORD)
        except UserError:
            return {}

    def _is_own(self, record: Mapping[str, Any]) -> bool:
        return {key: value for key, value in record.items() if key not in MADE} == self.request

    def _name(self, place: Path) -> str:
        return place.relative_to(self.work).as_posix()

    def _record(self, file: Path, place: Path, **made: Any) -> None:
        content = {**self.request, "place": self._name(place), **made}
        write_text(file, json.dumps(content, indent=1) + "\n")


def _delete_others(folder: Path, kept: Path) -> None:
    """Delete what lies beside a folder and is of its kind, but for what `kept` is or lies in."""
    kind = folder.name.partition("-")[0]
    with on_disk(folder.parent):
        for other in folder.parent.glob(f"{kind}-*"):
            if other.is_dir() and other != folder and other not in (kept, *kept.parents):
                shutil.rmtree(other)
