"""The committed params.yaml with changes, and the values of its runs."""

from __future__ import annotations

from functools import cache
from typing import Any

from ctxgcd.config import Params, completed, parse, read
from ctxgcd.pipeline.resolve import resolve
from tests.helpers.places import ROOT

EIGHT = ["cub", "scars", "aircraft", "cifar10", "cifar100", "imagenet_100", "herbarium_19", "imagenet_1k"]
BOTH = ["L_n", "L_c"]


def edited(committed: dict[str, Any], place: str, value: Any) -> Params:
    """Change one value of params.yaml's content in place, as `methods.full.k`; return it validated."""
    *above, last = place.split(".")
    section = committed
    for part in above:
        section = section[part]
    section[last] = value
    return parse(committed)


OTHERWHERE = {"promptcal": "cub20_vit"}  # rows that the demo refuses -> a benchmark that accepts them


def values(row: str = "full-paper", /, **changes: Any) -> dict[str, Any]:
    """Return the values of the demo's run of a row with seed 0, including default values, with changes."""
    return completed(_demo(row)) | changes


@cache
def _demo(row: str) -> dict[str, Any]:
    return resolve(read(ROOT / "params.yaml"), OTHERWHERE.get(row, "fashion"), row, 0)
