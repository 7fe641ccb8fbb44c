"""Locations of the benchmarks' data."""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from ctxgcd.errors import UserError, nearest

EMBEDDED = "embedded/"


def embedded(name: str) -> Path:
    """Return the folder of a benchmark included in the package."""
    return Path(__file__).parent / "embedded" / name


def folder_of(benchmark_folder_name: str) -> Path:
    """Return the folder of a benchmark: in the package for `embedded/NAME`, else below CTXGCD_DATA.

    CTXGCD_DATA_NAME sets a single folder (CTXGCD_DATA_CUB for `cub`) and takes precedence over both. Variables and `~`
    are expanded; a variable that is not set is kept, and the data check reports it.
    """
    if own := os.environ.get(variable_of(benchmark_folder_name)):
        return _expanded(own)
    if benchmark_folder_name.startswith(EMBEDDED):
        return embedded(benchmark_folder_name.removeprefix(EMBEDDED))
    return _expanded(os.environ.get("CTXGCD_DATA") or "data/raw") / _expanded(benchmark_folder_name)


def place_of(section: Mapping[str, Any]) -> Path:
    """Return the folder of a benchmark by its section of params.yaml: `path` of own images, else `folder`."""
    return _expanded(section["path"]) if "path" in section else folder_of(section["folder"])


def use_places(places: Any, folders: Collection[str]) -> None:
    """Set the locations of data from Snakemake's config: a root, or a mapping of `root` and single folders to paths.

    Environment variables take precedence. Raises UserError for another type or an unknown folder.
    """
    mapping = places if isinstance(places, Mapping) else {"root": places}
    for name, path in mapping.items():
        if not isinstance(path, str) or not path:
            raise UserError(
                f"config data: {name} is {path!r}, but expected a folder; write data=FOLDER or data={{root: FOLDER}}"
            )
        if name != "root" and name not in folders:
            raise UserError(f"config data: unknown folder '{name}'{nearest(str(name), folders)}")
        os.environ.setdefault("CTXGCD_DATA" if name == "root" else variable_of(name), path)


def variable_of(benchmark_folder_name: str) -> str:
    """Return the environment variable with the location of one benchmark's folder."""
    return "CTXGCD_DATA_" + re.sub(r"\W", "_", benchmark_folder_name).upper()


def _expanded(path: str) -> Path:
    return Path(os.path.expanduser(os.path.expandvars(path)))
