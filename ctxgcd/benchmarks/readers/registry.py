"""The readers by the name that params.yaml calls them by; one is imported when it is asked for."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from pkgutil import resolve_name
from typing import TYPE_CHECKING, Any, NamedTuple, cast

if TYPE_CHECKING:
    from PIL import Image

    from ctxgcd.benchmarks.readers.own_images import OwnImages
    from ctxgcd.benchmarks.readers.reader import Reader


class ReaderCode(NamedTuple):
    """Where a reader's code is, each as `module:name`.

    Attributes:
        reader: the Reader, which lists the images.
        images: what opens them, (folder, paths) -> images in RGB; the code that an image store depends on.
    """

    reader: str
    images: str = "ctxgcd.benchmarks.readers.decoding:official"


READER_CODE = {
    "cifar10": ReaderCode("ctxgcd.benchmarks.readers.cifar:CIFAR10", "ctxgcd.benchmarks.readers.cifar:CIFAR10.images"),
    "cifar100": ReaderCode(
        "ctxgcd.benchmarks.readers.cifar:CIFAR100", "ctxgcd.benchmarks.readers.cifar:CIFAR100.images"
    ),
    "cub": ReaderCode("ctxgcd.benchmarks.readers.cub:CUB"),
    "scars": ReaderCode("ctxgcd.benchmarks.readers.scars:SCARS"),
    "aircraft": ReaderCode("ctxgcd.benchmarks.readers.aircraft:AIRCRAFT"),
    "herbarium_19": ReaderCode("ctxgcd.benchmarks.readers.class_folders:HERBARIUM_19"),
    "imagenet": ReaderCode("ctxgcd.benchmarks.readers.class_folders:IMAGENET"),
    "sheet": ReaderCode(
        "ctxgcd.benchmarks.readers.png_sheet:SHEET", "ctxgcd.benchmarks.readers.png_sheet:SHEET.images"
    ),
    "folder": ReaderCode("ctxgcd.benchmarks.readers.own_images:FOLDER", "ctxgcd.benchmarks.readers.decoding:as_seen"),
}


class _Readers(Mapping[str, "Reader"]):
    def __getitem__(self, name: str) -> Reader:
        return cast("Reader", resolve_name(READER_CODE[name].reader))

    def __iter__(self) -> Iterator[str]:
        return iter(READER_CODE)

    def __len__(self) -> int:
        return len(READER_CODE)


READERS = _Readers()


def reader_of(section: Mapping[str, Any]) -> Reader:
    """Return the reader of a benchmark by its section of params.yaml."""
    reader = READERS[section["reader"]]
    if section["reader"] == "folder":
        return replace(cast("OwnImages", reader), listing=section["listing"], labelled=section["labelled"])
    return reader


def images_of(reader: str) -> Callable[[Path, Sequence[str]], Iterator[Image.Image]]:
    """Return what opens a reader's images; it imports nothing that lists them, where that is another module."""
    return cast("Callable[[Path, Sequence[str]], Iterator[Image.Image]]", resolve_name(READER_CODE[reader].images))
