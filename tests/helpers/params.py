"""Changes of the committed params.yaml."""

from __future__ import annotations

from typing import Any

from ctxgcd.config import Params, parse

EIGHT = ["cub", "scars", "aircraft", "cifar10", "cifar100", "imagenet_100", "herbarium_19", "imagenet_1k"]
BOTH = ["L_n", "L_c"]


def edited(committed: dict[str, Any], place: str, value: Any) -> Params:
    *above, last = place.split(".")
    section = committed
    for part in above:
        section = section[part]
    section[last] = value
    return parse(committed)
