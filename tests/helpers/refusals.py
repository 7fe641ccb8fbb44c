"""The message of a UserError."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from ctxgcd.catalogue.entries import METHODS
from ctxgcd.config import Params
from ctxgcd.errors import UserError
from ctxgcd.pipeline import targets
from ctxgcd.pipeline.possible import missing_package


def error_of(call: Callable[[], Any]) -> str:
    """Return the message, one line, of the UserError that the call raises."""
    with pytest.raises(UserError) as raised:
        call()
    assert "\n" not in str(raised.value)
    return str(raised.value)


def warned(params: Params, *words: str) -> list[str]:
    """Return the warnings of a call, without those about packages of methods that are not installed here."""
    absent = {missing_package(method) for method in METHODS}
    return [line for line in targets.check(params, words) if line not in absent]
