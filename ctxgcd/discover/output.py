"""The output folder of a discovery, its recorded request, and atomic replacement of its results."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from ctxgcd.errors import UserError
from ctxgcd.utils.files import (
    file_sha256,
    on_disk,
    read_object,
    read_or_empty,
    require_space,
    require_writable,
    write_text,
)

RECORD = "asked.json"  # in OUT: the request whose results are in OUT; in OUT/work in version 0.1.0's first results
LOCK, OWNER = "lock", "owner"  # in OUT/work: the files of training.checkpoint.owned
# Keys of the record in addition to those of the request: where and how the results were made, the folder of the images
# relative to OUT, the classes with their numbers (classes.Classes), the digest of the corrections that the model was
# trained with, and the SHA-256 of predictions.csv as written.
MADE = ("place", "files", "facts", "code", "folder", "numbers", "taken", "written")
MODEL = "model.pt"  # in OUT/model
FROM_MODEL = "from_model"  # key of a request that continues from the model in OUT: the SHA-256 of its file
PREDICTIONS, REPORT, THROWN_OUT, CORRECTIONS = "predictions.csv", "report.html", "thrown_out.csv", "corrections.csv"
OPTIONS = {
    "crop": "size",
    "entropy_weight": "balance",
}  # names of command options that differ from those in the request
OPTIONS |= {key: key for key in ("images", "labels", "classes", "preset", "backbone", "weights", "seed")}
RESULTS = (
    *(PREDICTIONS, REPORT, "unreadable.csv", THROWN_OUT, CORRECTIONS),
    *(f"model/{name}" for name in (MODEL, "params.yaml", "classes.json", "found.npz")),
)


@dataclass(frozen=True)
class Output:
    """The folder OUT, used by one request.

    Intermediate results are in OUT/work/images-*/features-*/run-*, folders named by a hash of their content, so several
    requests can share them; OUT/work can be deleted between calls. The record describes the request whose results are
    in OUT; its files are deleted only when the results of another request are complete. New results are written to
    OUT/work/new, which is renamed to OUT/work/complete. Then they replace the old results file by file, and the record
    is replaced last. If the process is killed, the next call completes the replacement.

    Attributes:
        out: the folder.
        values: the request.
    """

    out: Path
    values: Mapping[str, Any]

    @cached_property
    def work(self) -> Path:
        return self.out / "work"

    @cached_property
    def request(self) -> dict[str, Any]:
        """The request as stored in the record."""
        kept: dict[str, Any] = json.loads(json.dumps(self.values))
        return kept

    def check(self) -> None:
        """Raise UserError for a folder with other files, or one that is not writable. Changes nothing."""
        with on_disk(self.out):
            if self.out.exists() and not self.out.is_dir():
                raise UserError(f"{self.out} is a file; give a new or empty folder with --out")
            if self.out.is_dir() and any(self.out.iterdir()) and not _record_of(self.out).is_file():
                raise UserError(f"{self.out} contains other files; give a new or empty folder with --out")
        require_writable(self.out / RESULTS[0])
        require_writable(self.work / LOCK)

    def claim(self) -> list[Path]:
        """Record this request in a new folder; return the folders that were created, the innermost first."""
        absent = [folder for folder in (self.work, *self.work.parents) if not folder.exists()]
        self.work.mkdir(parents=True, exist_ok=True)
        if (self.work / RECORD).is_file() and not (self.out / RECORD).is_file():  # of an earlier version
            os.replace(self.work / RECORD, self.out / RECORD)
        if not (self.out / RECORD).is_file():
            write_text(self.out / RECORD, json.dumps(self.request, indent=1) + "\n")
        return absent

    def begin(self) -> None:
        """Complete a replacement that was killed, delete incomplete files, and report if OUT has another request.

        Only the process that owns OUT/work may call this and the following methods.
        """
        self.recover()
        before = self._held()
        if self._is_own(before) or FROM_MODEL in self.request:
            return
        if self._is_unused():
            write_text(self.out / RECORD, json.dumps(self.request, indent=1) + "\n")
            return
        changed = [key for key in self.request if before.get(key) != self.request[key]]
        names = [OPTIONS[key] for key in changed if key in OPTIONS] or changed
        print(
            f"{self.out} contains a discovery with different {', '.join(names)}; it is kept until this one is complete",
            flush=True,
        )

    def recover(self) -> None:
        """Complete a replacement that was killed, and delete incomplete files."""
        self._replace()
        self._delete_new()

    @contextmanager
    def undone_if_refused(self, created: Sequence[Path]) -> Iterator[None]:
        """Delete what `claim` created if the block raises UserError before anything is computed.

        Only the process that owns OUT/work may use it.
        """
        try:
            yield
        except UserError:
            if self._is_unused():
                with suppress(OSError):
                    for file in (self.out / RECORD, self.work / LOCK, self.work / OWNER):
                        file.unlink(missing_ok=True)
                    for folder in created:
                        folder.rmdir()
            raise

    def folder(self, path: Path) -> Path:
        """Create a folder in OUT/work, and delete similar folders that neither this nor the recorded request uses."""
        held = self._held()
        with on_disk(path):
            path.mkdir(parents=True, exist_ok=True)
        if self._is_own(held):
            if "files" not in held:  # not complete yet, so the folders are recorded as they are made
                self._record(self.out / RECORD, {**self.request, "place": self._name(path)})
        elif "place" in held:
            _delete_others(path, self.work / held["place"])
        return path

    def require_space(self, needed: int, what: str) -> None:
        """Raise UserError if fewer than `needed` bytes are free."""
        more = "" if self._is_own(self._held()) else " in addition to the discovery that is kept there until then"
        require_space(self.out, needed, what + more)

    def finished(self, code: str, place: Path | None = None) -> dict[str, Any] | None:
        """Return the facts of the results in OUT if they are complete and match this request and this code, else None.

        place, code: see `replaced`. Without a place, results whose place in OUT/work is there do not count, because it
        has to be compared.
        """
        held = self._held()
        if "files" not in held or not self._is_own(held):
            return None
        if not all((self.out / name).is_file() for name in held["files"]):
            return None
        there = self.work / held["place"]
        if held["code"] != code or (there.exists() if place is None else there != place):
            return None
        facts: dict[str, Any] = held["facts"]
        return facts

    @contextmanager
    def replaced(
        self, place: Path, code: str, kept: Sequence[str] = (), **made: Any
    ) -> Iterator[tuple[Path, dict[str, Any]]]:
        """Yield an empty folder for RESULTS, which replace the old ones when the block ends, and a dict for facts.

        place: the innermost folder of OUT/work from which the results are made.
        code: hash of the code that makes the results.
        kept: old files that stay.
        made: further keys of the record.
        """
        facts = dict[str, Any]()
        with self._exchanged(kept) as (new, files):
            yield new, facts
            about = {"place": self._name(place), "facts": facts, "code": code, **made}
            self._record(new / RECORD, {**self.request, **about}, files())

    @contextmanager
    def changed(self) -> Iterator[tuple[Path, dict[str, Any]]]:
        """Yield an empty folder for some of RESULTS, which replace the old ones when the block ends, and the record."""
        record = self._held()
        with self._exchanged([name for name in record["files"] if name != THROWN_OUT]) as (new, files):
            yield new, record
            self._record(new / RECORD, record, files())

    @contextmanager
    def _exchanged(self, kept: Sequence[str]) -> Iterator[tuple[Path, Callable[[], list[str]]]]:
        """Yield an empty folder, whose files replace those of OUT when the block ends, and what lists all files then.

        kept: files of OUT that stay if the folder does not have them.
        """
        new = self.work / "new"
        self._delete_new()
        with on_disk(new):
            (new / "model").mkdir(parents=True)
        try:
            there = {name for name in kept if (self.out / name).exists()}
            yield new, lambda: [name for name in RESULTS if (new / name).exists() or name in there]
            with on_disk(new):
                os.replace(new, self.work / "complete")
        finally:
            self._delete_new()
        self._replace()

    def _is_unused(self) -> bool:
        """Return whether nothing was computed in OUT/work yet."""
        return not any(self.work.glob("images-*")) and "files" not in self._held()

    def _delete_new(self) -> None:
        with on_disk(new := self.work / "new"):
            if new.exists():
                shutil.rmtree(new)

    def _replace(self) -> None:
        """Replace the old results with the complete new ones; a killed call may have done some of the steps."""
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
                if record["place"] != self._held().get("place"):  # else keep the folders of a request in progress
                    place = self.work / record["place"]
                    for folder in (place, *place.parents)[: len(Path(record["place"]).parts)]:
                        _delete_others(folder, place)
                os.replace(complete / RECORD, self.out / RECORD)
            shutil.rmtree(complete)

    def _held(self) -> dict[str, Any]:
        return read_record(self.out)

    def _is_own(self, record: Mapping[str, Any]) -> bool:
        return {key: value for key, value in record.items() if key not in MADE} == self.request

    def _name(self, place: Path) -> str:
        return place.relative_to(self.work).as_posix()

    def _record(self, file: Path, content: Mapping[str, Any], files: Sequence[str] | None = None) -> None:
        """Write a record; files: the results, if they are complete."""
        done = {} if files is None else {"files": files, "written": self._written(file.parent)}
        write_text(file, json.dumps({**content, **done}, indent=1) + "\n")

    def _written(self, new: Path) -> str | None:
        """Return the SHA-256 of predictions.csv in a folder of new results, else that of the old one as written."""
        if (file := new / PREDICTIONS).exists():
            return file_sha256(file)
        written: str | None = self._held().get("written")
        return written


def read_record(out: Path) -> dict[str, Any]:
    """Return the record in OUT, or in OUT/work as in earlier versions; empty if there is none or it is damaged."""
    record = read_or_empty(_record_of(out))
    if tried := record.get("facts", {}).get("tried"):  # the keys of a JSON object are texts
        record["facts"]["tried"] = {int(classes): accuracy for classes, accuracy in tried.items()}
    return record


def _record_of(out: Path) -> Path:
    return next((file for file in (out / RECORD, out / "work" / RECORD) if file.is_file()), out / RECORD)


def _delete_others(folder: Path, kept: Path) -> None:
    """Delete folders of the same kind next to a folder, except `kept` and its parents."""
    kind = folder.name.partition("-")[0]
    with on_disk(folder.parent):
        for other in folder.parent.glob(f"{kind}-*"):
            if other.is_dir() and other != folder and other not in (kept, *kept.parents):
                shutil.rmtree(other)
