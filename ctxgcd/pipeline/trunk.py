"""Which runs train in the same steps: those with the same trunk and new views, or with the same cached views."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping
from typing import Any

from ctxgcd.catalogue.entries import METHODS
from ctxgcd.pipeline.resolve import FEATURE_FIELDS

# Values of a run that determine the trunk's output of a step. The heads, their losses and further images may differ.
OF_TRUNK = ("benchmark", "seed", *FEATURE_FIELDS, "precision", "threads", "tail", "tail_blocks", "batch_size")


def views_of(p: Mapping[str, Any]) -> Hashable:
    """Return what runs whose steps have the same sampled views have in common, or None for a run that shares none.

    p: the resolved parameters of a run (pipeline.resolve).
    """
    entry = METHODS[p["method"]]
    if not entry.trains or entry.whole:
        return None
    return tuple(str(p.get(name)) for name in (*OF_TRUNK, "view_bank", "view_bank_seed"))


def trunk_of(p: Mapping[str, Any]) -> Hashable:
    """Return what runs that share the trunk's forward passes have in common, or None: cached views need no trunk."""
    return None if p.get("view_bank") else views_of(p)


def grouped(runs: Iterable[Mapping[str, Any]], shared: Callable[[Mapping[str, Any]], Hashable]) -> list[list[int]]:
    """Return the places of the runs that have something in common, in their order; a run that shares none is alone."""
    groups: dict[Hashable, list[int]] = {}
    for place, p in enumerate(runs):
        groups.setdefault(place if (common := shared(p)) is None else common, []).append(place)
    return list(groups.values())
