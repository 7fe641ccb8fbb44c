"""What every section of params.yaml is made of."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel, ConfigDict


class Closed(BaseModel):
    """A section whose keys are exactly its fields; values are not coerced from other types.

    A field with a default was added at the behaviour of before: a value equal to it is no part of a run's identity.
    """

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, allow_inf_nan=False)


def defaults(section: type[Closed]) -> dict[str, Any]:
    """The fields that have a default, with it."""
    return {name: field.default for name, field in section.model_fields.items() if not field.is_required()}


def without_defaults(section: type[Closed], values: Mapping[str, Any]) -> dict[str, Any]:
    """The values that differ from their field's default."""
    usual = defaults(section)
    return {name: value for name, value in values.items() if name not in usual or value != usual[name]}
