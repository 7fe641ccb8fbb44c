"""Safe and atomic unpacking of downloaded archives."""

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
    """Unpack a tar archive into `folder`. Each top-level entry is replaced atomically.

    Only regular files and folders are unpacked, without owners, modes and times. `strip` leading components of every
    name are removed; shorter names are skipped. Two calls for one folder must not overlap.

    Raises:
        UserError: the archive is damaged or would write outside `folder` (nothing is written in these cases), or the
            disk is full.
    """
    temporary = folder / f".{archive_path.name}.unpacking"
    try:
        with tarfile.open(archive_path) as tar:
            members = _safe_members(tar, archive_path, strip)
            _require_end(tar)
            with on_disk(folder):
                folder.mkdir(parents=True, exist_ok=True)
            shutil.rmtree(temporary, ignore_errors=True)  # the remains of a killed call
            require_space(folder, sum(member.size for member, _ in members), archive_path.name)
            _extract(tar, members, temporary / "new", archive_path.name)
        _move(temporary / "new", folder, temporary / "old")
    except (tarfile.TarError, EOFError, zlib.error, gzip.BadGzipFile) as error:
        reason = (str(error).splitlines() or [type(error).__name__])[0].rstrip(":")  # without tarfile's attempts
        raise UserError(f"{archive_path} is damaged ({reason}); delete it and download it again") from error
    except OSError as error:
        raise UserError(
            f"{archive_path} cannot be read ({error.strerror or error}); check the file and its permissions"
        ) from error
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def _safe_members(tar: tarfile.TarFile, archive_path: Path, strip: int) -> list[tuple[tarfile.TarInfo, Path]]:
    """Return every member with its path below the folder. Raises UserError for the first unsafe member."""
    print(f"reading the file names in {archive_path.name}", flush=True)
    safe = []
    for member in tar:
        name = PurePosixPath(member.name)
        if name.is_absolute() or ".." in name.parts:
            what = "is outside the folder"
        elif not (member.isreg() or member.isdir()):
            what = "is a link" if member.issym() or member.islnk() else "is a special file"
        else:
            if parts := name.parts[strip:]:
                safe.append((member, Path(*parts)))
            continue
        raise UserError(
            f"{archive_path} is not safe to unpack, because its member {member.name!r} {what}; nothing was unpacked; "
            "delete the file and download the official archive"
        )
    return safe


def _require_end(tar: tarfile.TarFile) -> None:
    """Raise ReadError if the archive continues after its last readable member or gzip's checksum is wrong."""
    assert tar.fileobj
    tar.fileobj.seek(tar.offset)  # tarfile treats an unreadable header as the end of the archive
    if tar.fileobj.read(tarfile.BLOCKSIZE).strip(b"\0"):
        raise tarfile.ReadError("bad header")
    while tar.fileobj.read(BLOCK):  # gzip verifies its checksum at the end of the file
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
        assert content  # the member is a regular file
        with on_disk(into / path), open(into / path, "wb") as file:
            shutil.copyfileobj(content, file, BLOCK)
        progress.add(member.size)


def _move(new: Path, folder: Path, old: Path) -> None:
    """Move every entry of `new` into `folder`, and existing entries of the same names into `old`."""
    with on_disk(folder):
        old.mkdir()
        for entry in sorted(new.iterdir()):
            target = folder / entry.name
            if os.path.lexists(target):  # a folder with entries cannot be replaced in one step
                os.replace(target, old / entry.name)
            os.replace(entry, target)
