"""Creates the method of a run."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ctxgcd.catalogue.entries import METHODS, all_terms, load
from ctxgcd.config import completed
from ctxgcd.errors import UserError, nearest


def method_of(parameters: Mapping[str, Any]) -> Any:
    """Return the method of a run's parameters. Raises UserError for a term that is missing in the catalogue."""
    method = load(parameters["method"], parameters.get("modifiers", ()))(completed(parameters))
    for term in method.terms() if METHODS[parameters["method"]].trains else ():
        if term not in (valid := all_terms()):
            raise UserError(
                f"{type(method).__name__}.terms returns the term '{term}', but `terms` of the entries in "
                f"ctxgcd/catalogue/entries.py has {', '.join(valid)}{nearest(term, valid)}; add it there or correct "
                "the name (docs/add_method.md)"
            )
    return method
