"""The benchmarks: readers, class lists, the split rule, the data check; here, where their files lie."""

from __future__ import annotations

import os
from pathlib import Path

EMBEDDED = "embedded/"


def embedded(name: str) -> Path:
    """Return the folder of a benchmark that travels inside the package."""
    return Path(__file__).parent / "embedded" / name


def folder_of(benchmark_folder_name: str) -> Path:
    """Return the folder of a benchmark: inside the package for `embedded/NAME`, else below CTXGCD_DATA.

    Variables and `~` are expanded; a variable that is not set stays as it is and the data check names it.
    """
    if benchmark_folder_name.startswith(EMBEDDED):
        return embedded(benchmark_folder_name.removeprefix(EMBEDDED))
    root = os.environ.get("CTXGCD_DATA") or "data/raw"
    return Path(os.path.expandvars(root)).expanduser() / os.path.expandvars(benchmark_folder_name)
