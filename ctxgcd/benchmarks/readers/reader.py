"""The base class of readers and their shared helpers."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pandas as pd
from PIL import Image

from ctxgcd.benchmarks.readers.decoding import missing, official
from ctxgcd.errors import UserError
from ctxgcd.utils.user_tables import listed

MANIFEST_COLUMNS = ("id", "path", "class_id", "class_name", "part")


@dataclass(frozen=True, kw_only=True)
class Reader(ABC):
    """How the images of a benchmark are listed and opened.

    files       official files that must exist, relative to the benchmark's folder
    test_files  files of the official test part; without them a benchmark has no test images
    how_to_get  one line for the user: automatic, by command or manual, and the required account
    drawn_order whether D^l is in the order of the draw (else in canonical order)
    packed      whether several images share a file, as `file#row`
    side        side in pixels if all images are squares of the same size
    gigabytes   size of the official files on disk
    """

    files: tuple[str, ...]
    test_files: tuple[str, ...]
    how_to_get: str
    drawn_order: bool
    packed: bool = False
    side: int | None = None
    gigabytes: float = 0.0

    @abstractmethod
    def manifest(self, folder: Path) -> pd.DataFrame:
        """Return every image of the official files, training part first, each part in canonical order.

        Columns: id (0..n-1), path (relative to folder), class_id (raw, 0-based), class_name, part.
        Raises UserError with the name of an invalid file, and MissingData for a missing file.
        """

    @abstractmethod
    def list_files(self, folder: Path) -> list[Path]:
        """Return the official files that list the images; none for class folders."""

    def stamped(self, folder: Path) -> list[Path]:
        """Return the files and folders whose sizes and times change if the manifest may have changed."""
        return self.list_files(folder)

    def remarks(self, folder: Path, manifest: pd.DataFrame) -> list[str]:
        """Return notes on valid data, such as unofficial names or skipped files."""
        return []

    def images(self, folder: Path, paths: Sequence[str]) -> Iterator[Image.Image]:
        """Yield the images in RGB, in the order of `paths`, one open file at a time."""
        return official(folder, paths)


def store_bytes(reader: Reader, images: int, resize: int) -> float:
    """Return the estimated bytes of packed images: photographs have an aspect ratio of about 4:3."""
    pixels = reader.side**2 if reader.side and reader.side < resize else resize**2 * 4 / 3
    return 3 * images * pixels


def require(folder: Path, names: Sequence[str]) -> None:
    """Raise MissingData for the first of `names` that does not exist below `folder`."""
    for name in names:
        if not (folder / name).exists():
            raise missing(folder / name)


def present(folder: Path, names: Sequence[str]) -> list[Path]:
    """Return those of `names` that exist below `folder`."""
    return [folder / name for name in names if (folder / name).exists()]


def read_lines(path: Path) -> list[str]:
    """Read the lines of a UTF-8 text file, with or without a byte order mark. Raises UserError for other files."""
    if not path.is_file():
        raise missing(path)
    try:
        return path.read_text(encoding="utf-8-sig").splitlines()
    except UnicodeDecodeError as error:
        raise UserError(f"{path} is not UTF-8 text; replace it") from error


def read_pairs(path: Path) -> list[tuple[str, str]]:
    """Read lines of `key value...`. Raises UserError with the file and line of an invalid line."""
    pairs = []
    for number, line in enumerate(read_lines(path), start=1):
        if not line.strip():
            continue
        key, _, value = line.strip().partition(" ")
        if not value:
            raise UserError(f"{path} line {number} is {line!r}, but expected two words; replace the file")
        pairs.append((key, value.strip()))
    return pairs


def read_manifest(path: Path) -> pd.DataFrame:
    """Read a manifest with its dtypes; text such as `NA` stays text."""
    types = {"id": "int64", "path": "str", "class_id": "int64", "class_name": "str", "part": "str"}
    return pd.read_csv(path, dtype=types, keep_default_na=False)


def first_repeated(names: Sequence[str]) -> str:
    """Return the first name that occurs more than once."""
    return next(name for name, count in Counter(names).items() if count > 1)


def fault_of(name: str) -> str:
    """Return why a name cannot be stored in a CSV; empty if it can."""
    try:
        name.encode()
    except UnicodeEncodeError:
        return "its name is not UTF-8"
    return "its name has a carriage return" if "\r" in name else ""


def _refuse_odd(paths: Sequence[str], class_names: Sequence[str]) -> None:
    """Raise UserError with all names of classes and images that cannot be stored in a CSV."""
    if not fault_of("\n".join((*paths, *set(class_names)))):
        return
    classes = {name: fault_of(name) for name in dict.fromkeys(class_names)}
    invalid = [name for name, fault in classes.items() if fault]
    invalid += [path for path, name in zip(paths, class_names, strict=True) if not classes[name] and fault_of(path)]
    raise UserError(
        f"names with a carriage return or with bytes that are not UTF-8 cannot be stored in a CSV: {listed(invalid)}; "
        "rename these files or classes"
    )


def as_manifest(
    paths: Sequence[str], class_ids: Sequence[int], class_names: Sequence[str], parts: Sequence[str]
) -> pd.DataFrame:
    """Return the manifest of images given in canonical order, training part first.

    Raises UserError for duplicate images and for names that cannot be stored in a CSV.
    """
    if len(set(paths)) < len(paths):
        raise UserError(
            f"image {first_repeated(paths)} is listed twice; keep one line for it, or restore the official lists"
        )
    _refuse_odd(paths, class_names)
    columns = (range(len(paths)), paths, class_ids, class_names, parts)
    frame = pd.DataFrame(dict(zip(MANIFEST_COLUMNS, columns, strict=True)))
    return frame.astype({"id": "int64", "class_id": "int64"})
