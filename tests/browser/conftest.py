"""A headless Chromium for the tests of the reports."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.browser.devtools import Page, browser, find


@pytest.fixture(scope="module")
def chromium(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Page]:
    program = find()
    assert program
    with browser(program, tmp_path_factory.mktemp("profile")) as page:
        yield page
