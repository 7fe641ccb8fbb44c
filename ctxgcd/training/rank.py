"""The number of processes of a training, and whether another one started this one. Imports no torch."""

from __future__ import annotations

import os

from ctxgcd.errors import UserError


def is_child_process() -> bool:
    """Return whether another process of the same training started this one."""
    return int(os.environ.get("LOCAL_RANK", "0")) > 0


def count_of(devices: str) -> int:
    """Return the number of processes of a training: one per device, also if none is needed because the run is cached.

    Raises UserError unless `devices` is an integer from 0.
    """
    if not devices.isdecimal():
        raise UserError(
            f"the resource gpu of this training is {devices}; give the number of processes (one per GPU, or on a CPU)"
        )
    return max(1, int(devices))
