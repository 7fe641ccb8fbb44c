"""The registry of data sources by their name in params.yaml. Sources are imported when they are used."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from pkgutil import resolve_name
from typing import TYPE_CHECKING, Any, NamedTuple, cast

if TYPE_CHECKING:
    from PIL import Image

    from ctxgcd.benchmarks.readers.own_images import OwnImages
    from ctxgcd.benchmarks.readers.reader import Source


class Reader(NamedTuple):
    """A reader, as `module:name` of its objects.

    Attributes:
        source: the Source, which lists the images.
        images: the function that opens images, (folder, paths) -> images in RGB; image stores depend on its code.
    """

    source: str
    images: str = "ctxgcd.benchmarks.readers.decoding:official"


READERS = {
    "cifar10": Reader("ctxgcd.benchmarks.readers.cifar:CIFAR10", "ctxgcd.benchmarks.readers.cifar:CIFAR10.images"),
    "cifar100": Reader("ctxgcd.benchmarks.readers.cifar:CIFAR100", "ctxgcd.benchmarks.readers.cifar:CIFAR100.images"),
    "cub": Reader("ctxgcd.benchmarks.readers.cub:CUB"),
    "scars": Reader("ctxgcd.benchmarks.readers.scars:SCARS"),
    "aircraft": Reader("ctxgcd.benchmarks.readers.aircraft:AIRCRAFT"),
    "herbarium_19": Reader("ctxgcd.benchmarks.readers.class_folders:HERBARIUM_19"),
    "imagenet": Reader("ctxgcd.benchmarks.readers.class_folders:IMAGENET"),
    "sheet": Reader("ctxgcd.benchmarks.readers.png_sheet:SHEET", "ctxgcd.benchmarks.readers.png_sheet:SHEET.images"),
    "folder": Reader("ctxgcd.benchmarks.readers.own_images:FOLDER", "ctxgcd.benchmarks.readers.decoding:as_seen"),
}


class _Sources(Mapping[str, "Source"]):
    def __getitem__(self, name: str) -> Source:
        return cast("Source", resolve_name(READERS[name].source))

    def __iter__(self) -> Iterator[str]:
        return iter(READERS)

    def __len__(self) -> int:
        return len(READERS)


SOURCES = _Sources()


def source_of(section: Mapping[str, Any]) -> Source:
    """Return the source of a benchmark by its section of params.yaml."""
    source = SOURCES[section["reader"]]
    if section["reader"] == "folder":
        return replace(cast("OwnImages", source), listing=section["listing"], labelled=section["labelled"])
    return source


def images_of(reader: str) -> Callable[[Path, Sequence[str]], Iterator[Image.Image]]:
    """Return the function that opens a reader's images, without importing other modules of the reader."""
    return cast("Callable[[Path, Sequence[str]], Iterator[Image.Image]]", resolve_name(READERS[reader].images))
