"""The one sentence of a mistake."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from ctxgcd.errors import UserError


def told(call: Callable[[], Any]) -> str:
    """The sentence of the UserError that the call raises."""
    with pytest.raises(UserError) as raised:
        call()
    assert "\n" not in str(raised.value)
    return str(raised.value)
