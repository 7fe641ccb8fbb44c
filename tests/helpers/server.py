"""A local server with configurable faults, and processes that download from it."""

from __future__ import annotations

import hashlib
import io
import socket
import struct
import subprocess
import sys
import tarfile
import time
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

import numpy as np

from tests.helpers.places import ROOT

CONTENT = np.random.RandomState(0).bytes(400_000)
ELSEWHERE = "ask the librarian"


def sha256(content: bytes) -> str:
    return f"sha256:{hashlib.sha256(content).hexdigest()}"


@dataclass
class Behaviour:
    """The file that the server offers and its faults; `log` and `given` record the requests and the bytes sent."""

    content: bytes = CONTENT
    etag: str | None = '"1"'
    ranges: bool = True
    statuses: list[int] = field(default_factory=list)  # of the next answers, instead of the file
    cuts: list[int] = field(default_factory=list)  # bytes of the next answers after which the connection ends
    reset: bool = False  # a cut is a reset, else a silent end
    hang: float = 0.0  # seconds before a cut
    piece: int = 1 << 16
    delay: float = 0.0  # seconds after each piece
    length: bool = True  # send Content-Length
    headers: dict[str, str] = field(default_factory=dict)  # over the usual ones; {start} is the range's start
    moved: str | None = None  # every path but this one redirects to it
    log: list[dict[str, str]] = field(default_factory=list)
    given: list[int] = field(default_factory=list)  # bytes of each answer
    address: str = ""

    @property
    def sent(self) -> int:
        return sum(self.given)

    @property
    def requested(self) -> list[str | None]:
        return [headers.get("Range") for headers in self.log]


class Handler(BaseHTTPRequestHandler):
    def log_message(self, *_: Any) -> None:
        pass

    def do_GET(self) -> None:
        b: Behaviour = self.server.behaviour  # type: ignore[attr-defined]
        b.log.append(dict(self.headers))
        b.given.append(0)
        if b.moved and self.path != b.moved:
            return self.answer(302, b"", {"Location": b.moved})
        if b.statuses:
            return self.answer(b.statuses.pop(0), b"sorry", {})
        start = 0
        byte_range = self.headers.get("Range")
        if byte_range and b.ranges and self.headers.get("If-Range") in (None, b.etag):
            start = int(byte_range.removeprefix("bytes=").removesuffix("-"))
            if start >= len(b.content):
                return self.answer(416, b"", {"Content-Range": f"bytes */{len(b.content)}"})
        headers = {"ETag": b.etag} if b.etag else {}
        if byte_range and start:
            headers["Content-Range"] = f"bytes {start}-{len(b.content) - 1}/{len(b.content)}"
        headers |= {name: value.format(start=start) for name, value in b.headers.items()}
        return self.answer(206 if start else 200, b.content[start:], headers)

    def answer(self, status: int, body: bytes, headers: dict[str, str]) -> None:
        b: Behaviour = self.server.behaviour  # type: ignore[attr-defined]
        number = len(b.given) - 1
        self.send_response(status)
        length = {"Content-Length": str(len(body))} if b.length else {}
        for name, value in (length | headers).items():
            self.send_header(name, value)
        self.end_headers()
        end = b.cuts.pop(0) if b.cuts and status in (200, 206) else len(body)
        try:
            for place in range(0, min(end, len(body)), b.piece):
                piece = body[place : min(place + b.piece, end)]
                b.given[number] += len(piece)  # before the client, which may end with this piece, has it
                self.wfile.write(piece)
                time.sleep(b.delay)
        except OSError:
            return  # the client was killed
        if end < len(body):
            time.sleep(b.hang)
            if b.reset:
                time.sleep(0.05)  # the sent bytes arrive first
                self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                self.connection.close()


def start(code: str) -> subprocess.Popen[str]:
    setup = "from pathlib import Path\n"
    setup += "".join(
        f"from ctxgcd.benchmarks.fetching.{name} import *\n" for name in ("download", "archives", "unpack")
    )
    return subprocess.Popen(
        [sys.executable, "-c", setup + code], cwd=ROOT, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )


def pack(path: Path, members: dict[str, bytes | tarfile.TarInfo]) -> Path:
    """Write a gzipped tar of files by name; a TarInfo is added as it is."""
    with tarfile.open(path, "w:gz") as tar:
        for name, content in members.items():
            info = content if isinstance(content, tarfile.TarInfo) else tarfile.TarInfo(name)
            info.name = name
            info.size = len(content) if isinstance(content, bytes) else 0
            tar.addfile(info, io.BytesIO(content) if isinstance(content, bytes) else None)
    return path


def tree(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}
