"""Unpack an archive that came from elsewhere: nothing unsafe, nothing half."""

from __future__ import annotations

import gzip
import os
import shutil
import tarfile
import zlib
from pathlib import Path, PurePosixPath

from ctxgcd.errors import UserError
from ctxgcd.utils.files import on_disk, require_space
from ctxgcd.utils.progress import MB, Progress

BLOCK = 1 << 18


def unpack(archive_path: Path, folder: Path, *, strip: int = 0) -> None:
    """Unpack a tar archive into `folder`; each of its top entries appears whole, in place of one that was there.

    Only plain files and folders are taken, without their owners, modes and times. `strip` leading parts of
    every name are dropped, and with them what has no more parts. Two calls for one folder must not overlap.

    Raises:
        UserError: the archive is damaged or would write outside `folder` (nothing is written then), or the
            disk is full.
    """
    temporary = folder / f".{archive_path.name}.unpacking"
    try:
        with tarfile.open(archive_path) as tar:
            members = _safe_members(tar, archive_path, strip)
            _require_end(tar)
            with on_disk(folder):
                folder.mkdir(parents=True, exist_ok=True)
            shutil.rmtree(temporary, ignore_errors=True)  # left by a call that was killed
            require_space(folder, sum(member.size for member, _ in members), archive_path.name)
            _extract(tar, members, temporary / "new", archive_path.name)
        _move(temporary / "new", folder, temporary / "old")
    except (tarfile.TarError, EOFError, zlib.error, gzip.BadGzipFile) as error:
        reason = (str(error).splitlines() or [type(error).__name__])[0].rstrip(":")  # tarfile lists all it tried
        raise UserError(f"{archive_path} is damaged ({reason}); delete it and get it again") from error
    except OSError as error:
        raise UserError(f"{archive_path} cannot be read ({error.strerror or error})") from error
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def _safe_members(tar: tarfile.TarFile, archive_path: Path, strip: int) -> list[tuple[tarfile.TarInfo, Path]]:
    """Return every member with its path below the folder; raises UserError for the first unsafe one."""
    print(f"reading the names in {archive_path.name}", flush=True)
    safe = []
    for member in tar:
        name = PurePosixPath(member.name)
        if name.is_absolute() or ".." in name.parts:
            what = "leads out of the folder"
        elif not (member.isreg() or member.isdir()):
            what = "is a link" if member.issym() or member.islnk() else "is a device or the like"
        else:
            if parts := name.parts[strip:]:
                safe.append((member, Path(*parts)))
            continue
        raise UserError(
            f"{archive_path} is not safe to unpack: its member {member.name!r} {what}; nothing was unpacked, "
            "delete it and get the official archive"
        )
    return safe


def _require_end(tar: tarfile.TarFile) -> None:
    """Raise ReadError where the archive goes on after its last readable member, or gzip's own checksum is wrong."""
    assert tar.fileobj
    tar.fileobj.seek(tar.offset)  # tarfile takes any header that it cannot read for the end
    if tar.fileobj.read(tarfile.BLOCKSIZE).strip(b"\0"):
        raise tarfile.ReadError("bad header")
    while tar.fileobj.read(BLOCK):  # the checksum stands at the very end
        pass


def _extract(tar: tarfile.TarFile, members: list[tuple[tarfile.TarInfo, Path]], into: Path, name: str) -> None:
    with on_disk(into):
        into.mkdir(parents=True)
    progress = Progress(f"unpacking {name}", sum(member.size for member, _ in members), "MB", scale=MB)
    for member, path in members:
        with on_disk(into / path):
            if member.isdir():
                (into / path).mkdir(parents=True, exist_ok=True)
                continue
            (into / path).parent.mkdir(parents=True, exist_ok=True)
        content = tar.extractfile(member)
        assert content  # of a plain file
        with on_disk(into / path), open(into / path, "wb") as file:
            shutil.copyfileobj(content, file, BLOCK)
        progress.add(member.size)


def _move(new: Path, folder: Path, old: Path) -> None:
    """Move every entry of `new` into `folder`, and what stood in its place into `old`."""
    with on_disk(folder):
        old.mkdir()
        for entry in sorted(new.iterdir()):
            target = folder / entry.name
            if os.path.lexists(target):  # a folder with entries cannot be replaced in one step
                os.replace(target, old / entry.name)
            os.replace(entry, target)
