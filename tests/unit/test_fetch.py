"""Fetching archives from a real local server that misbehaves, and unpacking archives that mean harm."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import os
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tarfile
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from filelock import FileLock

from ctxgcd.benchmarks.fetching import unpack as unpacking
from ctxgcd.benchmarks.fetching.archives import ARCHIVES, fetch
from ctxgcd.benchmarks.fetching.download import download
from ctxgcd.benchmarks.fetching.unpack import unpack
from ctxgcd.benchmarks.readers.registry import SOURCES
from ctxgcd.errors import UserError
from ctxgcd.utils import progress
from tests.fixtures import write_fixture

ROOT = Path(__file__).parents[2]
CONTENT = np.random.RandomState(0).bytes(400_000)
ELSEWHERE = "ask the librarian"


def sha256(content: bytes) -> str:
    return f"sha256:{hashlib.sha256(content).hexdigest()}"


@dataclass
class Behaviour:
    """What the server offers and how it fails; `log` and `given` tell what was asked for and sent."""

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
    def asked(self) -> list[str | None]:
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
        asked = self.headers.get("Range")
        if asked and b.ranges and self.headers.get("If-Range") in (None, b.etag):
            start = int(asked.removeprefix("bytes=").removesuffix("-"))
            if start >= len(b.content):
                return self.answer(416, b"", {"Content-Range": f"bytes */{len(b.content)}"})
        headers = {"ETag": b.etag} if b.etag else {}
        if asked and start:
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
                time.sleep(0.05)  # what was sent arrives first
                self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                self.connection.close()


@pytest.fixture(autouse=True)
def no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("no_proxy", "*")


@pytest.fixture
def server() -> Iterator[Behaviour]:
    """A server on a free port of this machine, whose behaviour a test sets."""
    behaviour = Behaviour()
    http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    http.behaviour = behaviour  # type: ignore[attr-defined]
    behaviour.address = f"http://127.0.0.1:{http.server_port}"
    thread = threading.Thread(target=http.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    yield behaviour
    http.shutdown()
    http.server_close()
    thread.join()


def get(server: Behaviour, folder: Path, **options: Any) -> bytes:
    """Download the server's file into `folder` with short waits; afterwards nothing else may lie there."""
    options = {"checksum": sha256(CONTENT), "stall": 20, "pause": 0.01} | options
    download(f"{server.address}/a.tgz", folder / "a.tgz", how_to_get=ELSEWHERE, **options)
    assert [path.name for path in folder.iterdir()] == ["a.tgz"]
    return (folder / "a.tgz").read_bytes()


def refused(server: Behaviour, folder: Path, **options: Any) -> str:
    """Return the one sentence of a download that cannot succeed."""
    with pytest.raises(UserError) as caught:
        get(server, folder, **options)
    sentence = str(caught.value)
    assert "\n" not in sentence
    assert not (folder / "a.tgz").exists()
    return sentence


def part(folder: Path) -> Path:
    return folder / "a.tgz.part"


def know(server: Behaviour, folder: Path) -> None:
    """Record that the part is of the server's present file."""
    record = {"address": f"{server.address}/a.tgz", "version": server.etag}
    part(folder).with_name("a.tgz.part.json").write_text(json.dumps(record))


def test_plain_download(server: Behaviour, tmp_path: Path) -> None:
    assert get(server, tmp_path / "new" / "folder", expected_bytes=len(CONTENT)) == CONTENT
    assert server.asked == [None]
    assert get(server, tmp_path / "new" / "folder") == CONTENT
    assert server.asked == [None]  # the checked file is there


def test_a_download_that_fails_leaves_no_empty_folder(server: Behaviour, tmp_path: Path) -> None:
    server.statuses = [404]
    assert "HTTP 404" in refused(server, tmp_path / "new" / "folder")
    assert list(tmp_path.iterdir()) == []
    assert "has a wrong checksum and was removed" in refused(
        server, tmp_path / "new" / "folder", checksum=sha256(b"other")
    )
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "old").mkdir()
    server.statuses = [404]
    refused(server, tmp_path / "old")
    assert list(tmp_path.iterdir()) == [tmp_path / "old"]


def test_slow_server_and_progress(
    server: Behaviour, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    server.piece, server.delay = 20_000, 0.02
    monkeypatch.setattr(progress, "EVERY", 0.1)
    assert get(server, tmp_path) == CONTENT
    lines = [line for line in capsys.readouterr().out.splitlines() if "MB/s" in line]
    assert 2 <= len(lines) < 20  # as many as pieces, were each one told
    assert "of 0.4 MB, " in lines[0]
    assert lines[0].endswith(" left")


def test_cut_connections_go_on_where_they_stopped(server: Behaviour, tmp_path: Path) -> None:
    server.cuts = [100_000, 50_000, 0, 120_000]
    assert get(server, tmp_path) == CONTENT
    assert server.asked == [None, "bytes=100000-", "bytes=150000-", "bytes=150000-", "bytes=270000-"]
    assert server.sent == len(CONTENT)
    assert server.log[1]["If-Range"] == '"1"'


def test_reset_connections(server: Behaviour, tmp_path: Path) -> None:
    server.cuts, server.reset = [100_000, 50_000, 120_000], True
    assert get(server, tmp_path) == CONTENT
    assert server.asked[0] is None
    assert len(server.asked) == 4


def test_more_cuts_than_retries_as_long_as_bytes_come(server: Behaviour, tmp_path: Path) -> None:
    server.cuts = [30_000] * 10
    assert get(server, tmp_path, retries=1) == CONTENT


def test_stalled_connection(server: Behaviour, tmp_path: Path) -> None:
    server.cuts, server.hang = [100_000], 9.0
    before = time.monotonic()
    assert get(server, tmp_path, stall=0.5) == CONTENT
    assert time.monotonic() - before < 8
    assert server.asked == [None, "bytes=100000-"]


def test_server_that_ignores_ranges(server: Behaviour, tmp_path: Path) -> None:
    server.ranges, server.cuts = False, [100_000, 200_000]
    assert get(server, tmp_path) == CONTENT
    assert server.sent == 300_000 + len(CONTENT)


def test_server_that_ignores_ranges_and_is_always_cut(server: Behaviour, tmp_path: Path) -> None:
    server.ranges, server.cuts = False, [100_000] * 50
    sentence = refused(server, tmp_path, retries=2)
    assert "(the connection was interrupted); 0.1 MB are kept" in sentence
    assert len(server.log) == 3
    assert part(tmp_path).stat().st_size == 100_000


@pytest.mark.parametrize("etag", ['"2"', 'W/"2"'])
def test_changed_file_is_not_appended(server: Behaviour, tmp_path: Path, etag: str) -> None:
    server.content, server.cuts = b"x" * len(CONTENT), [100_000] + [0] * 9
    refused(server, tmp_path, retries=1)
    assert part(tmp_path).read_bytes() == b"x" * 100_000
    server.content, server.etag, server.cuts = CONTENT, etag, []
    assert get(server, tmp_path) == CONTENT


def test_unmarked_change_is_found_by_the_checksum(server: Behaviour, tmp_path: Path) -> None:
    server.content, server.etag, server.cuts = b"x" * len(CONTENT), None, [100_000] + [0] * 9
    refused(server, tmp_path, retries=1)
    server.content, server.cuts = CONTENT, []
    assert "has a wrong checksum and was removed" in refused(server, tmp_path)
    assert get(server, tmp_path) == CONTENT


@pytest.mark.parametrize("record", ["gone", "broken", "foreign"])
def test_part_of_unknown_origin_is_dropped(server: Behaviour, tmp_path: Path, record: str) -> None:
    part(tmp_path).write_bytes(b"x" * 1000)
    if record != "gone":
        text = "{" if record == "broken" else '{"address": "http://other/a.tgz", "version": null}'
        (tmp_path / "a.tgz.part.json").write_text(text)
    assert get(server, tmp_path) == CONTENT
    assert server.asked == [None]


@pytest.mark.parametrize(("kept", "asked"), [(len(CONTENT), 1), (len(CONTENT) + 5, 2)])
def test_part_that_is_whole_or_too_long(server: Behaviour, tmp_path: Path, kept: int, asked: int) -> None:
    part(tmp_path).write_bytes((CONTENT + b"extra")[:kept])
    know(server, tmp_path)
    assert get(server, tmp_path) == CONTENT
    assert len(server.log) == asked
    assert server.given[-1] == (0 if asked == 1 else len(CONTENT))


def test_wrong_file_is_removed(server: Behaviour, tmp_path: Path) -> None:
    server.content = CONTENT[::-1]
    sentence = refused(server, tmp_path)
    for words in (f"{server.address}/a.tgz", sha256(CONTENT), sha256(CONTENT[::-1]), ELSEWHERE):
        assert words in sentence
    assert list(tmp_path.iterdir()) == []


def test_md5(server: Behaviour, tmp_path: Path) -> None:
    assert get(server, tmp_path, checksum=f"md5:{hashlib.md5(CONTENT).hexdigest()}") == CONTENT


def test_login_page_is_not_taken_for_the_file(server: Behaviour, tmp_path: Path) -> None:
    server.cuts = [100_000] + [0] * 9
    refused(server, tmp_path, retries=1, expected_bytes=len(CONTENT))
    server.content, server.etag, server.cuts = b"<html>please log in", None, []
    server.ranges = False
    sentence = refused(server, tmp_path, expected_bytes=len(CONTENT))
    assert "the file has 19 bytes, but the official file has 400,000" in sentence
    assert part(tmp_path).stat().st_size == 100_000  # what came before stays


def test_missing_file_is_told_at_once(server: Behaviour, tmp_path: Path) -> None:
    server.statuses = [404] * 9
    sentence = refused(server, tmp_path)
    assert sentence == f"{server.address}/a.tgz cannot be downloaded (HTTP 404 Not Found); how to get it: {ELSEWHERE}"
    assert len(server.log) == 1


def test_busy_server(server: Behaviour, tmp_path: Path) -> None:
    server.statuses = [503, 503]
    assert get(server, tmp_path) == CONTENT
    server.statuses = [503] * 9
    (tmp_path / "a.tgz").unlink()
    assert "HTTP 503" in refused(server, tmp_path, retries=2)
    assert len(server.statuses) == 6


@pytest.mark.parametrize("address", ["closed", "http://no-such-host.invalid", "http://127.0.0.1:port", "gopher://x"])
def test_no_way_to_the_server(tmp_path: Path, address: str, capsys: pytest.CaptureFixture[str]) -> None:
    if address == "closed":
        with socket.create_server(("127.0.0.1", 0)) as free:
            address = f"http://127.0.0.1:{free.getsockname()[1]}"
    sentence = refused(Behaviour(address=address), tmp_path)
    assert sentence.startswith(f"{address}/a.tgz cannot be downloaded (")
    assert sentence.endswith(f"how to get it: {ELSEWHERE}")
    assert "next try" not in capsys.readouterr().out


def test_server_that_announces_more_than_it_sends(server: Behaviour, tmp_path: Path) -> None:
    server.headers, server.ranges = {"Content-Length": "400001"}, False
    assert "(the connection was interrupted); 0.4 MB are kept" in refused(server, tmp_path, retries=1)


def test_server_that_announces_no_length(server: Behaviour, tmp_path: Path) -> None:
    server.length, server.cuts = False, [100_000]
    assert get(server, tmp_path, expected_bytes=len(CONTENT)) == CONTENT
    assert server.asked == [None, "bytes=100000-"]


@pytest.mark.parametrize("value", ["bytes 0-399999/400000", "bytes 7-9/*", "nonsense", "bytes */400000"])
def test_odd_range_starts_again(server: Behaviour, tmp_path: Path, value: str) -> None:
    server.cuts, server.headers = [100_000], {"Content-Range": value}
    assert get(server, tmp_path) == CONTENT
    assert server.asked == [None, "bytes=100000-", None]


def test_range_of_unknown_total(server: Behaviour, tmp_path: Path) -> None:
    server.cuts, server.headers = [100_000, 50_000], {"Content-Range": "bytes {start}-399999/*"}
    assert get(server, tmp_path, expected_bytes=len(CONTENT)) == CONTENT
    assert server.sent == len(CONTENT)


def test_encoding_label_is_no_encoding(server: Behaviour, tmp_path: Path) -> None:
    server.headers = {"Content-Encoding": "x-gzip"}
    assert get(server, tmp_path) == CONTENT
    assert server.log[0]["Accept-Encoding"] == "identity"


def test_endless_redirect_is_one_sentence(server: Behaviour, tmp_path: Path) -> None:
    server.moved = "/a.tgz#again"  # which no path that is asked for equals
    assert "(HTTP 302 " in refused(server, tmp_path, retries=1)


def test_redirect_keeps_the_range(server: Behaviour, tmp_path: Path) -> None:
    server.moved, server.cuts = "/elsewhere/b.tgz", [100_000]
    assert get(server, tmp_path) == CONTENT
    assert server.asked == [None, None, "bytes=100000-", "bytes=100000-"]


def test_full_disk_keeps_the_part(server: Behaviour, tmp_path: Path) -> None:
    if not Path("/dev/full").exists():
        pytest.skip("needs /dev/full, the device that is always full")
    part(tmp_path).symlink_to("/dev/full")
    know(server, tmp_path)
    sentence = refused(server, tmp_path)
    assert "cannot be read or written (No space left on device); the disk is full: free space" in sentence
    assert part(tmp_path).is_symlink()
    assert len(server.log) == 1


def test_too_small_a_disk_is_told_before_anything_is_written(
    server: Behaviour, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    free = shutil.disk_usage(tmp_path)._replace(free=399_999)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: free)
    assert "0 MB free, but a.tgz needs 0 MB more" in refused(server, tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_folder_that_is_a_file(server: Behaviour, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(UserError, match=r"file cannot be read or written \(File exists\)"):
        get(server, tmp_path / "file")


def start(code: str) -> subprocess.Popen[str]:
    setup = "from pathlib import Path\n"
    setup += "".join(f"from ctxgcd.benchmarks.{name} import *\n" for name in ("download", "fetch", "unpack"))
    return subprocess.Popen(
        [sys.executable, "-c", setup + code], cwd=ROOT, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )


def wait_for(condition: Any, seconds: float = 20.0) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.01)


def test_killed_download_fetches_nothing_twice(server: Behaviour, tmp_path: Path) -> None:
    server.piece, server.delay = 10_000, 0.02
    process = start(
        f"download('{server.address}/a.tgz', Path('{tmp_path}/a.tgz'), checksum='{sha256(CONTENT)}', how_to_get='')"
    )
    with process:
        wait_for(lambda: part(tmp_path).exists() and part(tmp_path).stat().st_size > 150_000)
        process.kill()
    assert process.returncode == -signal.SIGKILL
    kept = part(tmp_path).stat().st_size
    assert 150_000 < kept < len(CONTENT)
    server.delay = 0.0
    assert get(server, tmp_path) == CONTENT
    assert server.asked == [None, f"bytes={kept}-"]
    assert server.given[1] == len(CONTENT) - kept


# --- unpack


def pack(path: Path, members: dict[str, bytes | tarfile.TarInfo]) -> Path:
    """Write a gzipped tar of files by name; a TarInfo is added as it is."""
    with tarfile.open(path, "w:gz") as tar:
        for name, content in members.items():
            info = content if isinstance(content, tarfile.TarInfo) else tarfile.TarInfo(name)
            info.name = name
            info.size = len(content) if isinstance(content, bytes) else 0
            tar.addfile(info, io.BytesIO(content) if isinstance(content, bytes) else None)
    return path


def special(kind: bytes, target: str = "") -> tarfile.TarInfo:
    info = tarfile.TarInfo()
    info.type, info.linkname = kind, target
    return info


def tree(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_unpack_with_strip(tmp_path: Path) -> None:
    members = {"top": special(tarfile.DIRTYPE), "./top/data/a": b"1", "top/data/b": b"2", "top/c": b"", "top.txt": b"3"}
    archive = pack(tmp_path / "a.tgz", members)
    unpack(archive, tmp_path / "plain")
    assert tree(tmp_path / "plain") == {"top/data/a": b"1", "top/data/b": b"2", "top/c": b"", "top.txt": b"3"}
    unpack(archive, tmp_path / "stripped", strip=1)
    assert tree(tmp_path / "stripped") == {"data/a": b"1", "data/b": b"2", "c": b""}


HARMFUL: dict[str, bytes | tarfile.TarInfo] = {
    "../x": b"x",
    "data/../../x": b"x",
    "/tmp/x": b"x",
    "symbolic": special(tarfile.SYMTYPE, "/etc/passwd"),
    "inner": special(tarfile.SYMTYPE, "first"),
    "hard": special(tarfile.LNKTYPE, "first"),
    "device": special(tarfile.CHRTYPE),
    "disk": special(tarfile.BLKTYPE),
    "pipe": special(tarfile.FIFOTYPE),
    "unknown": special(b"Z"),
}


@pytest.mark.parametrize("name", HARMFUL)
@pytest.mark.parametrize("strip", [0, 1])
def test_harmful_members_stop_everything(tmp_path: Path, name: str, strip: int) -> None:
    archive = pack(tmp_path / "a.tgz", {"first": b"1", name: HARMFUL[name]})
    folder = tmp_path / "outer" / "folder"
    folder.mkdir(parents=True)
    with pytest.raises(UserError, match=f"not safe to unpack, because its member '{name}' .*nothing was unpacked"):
        unpack(archive, folder, strip=strip)
    assert list((tmp_path / "outer").rglob("*")) == [folder]


def test_no_owner_mode_or_setuid_is_taken_over(tmp_path: Path) -> None:
    info = tarfile.TarInfo()
    info.mode, info.uid = 0o6777, 12345
    folder = tarfile.TarInfo()
    folder.type, folder.mode = tarfile.DIRTYPE, 0o000
    unpack(pack(tmp_path / "a.tgz", {"closed": folder, "closed/inside": b"1", "program": info}), tmp_path)
    assert (tmp_path / "closed" / "inside").read_bytes() == b"1"
    assert (tmp_path / "program").stat().st_mode & 0o7111 == 0
    assert (tmp_path / "program").stat().st_uid == os.getuid()


@pytest.mark.parametrize("damage", ["cut", "flipped", "text", "empty", "last bytes"])
def test_damaged_archive(tmp_path: Path, damage: str) -> None:
    archive = pack(tmp_path / "a.tgz", {"a/1": CONTENT, "a/2": CONTENT})
    content = bytearray(archive.read_bytes())
    if damage == "flipped":
        content[len(content) // 2] ^= 1
    elif damage == "last bytes":
        content[-6] ^= 1
    else:
        content = bytearray({"cut": content[:300_000], "text": b"no archive", "empty": b""}[damage])
    archive.write_bytes(content)
    with pytest.raises(UserError, match=r"a\.tgz is damaged \(.+\); delete it and download it again$") as caught:
        unpack(archive, tmp_path / "folder")
    assert "\n" not in str(caught.value)
    assert tree(tmp_path / "folder") == {}


def test_archive_with_a_bad_header_in_its_middle(tmp_path: Path) -> None:
    archive = pack(tmp_path / "a.tgz", {"a/1": b"1", "a/2": b"2"})
    content = gzip.decompress(archive.read_bytes())
    archive.write_bytes(gzip.compress(content.replace(b"a/2", b"a/3")))  # the header's checksum is wrong now
    with pytest.raises(UserError, match=r"a\.tgz is damaged \(bad header\)"):
        unpack(archive, tmp_path / "folder")
    assert not (tmp_path / "folder").exists()


def test_former_entries_are_replaced_whole_and_others_stay(tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    for name in ("data/old", "other/mine", ".a.tgz.unpacking/new/half"):
        (folder / name).parent.mkdir(parents=True)
        (folder / name).write_bytes(b"0")
    (folder / "link").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "elsewhere").mkdir()
    unpack(pack(tmp_path / "a.tgz", {"data/new": b"1", "link": b"2"}), folder)
    assert tree(folder) == {"data/new": b"1", "link": b"2", "other/mine": b"0"}
    assert list((tmp_path / "elsewhere").iterdir()) == []
    assert not (folder / ".a.tgz.unpacking").exists()


def test_stopped_unpacking_leaves_the_former_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "folder"
    (folder / "data").mkdir(parents=True)
    (folder / "data" / "1").write_bytes(b"old")
    archive = pack(tmp_path / "a.tgz", {"data/1": CONTENT, "data/2": CONTENT})

    class Stopping(progress.Progress):
        def add(self, amount: int) -> None:
            assert (folder / ".a.tgz.unpacking" / "new" / "data" / "1").exists()
            raise KeyboardInterrupt

    monkeypatch.setattr(unpacking, "Progress", Stopping)
    with pytest.raises(KeyboardInterrupt):
        unpack(archive, folder)
    assert tree(folder) == {"data/1": b"old"}


def test_killed_unpacking_leaves_no_official_folder(tmp_path: Path) -> None:
    archive = pack(tmp_path / "a.tgz", {f"data/{number}": CONTENT for number in range(3)})
    process = start(
        "import os\nfrom ctxgcd.utils.progress import Progress\n"
        f"Progress.add = lambda self, amount: os.kill(os.getpid(), 9)\nunpack(Path('{archive}'), Path('{tmp_path}/f'))"
    )
    process.communicate(timeout=30)
    assert process.returncode == -signal.SIGKILL
    assert list(tree(tmp_path / "f")) == [".a.tgz.unpacking/new/data/0"]
    unpack(archive, tmp_path / "f")
    assert sorted(tree(tmp_path / "f")) == ["data/0", "data/1", "data/2"]


# --- fetch


@pytest.fixture
def mirror(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that holds a small CIFAR-10 archive, whose checksum counts as the official one."""
    write_fixture("cifar10", tmp_path / "made", train_per_class=2)
    archive = tmp_path / "my mirror" / ARCHIVES["cifar10"].name
    archive.parent.mkdir()
    with tarfile.open(archive, "w:gz") as tar:
        tar.add(tmp_path / "made" / "cifar10" / "cifar-10-batches-py", "cifar-10-batches-py")
    content = archive.read_bytes()
    known = replace(ARCHIVES["cifar10"], checksum=sha256(content), bytes=len(content))
    monkeypatch.setitem(ARCHIVES, "cifar10", known)
    return archive.parent


@pytest.mark.parametrize("scheme", ["http", "file"])
def test_fetch_from_a_mirror(
    server: Behaviour,
    mirror: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    scheme: str,
) -> None:
    server.content = (mirror / ARCHIVES["cifar10"].name).read_bytes()
    address = f"file://{mirror}" if scheme == "file" else f"{server.address}/my mirror"
    monkeypatch.setenv("CTXGCD_MIRROR", f"{address}/" if scheme == "file" else address)
    folder = tmp_path / "data" / "cifar10"
    fetch("cifar10", folder, ELSEWHERE)
    assert len(SOURCES["cifar10"].manifest(folder)) == 30
    assert {path.name for path in folder.iterdir()} <= {"cifar-10-batches-py", ".fetch.lock"}
    assert capsys.readouterr().out.splitlines()[-1] == f"cifar-10-python.tar.gz unpacked to {folder}"
    monkeypatch.setenv("CTXGCD_MIRROR", "http://no-such-host.invalid")
    fetch("cifar10", folder, ELSEWHERE)
    assert capsys.readouterr().out == f"{folder} already has the files of cifar-10-python.tar.gz; skipped\n"
    assert len(server.log) == (scheme == "http")


def test_incomplete_folder_is_fetched_again(mirror: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CTXGCD_MIRROR", f"file://{mirror}")
    (tmp_path / "cifar-10-batches-py").mkdir()
    (tmp_path / "cifar-10-batches-py" / "data_batch_1").write_bytes(b"half")
    fetch("cifar10", tmp_path, ELSEWHERE)
    assert len(SOURCES["cifar10"].manifest(tmp_path)) == 30


def test_second_fetch_waits_and_finds_the_files(
    mirror: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("CTXGCD_MIRROR", "http://no-such-host.invalid")
    folder = tmp_path / "data"
    folder.mkdir()
    with FileLock(folder / ".fetch.lock"):
        second = threading.Thread(target=fetch, args=("cifar10", folder, ELSEWHERE))
        second.start()
        time.sleep(0.3)
        assert second.is_alive()
        unpack(mirror / ARCHIVES["cifar10"].name, folder)
    second.join(timeout=5)
    assert not second.is_alive()
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == f"waiting for another download to {folder}"
    assert lines[-1].endswith("cifar-10-python.tar.gz; skipped")


def test_archive_without_its_files(mirror: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CTXGCD_MIRROR", f"file://{mirror}")
    monkeypatch.setitem(ARCHIVES, "cifar10", replace(ARCHIVES["cifar10"], unpacks_to=("absent",)))
    with pytest.raises(UserError, match="does not contain absent; how to get it: ask the librarian"):
        fetch("cifar10", tmp_path / "data", ELSEWHERE)


def test_wrong_requests(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(
        UserError, match=r"'scars' cannot be downloaded .*cifar10, cifar100, cub, aircraft.*ask the lib"
    ):
        fetch("scars", tmp_path, ELSEWHERE)
    with pytest.raises(UserError, match=r"the variable \$NOWHERE, which is not set"):
        fetch("cub", Path("$NOWHERE/cub"), ELSEWHERE)
    monkeypatch.setenv("CTXGCD_MIRROR", "/some/folder")
    with pytest.raises(UserError, match=r"CTXGCD_MIRROR is '/some/folder', but expected the URL"):
        fetch("cub", tmp_path, ELSEWHERE)
    monkeypatch.setenv("CTXGCD_MIRROR", f"file://{tmp_path}")
    with pytest.raises(
        UserError, match=r"No such file or directory.*ask the librarian \(or set CTXGCD_MIRROR to a mirror"
    ):
        fetch("cub", tmp_path / "cub", ELSEWHERE)


def test_archives_are_those_that_the_readers_know() -> None:
    for reader, archive in ARCHIVES.items():
        assert archive.address.endswith(f"/{archive.name}")
        assert archive.name in SOURCES[reader].how_to_get
        algorithm, _, digest = archive.checksum.partition(":")
        assert len(digest) == 2 * hashlib.new(algorithm).digest_size
        assert set(SOURCES[reader].files) <= set(archive.unpacks_to)
    assert ARCHIVES["cifar10"].checksum.removeprefix("md5:") in SOURCES["cifar10"].how_to_get


def test_script_can_be_stopped_and_goes_on(server: Behaviour, mirror: Path, tmp_path: Path) -> None:
    """Ctrl-C in the real script; its archive is the official one here, so the checksum refuses it at the end."""
    server.content = CONTENT
    server.headers = {"Content-Length": str(ARCHIVES["cifar100"].bytes)}
    server.piece, server.delay = 10_000, 0.02
    environment = os.environ | {"CTXGCD_MIRROR": server.address, "CTXGCD_DATA": str(tmp_path), "PYTHONPATH": str(ROOT)}
    command = [sys.executable, str(ROOT / "workflow/scripts/fetch_data.py"), "--reader=cifar100", "--folder=c"]
    with subprocess.Popen(command, env=environment, text=True, stderr=subprocess.PIPE) as process:
        kept = tmp_path / "c" / "cifar-100-python.tar.gz.part"
        wait_for(lambda: kept.exists() and kept.stat().st_size > 50_000)
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=20)
    assert (process.returncode, errors) == (130, "\ninterrupted; run the same command again to resume\n")
    assert kept.stat().st_size > 50_000
