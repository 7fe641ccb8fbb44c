"""Which runs can share the forward passes of the frozen trunk: those with new views through the same trunk."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping
from typing import Any

from ctxgcd.catalogue.entries import METHODS
from ctxgcd.pipeline.resolve import FEATURE_FIELDS

# Values of a run that determine the trunk's output of a step. The heads, their losses and further images may differ.
OF_TRUNK = ("benchmark", "seed", *FEATURE_FIELDS, "precision", "threads", "tail", "tail_blocks", "batch_size")


def trunk_of(p: Mapping[str, Any]) -> Hashable:
    """Return what runs that share the trunk's forward passes have in common, or None if a run shares none.

    p: the resolved parameters of a run (pipeline.resolve).
    """
    entry = METHODS[p["method"]]
    if not entry.trains or entry.whole or p["view_bank"]:
        return None
    return tuple(str(p.get(name)) for name in OF_TRUNK)


def by_trunk(runs: Iterable[Mapping[str, Any]]) -> list[list[int]]:
    """Return the places of the runs that share a trunk, in their order; a run that shares none is alone."""
    groups: dict[Hashable, list[int]] = {}
    for place, p in enumerate(runs):
        groups.setdefault(place if (trunk := trunk_of(p)) is None else trunk, []).append(place)
    return list(groups.values())
