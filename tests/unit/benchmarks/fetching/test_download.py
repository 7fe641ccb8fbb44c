"""Downloads from a local server with faults."""

from __future__ import annotations

import hashlib
import json
import shutil
import signal
import socket
import time
from pathlib import Path
from typing import Any

import pytest

from ctxgcd.benchmarks.fetching.download import download
from ctxgcd.errors import UserError
from ctxgcd.utils import progress
from tests.helpers.processes import wait_for
from tests.helpers.refusals import error_of
from tests.helpers.server import CONTENT, ELSEWHERE, Behaviour, sha256, start


def get(server: Behaviour, folder: Path, **options: Any) -> bytes:
    """Download the server's file to `folder` with short waits; fails if the folder contains other files afterwards."""
    options = {"checksum": sha256(CONTENT), "stall": 20, "pause": 0.01} | options
    download(f"{server.address}/a.tgz", folder / "a.tgz", how_to_get=ELSEWHERE, **options)
    assert [path.name for path in folder.iterdir()] == ["a.tgz"]
    return (folder / "a.tgz").read_bytes()


def refused(server: Behaviour, folder: Path, **options: Any) -> str:
    """Return the error message of a download that cannot succeed."""
    sentence = error_of(lambda: get(server, folder, **options))
    assert not (folder / "a.tgz").exists()
    return sentence


def part(folder: Path) -> Path:
    return folder / "a.tgz.part"


def know(server: Behaviour, folder: Path) -> None:
    """Record that the partial download is of the server's current file."""
    record = {"address": f"{server.address}/a.tgz", "version": server.etag}
    part(folder).with_name("a.tgz.part.json").write_text(json.dumps(record))


def test_plain_download(server: Behaviour, tmp_path: Path) -> None:
    assert get(server, tmp_path / "new" / "folder", expected_bytes=len(CONTENT)) == CONTENT
    assert server.requested == [None]
    assert get(server, tmp_path / "new" / "folder") == CONTENT
    assert server.requested == [None]  # the checked file is there


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
    assert 2 <= len(lines) < 20  # one per piece if the progress were not limited
    assert "of 0.4 MB, " in lines[0]
    assert lines[0].endswith(" left")


def test_cut_connections_are_resumed(server: Behaviour, tmp_path: Path) -> None:
    server.cuts = [100_000, 50_000, 0, 120_000]
    assert get(server, tmp_path) == CONTENT
    assert server.requested == [None, "bytes=100000-", "bytes=150000-", "bytes=150000-", "bytes=270000-"]
    assert server.sent == len(CONTENT)
    assert server.log[1]["If-Range"] == '"1"'


def test_reset_connections(server: Behaviour, tmp_path: Path) -> None:
    server.cuts, server.reset = [100_000, 50_000, 120_000], True
    assert get(server, tmp_path) == CONTENT
    assert server.requested[0] is None
    assert len(server.requested) == 4


def test_retries_are_counted_only_without_new_data(server: Behaviour, tmp_path: Path) -> None:
    server.cuts = [30_000] * 10
    assert get(server, tmp_path, retries=1) == CONTENT


def test_stalled_connection(server: Behaviour, tmp_path: Path) -> None:
    server.cuts, server.hang = [100_000], 9.0
    before = time.monotonic()
    assert get(server, tmp_path, stall=0.5) == CONTENT
    assert time.monotonic() - before < 8
    assert server.requested == [None, "bytes=100000-"]


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
    assert server.requested == [None]


@pytest.mark.parametrize(("kept", "asked"), [(len(CONTENT), 1), (len(CONTENT) + 5, 2)])
def test_a_partial_download_that_is_complete_or_too_long(
    server: Behaviour, tmp_path: Path, kept: int, asked: int
) -> None:
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


def test_a_login_page_is_refused(server: Behaviour, tmp_path: Path) -> None:
    server.cuts = [100_000] + [0] * 9
    refused(server, tmp_path, retries=1, expected_bytes=len(CONTENT))
    server.content, server.etag, server.cuts = b"<html>please log in", None, []
    server.ranges = False
    sentence = refused(server, tmp_path, expected_bytes=len(CONTENT))
    assert "the file has 19 bytes, but the official file has 400,000" in sentence
    assert part(tmp_path).stat().st_size == 100_000  # what came before stays


def test_a_missing_file_is_reported_immediately(server: Behaviour, tmp_path: Path) -> None:
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
def test_an_unreachable_server(tmp_path: Path, address: str, capsys: pytest.CaptureFixture[str]) -> None:
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
    assert server.requested == [None, "bytes=100000-"]


@pytest.mark.parametrize("value", ["bytes 0-399999/400000", "bytes 7-9/*", "nonsense", "bytes */400000"])
def test_odd_range_starts_again(server: Behaviour, tmp_path: Path, value: str) -> None:
    server.cuts, server.headers = [100_000], {"Content-Range": value}
    assert get(server, tmp_path) == CONTENT
    assert server.requested == [None, "bytes=100000-", None]


def test_range_of_unknown_total(server: Behaviour, tmp_path: Path) -> None:
    server.cuts, server.headers = [100_000, 50_000], {"Content-Range": "bytes {start}-399999/*"}
    assert get(server, tmp_path, expected_bytes=len(CONTENT)) == CONTENT
    assert server.sent == len(CONTENT)


def test_content_encoding_is_ignored(server: Behaviour, tmp_path: Path) -> None:
    server.headers = {"Content-Encoding": "x-gzip"}
    assert get(server, tmp_path) == CONTENT
    assert server.log[0]["Accept-Encoding"] == "identity"


def test_an_endless_redirect_is_reported_in_one_line(server: Behaviour, tmp_path: Path) -> None:
    server.moved = "/a.tgz#again"  # differs from every requested path
    assert "(HTTP 302 " in refused(server, tmp_path, retries=1)


def test_redirect_keeps_the_range(server: Behaviour, tmp_path: Path) -> None:
    server.moved, server.cuts = "/elsewhere/b.tgz", [100_000]
    assert get(server, tmp_path) == CONTENT
    assert server.requested == [None, None, "bytes=100000-", "bytes=100000-"]


def test_full_disk_keeps_the_part(server: Behaviour, tmp_path: Path) -> None:
    if not Path("/dev/full").exists():
        pytest.skip("needs /dev/full, the device that is always full")
    part(tmp_path).symlink_to("/dev/full")
    know(server, tmp_path)
    sentence = refused(server, tmp_path)
    assert "cannot be read or written (No space left on device); the disk is full: free space" in sentence
    assert part(tmp_path).is_symlink()
    assert len(server.log) == 1


def test_too_little_disk_space_is_reported_before_writing(
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
    assert server.requested == [None, f"bytes={kept}-"]
    assert server.given[1] == len(CONTENT) - kept
