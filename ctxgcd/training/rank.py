"""The number of processes of a training, and whether another one started this one. Imports no torch."""

from __future__ import annotations

import os

from ctxgcd.errors import UserError


def is_child_process() -> bool:
    """Return whether another process of the same training started this one."""
    return int(os.environ.get("LOCAL_RANK", "0")) > 0


def count_of(devices: str) -> int:
    """Return the number of processes of a training. Raises UserError unless it is a positive integer."""
    if not devices.isdecimal() or devices == "0":
        raise UserError(
            f"the resource gpu of this training is {devices}; give the number of processes, at least 1 (one per GPU, "
            "or on a CPU)"
        )
    return int(devices)
