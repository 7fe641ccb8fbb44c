"""The data sources by the name that params.yaml calls them by."""

from __future__ import annotations

from ctxgcd.benchmarks.aircraft import AIRCRAFT
from ctxgcd.benchmarks.cifar import CIFAR10, CIFAR100
from ctxgcd.benchmarks.cub import CUB
from ctxgcd.benchmarks.folders import HERBARIUM_19, IMAGENET
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
}
