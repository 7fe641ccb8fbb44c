"""The base class of all sections of params.yaml."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel, ConfigDict


class Closed(BaseModel):
    """A section that refuses unknown keys and does not convert values of other types.

    A field with a default was added later, and the default keeps the earlier behaviour. A value equal to the default is
    not part of a run's identity.
    """

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, allow_inf_nan=False)


def defaults(section: type[Closed]) -> dict[str, Any]:
    """Return the defaults of the fields that have one."""
    return {name: field.default for name, field in section.model_fields.items() if not field.is_required()}


def without_defaults(section: type[Closed], values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values that differ from their field's default."""
    usual = defaults(section)
    return {name: value for name, value in values.items() if name not in usual or value != usual[name]}
