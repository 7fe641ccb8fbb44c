"""Whether another process of the same training started this one. Imports no torch."""

from __future__ import annotations

import os


def is_child_process() -> bool:
    """Return whether another process of the same training started this one."""
    return int(os.environ.get("LOCAL_RANK", "0")) > 0
