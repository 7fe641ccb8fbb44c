"""The data sources by the name that params.yaml calls them by."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from ctxgcd.benchmarks.aircraft import AIRCRAFT
from ctxgcd.benchmarks.cifar import CIFAR10, CIFAR100
from ctxgcd.benchmarks.cub import CUB
from ctxgcd.benchmarks.folders import HERBARIUM_19, IMAGENET
from ctxgcd.benchmarks.own import FOLDER
from ctxgcd.benchmarks.scars import SCARS
from ctxgcd.benchmarks.sheet import SHEET
from ctxgcd.benchmarks.source import Source

SOURCES: dict[str, Source] = {
    "cifar10": CIFAR10,
    "cifar100": CIFAR100,
    "cub": CUB,
    "scars": SCARS,
    "aircraft": AIRCRAFT,
    "herbarium_19": HERBARIUM_19,
    "imagenet": IMAGENET,
    "sheet": SHEET,
    "folder": FOLDER,
}


def source_of(section: Mapping[str, Any]) -> Source:
    """Return the source of a benchmark by its section of params.yaml."""
    if section["reader"] == "folder":
        return replace(FOLDER, listing=section["listing"], labelled=section["labelled"])
    return SOURCES[section["reader"]]
