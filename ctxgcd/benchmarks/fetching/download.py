"""Resumable, verified and atomic download of one file."""

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

# This module exists because the downloaders of pooch and torchvision do not resume interrupted downloads.

MIRROR = "CTXGCD_MIRROR"
BLOCK = 1 << 18
LONGEST_PAUSE = 30.0  # seconds between two tries
BUSY = (408, 429, 500, 502, 503, 504)  # temporary HTTP errors, which are retried


def mirrored(address: str) -> str:
    """Return the URL of a file: its address, or its name below the mirror in CTXGCD_MIRROR.

    A mirror is the URL (http, https or file) of a folder; spaces and similar characters need no escapes.
    """
    mirror = os.environ.get(MIRROR, "").strip()
    if not mirror:
        return address
    if not mirror.lower().startswith(("http://", "https://", "file://")):
        raise UserError(
            f"{MIRROR} is {mirror!r}, but expected the URL of a folder, as http://..., https://... or file:///..."
        )
    return f"{quote(mirror.rstrip('/'), safe=':/%?#[]@!$&()*+,;=~')}/{address.rpartition('/')[2]}"


class _Failed(Exception):
    """An attempt did not complete the file; `hopeless` if a retry is unlikely to succeed."""

    def __init__(self, reason: str, hopeless: bool = False) -> None:
        super().__init__(" ".join(reason.split()))  # on one line
        self.hopeless = hopeless


@dataclass(frozen=True)
class _Part:
    """A partial download, with a record of its URL and version in a second file."""

    path: Path
    address: str

    @property
    def record(self) -> Path:
        return self.path.with_name(self.path.name + ".json")

    @property
    def size(self) -> int:
        return self.path.stat().st_size if self.path.exists() else 0

    def version(self) -> str | None:
        """Return the version given by the server, if any."""
        return self._recorded().get("version")

    def drop_foreign(self) -> None:
        """Remove a partial download of another or an unknown URL."""
        if not self._recorded():
            self.remove()

    def _recorded(self) -> dict[str, Any]:
        try:
            record = json.loads(self.record.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return {}
        return record if isinstance(record, dict) and record.get("address") == self.address else {}

    def begin(self, version: str | None) -> None:
        """Empty the part, then record its version, so that a kill in between leaves nothing to resume from."""
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
    """Download `address` to `to`, which is created only when complete and verified. An interrupted download is resumed.

    Args:
        checksum: `ALGORITHM:HEX`, with the names of hashlib.
        how_to_get: another way to get the file, for error messages.
        expected_bytes: size of the file; a server that announces another size is refused immediately.
        retries: maximum number of consecutive retries without new data after a connection is lost.
        stall: seconds without data after which a connection is considered lost.
        pause: seconds before the first retry; doubled for each further retry.

    Raises:
        UserError: the file cannot be downloaded, fails the verification, or cannot be written.
    """
    with _made(to.parent):
        _download(address, to, checksum, how_to_get, expected_bytes, retries, stall, pause)


@contextmanager
def _made(folder: Path) -> Iterator[None]:
    """Create a folder; at the end, delete it and its new parents if they are empty."""
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
        kept = f"; {part.size / MB:,.1f} MB are kept, and the same command resumes from there" if part.size else ""
        raise UserError(f"{address} cannot be downloaded ({failure}){kept}; how to get it: {how_to_get}") from failure
    if (found := _checksum(part.path, checksum)) != checksum:
        part.remove()
        raise UserError(
            f"the download of {address} has a wrong checksum and was removed ({found}, expected {checksum}); "
            f"try again; how to get it: {how_to_get}"
        )
    with on_disk(to):
        os.replace(part.path, to)
        part.record.unlink(missing_ok=True)


def _checksum(path: Path, like: str) -> str:
    """Return the file's checksum with the algorithm of `like`."""
    algorithm = like.partition(":")[0]
    print(f"verifying the {algorithm} checksum of {path.name}", flush=True)
    with on_disk(path), open(path, "rb") as file:
        return f"{algorithm}:{hashlib.file_digest(file, algorithm).hexdigest()}"


def _receive_patiently(part: _Part, expected: int | None, retries: int, stall: float, pause: float) -> None:
    """Download until the part is complete. Raises _Failed after `retries` consecutive retries without new data."""
    part.drop_foreign()
    first = furthest = part.size
    failures = 0
    while True:
        try:
            return _receive(part, expected, stall)
        except _Failed as failure:
            # An error that is hopeless at first (unknown host) is retried after some data was received.
            if failure.hopeless and furthest == first == part.size:
                raise
            failures = 1 if part.size > furthest else failures + 1
            furthest = max(furthest, part.size)
            if failures > retries:
                raise
            wait = min(pause * 2 ** (failures - 1), LONGEST_PAUSE)
            print(f"  {failure}; {part.size / MB:,.1f} MB received, next attempt in {wait:.0f} s", flush=True)
            time.sleep(wait)


def _receive(part: _Part, expected: int | None, stall: float) -> None:
    """Download the rest of the part in one connection. Raises _Failed if the part is still incomplete."""
    here = part.size
    response = _ask(part, here, expected, stall)
    if response is None:
        return
    with response:
        start, total = _start_and_total(response, part, here, expected)
        require_space(part.path.parent, (total or 0) - here, part.path.stem)
        if start == 0:
            part.begin(_version(response.headers))
        print(f"{'resuming' if start else 'downloading'} {part.address}", flush=True)
        _append(response, part.path, Progress(part.path.stem, total, "MB", start, MB))
    if total and part.size < total:
        raise _Failed("the connection was interrupted")


def _ask(part: _Part, here: int, expected: int | None, stall: float) -> Any:
    """Return the open response for the bytes from `here` on, or None if there are none. Raises _Failed."""
    # Bytes are stored unchanged: Content-Encoding of a .tar.gz usually describes the file itself.
    headers = {"User-Agent": "ctxgcd", "Accept-Encoding": "identity"}
    if here:
        headers["Range"] = f"bytes={here}-"
        if version := part.version():
            headers["If-Range"] = version  # the server sends the whole file if its version differs
    try:
        return urlopen(Request(part.address, headers=headers), timeout=stall)
    except HTTPError as error:
        error.close()
        if not (error.code == 416 and here):
            raise _Failed(f"HTTP {error.code} {error.reason}", hopeless=error.code not in BUSY) from error
        if (_span(error.headers)[1] or expected) in (here, None):  # None: the checksum decides
            return None
        part.remove()
        raise _Failed("the file on the server has changed") from error
    except (OSError, HTTPException, ValueError) as error:
        reason = error.reason if isinstance(error, URLError) else error
        lost = isinstance(reason, (TimeoutError, ConnectionResetError, ConnectionAbortedError, BrokenPipeError))
        raise _Failed(_words(reason), hopeless=not lost) from error


def _start_and_total(response: Any, part: _Part, here: int, expected: int | None) -> tuple[int, int | None]:
    """Return the first byte of the response and the size of the file. Raises _Failed for an invalid response."""
    start, total = 0, _length(response.headers)
    if response.status == 206:
        found, total = _span(response.headers)
        if found != here:
            part.remove()
            raise _Failed("the server sent a range other than the requested one")
        start = here
    if total and expected and total != expected:
        reason = f"the file has {total:,} bytes, but the official file has {expected:,}; it may be a login page"
        raise _Failed(reason, hopeless=True)
    return start, total or expected


def _words(reason: object) -> str:
    """Return the reason of a connection error."""
    if isinstance(reason, socket.gaierror):
        return f"the host was not found: {reason.strerror}; check the network connection"
    if isinstance(reason, TimeoutError):
        return "timeout"
    if isinstance(reason, OSError) and reason.strerror:
        return reason.strerror
    return str(reason) or type(reason).__name__


def _span(headers: Any) -> tuple[int | None, int | None]:
    """Return the first byte of a partial response and the size of the file, as far as Content-Range gives them."""
    match = re.fullmatch(r"bytes (?:(\d+)-\d+|\*)/(\d+|\*)", headers.get("Content-Range", "").strip())
    start, total = match.groups() if match else (None, None)
    return int(start) if start else None, int(total) if total and total != "*" else None


def _length(headers: Any) -> int | None:
    length = headers.get("Content-Length", "")
    return int(length) if length.isdecimal() else None


def _version(headers: Any) -> str | None:
    """Return the version of the file for If-Range, which does not accept weak ETags."""
    tag = headers.get("ETag")
    return tag if tag and not tag.startswith("W/") else headers.get("Last-Modified")


def _append(response: Any, path: Path, progress: Progress) -> None:
    with on_disk(path), open(path, "ab") as file:
        for block in _blocks(response):
            file.write(block)
            progress.add(len(block))


def _blocks(response: Any) -> Iterator[bytes]:
    """Yield data as it arrives. Raises _Failed if the connection is lost."""
    try:
        while block := response.read1(BLOCK):
            yield block
    except (OSError, HTTPException) as error:
        raise _Failed(f"the connection was lost: {_words(error)}") from error
