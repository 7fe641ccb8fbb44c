"""Files of tensors and plain types, written whole or not at all, loadable with weights_only=True."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from filelock import FileLock, Timeout

from ctxgcd.errors import UserError
from ctxgcd.files import replacing

SCHEMA = 1


@contextmanager
def owned(folder: Path) -> Iterator[None]:
    """Hold a run's state folder; raises UserError while another process trains that run. The kernel frees it."""
    folder.mkdir(parents=True, exist_ok=True)
    lock = FileLock(folder / "lock")
    try:
        lock.acquire(timeout=0)
    except Timeout:
        raise UserError(f"the run of {folder} is being trained by another process; wait for it to end") from None
    try:
        yield
    finally:
        lock.release()


def save(path: Path, kind: str, content: dict[str, Any]) -> None:
    """Write `content` with its kind and schema to a temporary name, then move it into place."""
    try:
        with replacing(path) as temporary:
            torch.save({"kind": kind, "schema": SCHEMA, **content}, temporary)
    except (OSError, RuntimeError) as error:  # torch reports a full disk as a RuntimeError
        raise UserError(
            f"{path} cannot be written ({error}); free space or give a writable folder, then run again"
        ) from None


def load(path: Path, kind: str) -> dict[str, Any]:
    """Read what `save` wrote. Raises UserError for a damaged file, another kind or another schema."""
    try:
        content = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # unpickling raises many kinds; each means a damaged or foreign file
        raise UserError(
            f"{path} is damaged or no file of ctxgcd ({type(error).__name__}); delete it to start that run anew"
        ) from None
    found = (
        (content.get("kind"), content.get("schema")) if isinstance(content, dict) else (type(content).__name__, None)
    )
    if found != (kind, SCHEMA):
        raise UserError(
            f"{path} holds {found[0]!r} of schema {found[1]}, expected {kind!r} of schema {SCHEMA}; give the right file"
        )
    return content
