"""The message of a UserError."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from ctxgcd.errors import UserError


def error_of(call: Callable[[], Any]) -> str:
    """Return the message, one line, of the UserError that the call raises."""
    with pytest.raises(UserError) as raised:
        call()
    assert "\n" not in str(raised.value)
    return str(raised.value)
