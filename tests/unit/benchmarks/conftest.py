"""The official layouts, written once because one process runs this folder."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.helpers.layouts import OFFICIAL, write_fixture


@pytest.fixture(scope="session")
def official(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A data folder with every official layout, of two training images and one test image per class.

    A test that changes a folder copies it.
    """
    root = tmp_path_factory.mktemp("official")
    for name in OFFICIAL:
        write_fixture(name, root, train_per_class=2)
    return root
