"""A small store."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.helpers.images import pack_shapes


@pytest.fixture
def packed(tmp_path: Path) -> Path:
    return pack_shapes(tmp_path)
