"""Unpacking archives that are malicious or damaged, or that replace files."""

from __future__ import annotations

import gzip
import os
import signal
import tarfile
from pathlib import Path

import pytest

from ctxgcd.benchmarks.fetching import unpack as unpacking
from ctxgcd.benchmarks.fetching.unpack import unpack
from ctxgcd.errors import UserError
from ctxgcd.utils import progress
from tests.helpers.server import CONTENT, pack, start, tree


def special(kind: bytes, target: str = "") -> tarfile.TarInfo:
    info = tarfile.TarInfo()
    info.type, info.linkname = kind, target
    return info


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


def test_owner_mode_and_setuid_are_ignored(tmp_path: Path) -> None:
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


def test_existing_entries_are_replaced_and_others_are_kept(tmp_path: Path) -> None:
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


def test_interrupted_unpacking_keeps_the_existing_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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
