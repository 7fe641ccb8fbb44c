"""The classes of a benchmark, known without its data, and the number of classes that a run assumes (K)."""

from __future__ import annotations

from typing import Any

from ctxgcd.benchmarks.class_lists import load as load_class_list
from ctxgcd.config import Benchmark, Official, Own
from ctxgcd.errors import UserError
from ctxgcd.pipeline.identity import ESTIMATED


def assumed_k(entry: Benchmark, requested: Any, where: str, new: bool) -> tuple[int | str, str]:
    """Return the K that a run assumes and its source: true, given or estimated (read from a file later).

    new: whether the run requires at least one New class.
    """
    if requested is True:
        return k_of(entry), "true"
    if requested == "estimated":
        return ESTIMATED, "estimated"
    least = max(2, new + (1 if isinstance(entry, Own) else len(old_classes(entry))))
    if not isinstance(requested, int) or requested < least:
        raise UserError(f"{where}: K is {requested}; give true, estimated or a number of at least {least} classes")
    return requested, "given"


def old_classes(entry: Official) -> tuple[int, ...]:
    """Return the Old classes of an official benchmark, known without its data."""
    old = load_class_list(entry.class_list, entry.classes).old
    return old[: (len(old) + 1) // 2] if entry.trial else old


def class_list_hash(entry: Benchmark) -> str:
    """Return the hash of an official benchmark's Old and New classes; empty for own images, which have no list."""
    return "" if isinstance(entry, Own) else load_class_list(entry.class_list, entry.classes).sha256


def k_of(entry: Benchmark) -> int:
    """Return the number of classes, Old and New together, known without the data."""
    if isinstance(entry, Own):
        return entry.classes
    listed = load_class_list(entry.class_list, entry.classes)
    return len(listed.old) if entry.trial else listed.num_classes  # a trial divides only the Old classes
