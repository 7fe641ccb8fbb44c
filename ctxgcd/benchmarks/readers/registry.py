"""The registry of readers by their name in params.yaml. Readers are imported when they are used."""

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
    """The code of a reader, as `module:name` of its objects.

    Attributes:
        reader: the Reader, which lists the images.
        images: the function that opens images, (folder, paths) -> images in RGB; image stores depend on its code.
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
    """Return the function that opens a reader's images, without importing other modules of the reader."""
    return cast("Callable[[Path, Sequence[str]], Iterator[Image.Image]]", resolve_name(READER_CODE[reader].images))
