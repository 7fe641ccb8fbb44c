"""The server for the tests of this folder."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from http.server import ThreadingHTTPServer

import pytest

from tests.helpers.server import Behaviour, Handler


@pytest.fixture(autouse=True)
def no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("no_proxy", "*")


@pytest.fixture
def server() -> Iterator[Behaviour]:
    """A server on a free port of this host, with behaviour set by a test."""
    behaviour = Behaviour()
    http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    http.behaviour = behaviour  # type: ignore[attr-defined]
    behaviour.address = f"http://127.0.0.1:{http.server_port}"
    thread = threading.Thread(target=http.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    yield behaviour
    http.shutdown()
    http.server_close()
    thread.join()
