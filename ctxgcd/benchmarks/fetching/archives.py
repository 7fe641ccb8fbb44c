"""Download, verify and unpack the official archives that need no account.

CTXGCD_MIRROR sets a mirror: the URL (http, https or file) of a folder with the archives, which are verified with the
same checksums. HTTP proxies are read from the usual environment variables (https_proxy).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from filelock import FileLock, Timeout

from ctxgcd.benchmarks.fetching.download import MIRROR, download, mirrored
from ctxgcd.benchmarks.fetching.unpack import unpack
from ctxgcd.benchmarks.readers.aircraft import AIRCRAFT
from ctxgcd.benchmarks.readers.cifar import CIFAR10, CIFAR100
from ctxgcd.benchmarks.readers.cub import BASE, CUB
from ctxgcd.benchmarks.readers.decoding import missing
from ctxgcd.errors import UserError
from ctxgcd.utils.files import on_disk


@dataclass(frozen=True)
class Archive:
    """One official archive.

    address    official URL
    checksum   checksum of the file, as `md5:...` or `sha256:...`
    bytes      size of the file
    unpacks_to paths, relative to the benchmark's folder, that exist after unpacking
    strip      number of leading path components that are removed
    """

    name: str
    address: str
    checksum: str
    bytes: int
    unpacks_to: tuple[str, ...]
    strip: int = 0


ARCHIVES: dict[str, Archive] = {
    "cifar10": Archive(
        "cifar-10-python.tar.gz",
        "https://www.cs.toronto.edu/~kriz/cifar-10-python.tar.gz",
        "md5:c58f30108f718f92721af3b95e74349a",
        170_498_071,
        CIFAR10.files + CIFAR10.test_files,
    ),
    "cifar100": Archive(
        "cifar-100-python.tar.gz",
        "https://www.cs.toronto.edu/~kriz/cifar-100-python.tar.gz",
        "md5:eb9058c3a382ffc7106e4002c42a8d85",
        169_001_437,
        CIFAR100.files + CIFAR100.test_files,
    ),
    "cub": Archive(
        "CUB_200_2011.tgz",
        "https://data.caltech.edu/records/65de6-vp158/files/CUB_200_2011.tgz",
        "md5:97eceeb196236b17998738112f37df78",
        1_150_585_339,
        (*CUB.files, f"{BASE}/images"),
    ),
    # The SHA-256 and the size are those published by several users of the official file.
    "aircraft": Archive(
        "fgvc-aircraft-2013b.tar.gz",
        "https://www.robots.ox.ac.uk/~vgg/data/fgvc-aircraft/archives/fgvc-aircraft-2013b.tar.gz",
        "sha256:e4e323d410e29f0370c81eabdcbb0e2b813acea1de22891b70b58ff41bfc9834",
        2_753_340_328,
        AIRCRAFT.files + AIRCRAFT.test_files,
        strip=1,
    ),
}


def fetch(reader: str, folder: Path, how_to_get: str) -> None:
    """Download the official files of `reader` to `folder`; does nothing if they exist.

    A lock serializes calls for the same folder. Raises UserError, with `how_to_get` if another way helps.
    """
    if reader not in ARCHIVES:
        raise UserError(
            f"the data of {reader!r} cannot be downloaded automatically (available: {', '.join(ARCHIVES)}); "
            f"how to get it: {how_to_get}"
        )
    archive = ARCHIVES[reader]
    if "$" in str(folder):
        raise missing(folder)
    if _is_there(archive, folder):
        return
    with _alone_in(folder):
        if not _is_there(archive, folder):
            _fetch(archive, folder, how_to_get)


def _is_there(archive: Archive, folder: Path) -> bool:
    there = not _absent(archive, folder)
    if there:
        print(f"{folder} already has the files of {archive.name}; skipped", flush=True)
    return there


def _absent(archive: Archive, folder: Path) -> list[str]:
    return [name for name in archive.unpacks_to if not (folder / name).exists()]


def _fetch(archive: Archive, folder: Path, how_to_get: str) -> None:
    packed = folder / archive.name
    download(
        mirrored(archive.address),
        packed,
        checksum=archive.checksum,
        how_to_get=f"{how_to_get} (or set {MIRROR} to a mirror of {archive.name})",
        expected_bytes=archive.bytes,
    )
    unpack(packed, folder, strip=archive.strip)
    if absent := _absent(archive, folder):
        raise UserError(f"{packed} does not contain {absent[0]}; how to get it: {how_to_get}")
    packed.unlink()
    print(f"{archive.name} unpacked to {folder}", flush=True)


@contextmanager
def _alone_in(folder: Path) -> Iterator[None]:
    """Hold the folder's lock; wait if another download holds it."""
    with on_disk(folder):
        folder.mkdir(parents=True, exist_ok=True)
        lock = FileLock(folder / ".fetch.lock")
        try:
            lock.acquire(timeout=0)
        except Timeout:
            print(f"waiting for another download to {folder}", flush=True)
            lock.acquire()
    try:
        yield
    finally:
        lock.release()
