"""Differences between two named settings, or between two rows of a benchmark."""

from __future__ import annotations

import re
from typing import Any

from ctxgcd.catalogue.entries import METHODS
from ctxgcd.config import Params, completed
from ctxgcd.errors import UserError, nearest
from ctxgcd.pipeline.resolve import resolve, values_of
from ctxgcd.pipeline.rows import ROW, refuse


def differences(params: Params, first: str, second: str, benchmark: str | None) -> dict[str, tuple[Any, Any]]:
    """Return every value that differs, by key, as (first, second); None for a value that a row does not read.

    Raises UserError for an unknown name.
    """
    if benchmark is not None:
        refuse(benchmark, params.benchmarks, "--benchmark", "benchmark")
    kinds = [name in params.settings for name in (first, second)]
    if benchmark is not None and kinds[0] != kinds[1]:
        named, row = (first, second) if kinds[0] else (second, first)
        raise UserError(f"'{named}' names settings and '{row}' is a row; give two settings or two rows")
    one, other = (_values(params, name, benchmark) for name in (first, second))
    return {
        key: (one.get(key), other.get(key))
        for key in dict.fromkeys([*one, *other])
        if key != "row" and one.get(key) != other.get(key)
    }


def with_defaults(resolved: dict[str, Any]) -> dict[str, Any]:
    """Return a run's values, followed by those that it reads and `resolve` leaves out because they are the default."""
    return resolved | completed(resolved) | {"modifiers": resolved.get("modifiers", [])}


def _values(params: Params, name: str, benchmark: str | None) -> dict[str, Any]:
    """Return the values of named settings, or of a row of a benchmark, by key."""
    if name not in params.settings:
        if benchmark is None:
            if ROW.fullmatch(name) and re.split("[-+]", name)[0] in METHODS:
                raise UserError(f"'{name}' is a row, whose values depend on the benchmark; add --benchmark NAME")
            raise UserError(
                f"unknown settings '{name}'{nearest(name, params.settings)}; valid: {', '.join(params.settings)}, or a "
                "row with --benchmark"
            )
        return with_defaults(resolve(params, benchmark, name, params.seeds[0]))
    return {
        f"{method}.{key}": value
        for method in params.methods
        for key, value in values_of(params, method, name, benchmark).items()
    }
