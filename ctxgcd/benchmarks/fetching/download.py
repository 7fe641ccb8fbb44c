"""Download one file: it goes on where it was cut, is checked, and appears only whole."""

from __future__ import annotations

import hashlib
import json
import os
import re
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from http.client import HTTPException
from pathlib import Path
from typing import Any
from urllib.error import HTTPError, URLError
from urllib.parse import quote
from urllib.request import Request, urlopen

from ctxgcd.errors import UserError
from ctxgcd.utils.files import on_disk, require_space, write_text
from ctxgcd.utils.progress import MB, Progress

# Our own, because pooch's and torchvision's downloaders begin a cut download again at its first byte.

MIRROR = "CTXGCD_MIRROR"
BLOCK = 1 << 18
LONGEST_PAUSE = 30.0  # seconds between two tries
BUSY = (408, 429, 500, 502, 503, 504)  # HTTP answers that another try may change


def mirrored(address: str) -> str:
    """Return where to take a file from: its address, or its name below the mirror that CTXGCD_MIRROR names.

    A mirror is the address (http, https or file) of a folder; spaces and the like may be written plainly.
    """
    mirror = os.environ.get(MIRROR, "").strip()
    if not mirror:
        return address
    if not mirror.lower().startswith(("http://", "https://", "file://")):
        raise UserError(
            f"{MIRROR} is {mirror!r}, expected the address of a folder, as http://..., https://... or file:///..."
        )
    return f"{quote(mirror.rstrip('/'), safe=':/%?#[]@!$&()*+,;=~')}/{address.rpartition('/')[2]}"


class _Failed(Exception):
    """One try brought no whole file; `hopeless` where the next one will hardly do better."""

    def __init__(self, reason: str, hopeless: bool = False) -> None:
        super().__init__(" ".join(reason.split()))  # one line, whatever a server says
        self.hopeless = hopeless


@dataclass(frozen=True)
class _Part:
    """The start of a download, and beside it a record of which version of which address it belongs to."""

    path: Path
    address: str

    @property
    def record(self) -> Path:
        return self.path.with_name(self.path.name + ".json")

    @property
    def size(self) -> int:
        return self.path.stat().st_size if self.path.exists() else 0

    def version(self) -> str | None:
        """Return the server's mark of the version, where it gave one."""
        return self._recorded().get("version")

    def drop_foreign(self) -> None:
        """Remove a part that another address, or nobody knows which, began."""
        if not self._recorded():
            self.remove()

    def _recorded(self) -> dict[str, Any]:
        try:
            record = json.loads(self.record.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return {}
        return record if isinstance(record, dict) and record.get("address") == self.address else {}

    def begin(self, version: str | None) -> None:
        """Make the part empty, then record its version: a kill in between leaves nothing to go on from."""
        with on_disk(self.path):
            self.path.write_bytes(b"")
            write_text(self.record, json.dumps({"address": self.address, "version": version}) + "\n")

    def remove(self) -> None:
        """Remove the part and its record."""
        with on_disk(self.path):
            self.path.unlink(missing_ok=True)
            self.record.unlink(missing_ok=True)


def download(
    address: str,
    to: Path,
    *,
    checksum: str,
    how_to_get: str,
    expected_bytes: int | None = None,
    retries: int = 5,
    stall: float = 30.0,
    pause: float = 1.0,
) -> None:
    """Download `address` to `to`, which appears only whole and checked; a former call's part is gone on with.

    Args:
        checksum: `ALGORITHM:HEX`, by the names of hashlib.
        how_to_get: another way, for the messages.
        expected_bytes: size of the right file; a server that announces another one is refused at once.
        retries: tries in a row that may bring nothing new after a connection is lost.
        stall: seconds without a byte after which a connection counts as lost.
        pause: seconds before the first of those tries; doubled for each further one.

    Raises:
        UserError: the file cannot be had, is not the right one, or cannot be written.
    """
    with _made(to.parent):
        _download(address, to, checksum, how_to_get, expected_bytes, retries, stall, pause)


@contextmanager
def _made(folder: Path) -> Iterator[None]:
    """Make a folder, and delete it and those made above it where they are left empty."""
    with on_disk(folder):
        new = [path for path in (folder, *folder.parents) if not path.exists()]
        folder.mkdir(parents=True, exist_ok=True)
    try:
        yield
    finally:
        with suppress(OSError):  # a folder that is not empty
            for path in new:
                path.rmdir()


def _download(
    address: str,
    to: Path,
    checksum: str,
    how_to_get: str,
    expected_bytes: int | None,
    retries: int,
    stall: float,
    pause: float,
) -> None:
    if to.is_file() and _checksum(to, checksum) == checksum:
        return
    part = _Part(to.with_name(to.name + ".part"), address)
    try:
        _receive_patiently(part, expected_bytes, retries, stall, pause)
    except _Failed as failure:
        kept = f"; {part.size / MB:,.1f} MB are kept, from where the same command goes on" if part.size else ""
        raise UserError(f"{address} cannot be fetched ({failure}){kept}; how to get it: {how_to_get}") from failure
    if (found := _checksum(part.path, checksum)) != checksum:
        part.remove()
        raise UserError(
            f"{address} gave a wrong file, now removed ({found}, expected {checksum}); "
            f"try again; how to get it: {how_to_get}"
        )
    with on_disk(to):
        os.replace(part.path, to)
        part.record.unlink(missing_ok=True)


def _checksum(path: Path, like: str) -> str:
    """Return the file's checksum by the algorithm of `like`."""
    algorithm = like.partition(":")[0]
    print(f"checking the {algorithm} of {path.name}", flush=True)
    with on_disk(path), open(path, "rb") as file:
        return f"{algorithm}:{hashlib.file_digest(file, algorithm).hexdigest()}"


def _receive_patiently(part: _Part, expected: int | None, retries: int, stall: float, pause: float) -> None:
    """Try until the part is whole; raises _Failed after `retries` tries in a row that brought nothing new."""
    part.drop_foreign()
    first = furthest = part.size
    failures = 0
    while True:
        try:
            return _receive(part, expected, stall)
        except _Failed as failure:
            # What is hopeless at first (no such host) is a broken network after bytes have come.
            if failure.hopeless and furthest == first == part.size:
                raise
            failures = 1 if part.size > furthest else failures + 1
            furthest = max(furthest, part.size)
            if failures > retries:
                raise
            wait = min(pause * 2 ** (failures - 1), LONGEST_PAUSE)
            print(f"  {failure}; {part.size / MB:,.1f} MB are here, next try in {wait:.0f} s", flush=True)
            time.sleep(wait)


def _receive(part: _Part, expected: int | None, stall: float) -> None:
    """Fetch in one connection what the part lacks; raises _Failed where the part is not whole then."""
    here = part.size
    response = _ask(part, here, expected, stall)
    if response is None:
        return
    with response:
        start, total = _start_and_total(response, part, here, expected)
        require_space(part.path.parent, (total or 0) - here, part.path.stem)
        if start == 0:
            part.begin(_version(response.headers))
        print(f"{'going on with' if start else 'fetching'} {part.address}", flush=True)
        _append(response, part.path, Progress(part.path.stem, total, "MB", start, MB))
    if total and part.size < total:
        raise _Failed("the connection was cut")


def _ask(part: _Part, here: int, expected: int | None, stall: float) -> Any:
    """Return the open answer for the bytes from `here` on, or None where there are none; raises _Failed."""
    # Bytes are stored as they come: Content-Encoding on a .tar.gz is most often a mere label of the file itself.
    headers = {"User-Agent": "ctxgcd", "Accept-Encoding": "identity"}
    if here:
        headers["Range"] = f"bytes={here}-"
        if version := part.version():
            headers["If-Range"] = version  # of another version the server then sends the whole file
    try:
        return urlopen(Request(part.address, headers=headers), timeout=stall)
    except HTTPError as error:
        error.close()
        if not (error.code == 416 and here):
            raise _Failed(f"HTTP {error.code} {error.reason}", hopeless=error.code not in BUSY) from error
        if (_span(error.headers)[1] or expected) in (here, None):  # None: the checksum will tell
            return None
        part.remove()
        raise _Failed("the file there is another one now") from error
    except (OSError, HTTPException, ValueError) as error:
        reason = error.reason if isinstance(error, URLError) else error
        lost = isinstance(reason, (TimeoutError, ConnectionResetError, ConnectionAbortedError, BrokenPipeError))
        raise _Failed(_words(reason), hopeless=not lost) from error


def _start_and_total(response: Any, part: _Part, here: int, expected: int | None) -> tuple[int, int | None]:
    """Return at which byte the answer starts and how many the file has; raises _Failed for a wrong answer."""
    start, total = 0, _length(response.headers)
    if response.status == 206:
        found, total = _span(response.headers)
        if found != here:
            part.remove()
            raise _Failed("the server sent another range than asked for")
        start = here
    if total and expected and total != expected:
        reason = f"it offers {total:,} bytes where the official file has {expected:,}; is it a login page?"
        raise _Failed(reason, hopeless=True)
    return start, total or expected


def _words(reason: object) -> str:
    """Return why a connection failed, in words."""
    if isinstance(reason, socket.gaierror):
        return f"the host was not found: {reason.strerror}; is there a network?"
    if isinstance(reason, TimeoutError):
        return "no answer in time"
    if isinstance(reason, OSError) and reason.strerror:
        return reason.strerror
    return str(reason) or type(reason).__name__


def _span(headers: Any) -> tuple[int | None, int | None]:
    """Return where a partial answer starts and the whole file's size, as far as Content-Range says."""
    match = re.fullmatch(r"bytes (?:(\d+)-\d+|\*)/(\d+|\*)", headers.get("Content-Range", "").strip())
    start, total = match.groups() if match else (None, None)
    return int(start) if start else None, int(total) if total and total != "*" else None


def _length(headers: Any) -> int | None:
    length = headers.get("Content-Length", "")
    return int(length) if length.isdecimal() else None


def _version(headers: Any) -> str | None:
    """Return what marks the file's version for If-Range, which takes no weak ETag."""
    tag = headers.get("ETag")
    return tag if tag and not tag.startswith("W/") else headers.get("Last-Modified")


def _append(response: Any, path: Path, progress: Progress) -> None:
    with on_disk(path), open(path, "ab") as file:
        for block in _blocks(response):
            file.write(block)
            progress.add(len(block))


def _blocks(response: Any) -> Iterator[bytes]:
    """Yield what arrives as it arrives; raises _Failed where the connection breaks."""
    try:
        while block := response.read1(BLOCK):
            yield block
    except (OSError, HTTPException) as error:
        raise _Failed(f"the connection broke: {_words(error)}") from error
