"""Display names of benchmarks, methods, parameters and symbols."""

from __future__ import annotations

import re

from ctxgcd.catalogue.entries import METHODS, MODIFIERS
from ctxgcd.errors import UserError

BENCHMARKS = {
    "cub": "CUB",
    "scars": "Stanford Cars",
    "aircraft": "FGVC-Aircraft",
    "cifar10": "CIFAR-10",
    "cifar100": "CIFAR-100",
    "imagenet_100": "ImageNet-100",
    "herbarium_19": "Herbarium 19",
    "imagenet_1k": "ImageNet-1K",
    "fashion": "Fashion-MNIST subset",
    "fashion_trial": "Fashion-MNIST subset, labelled part",
    "cub50": "CUB, first 50 classes",
    "cub50_vit": "CUB, first 50 classes, with a ViT",
    "cub50_unequal": "CUB, first 50 classes, unequal",
    "cifar10_12k": "CIFAR-10, 12,000 images",
    "fashion_compared": "Fashion-MNIST subset, compared methods",
    "cub50_vit_compared": "CUB, first 50 classes, with a ViT, compared methods",
    "cub50_trial": "CUB, first 50 classes, labelled part",
    "cub50_unequal_trial": "CUB, first 50 classes, unequal, labelled part",
    "cifar10_12k_trial": "CIFAR-10, 12,000 images, labelled part",
}
PUBLISHED = {"rs_plus": "RS+", "uno_plus": "UNO+", "orca": "ORCA", "xcon": "XCon", "promptcal": "PromptCAL"}
PUBLISHED |= {"dccl": "DCCL", "full": "full", "full_wo_n": "full without L_n", "full_wo_c": "full without L_c"}
ABLATED = re.compile(r"-(without-(?P<letter>[a-z])|zero)$")
ZERO = {1: "weight 0", 2: "both weights 0"}  # by the number of terms that a row can omit

# Written as L_n in plain text; each output format renders its own subscript.
SYMBOL = re.compile(r"\b(L|lambda)_([nc])\b")


def changed_numbers(row: str) -> dict[str, float]:
    """Return the overrides of a sensitivity row as numbers. Raises UserError if one is not a number."""
    try:
        return {key: float(value) for key, value in (pair.split("=") for pair in row.split("+")[1:])}
    except ValueError:
        raise UserError(f"row '{row}' has an invalid override; write key=number, as in '+lambda_n=0.3'") from None


def method_name(row: str) -> str:
    """Return the display name of a row: `full-paper-without-n` is `Full method (paper), without L_n`."""
    base, *changes = ABLATED.sub("", row).split("+")
    method, _, variant = base.partition("-")
    name = f"{_label(method)} ({variant})" if variant else _label(method)
    modifiers = [MODIFIERS[word].label for word in changes if word in MODIFIERS]
    overrides = [word.replace("=", " = ") for word in changes if word not in MODIFIERS]
    return ", ".join([" + ".join([name, *modifiers]), *_left_out(row, method), *overrides])


def _left_out(row: str, method: str) -> list[str]:
    """Return the part of a display name that describes the omitted terms."""
    if not (found := ABLATED.search(row)) or method not in METHODS:
        return []
    entry = METHODS[method]
    if not (letter := found["letter"]):
        return [ZERO.get(len(entry.ablated), "all weights 0")]
    term = entry.ablated.get(letter, letter)
    return [f"without {entry.terms[term].head if term in entry.terms else term}"]


def _label(method: str) -> str:
    return METHODS[method].label if method in METHODS else method


def published_name(key: str) -> str:
    """Return the display name of one of the paper's rows: `full[k=20]` is `full, k = 20`."""
    base, _, changed = key.rstrip("]").partition("[")
    name = PUBLISHED.get(base) or _label(base)
    return name + (f", {changed.replace('=', ' = ')}" if changed else "")


def benchmark_name(key: str) -> str:
    """Return the display name of a benchmark; for a user's own benchmark, its key."""
    return BENCHMARKS.get(key, key)
