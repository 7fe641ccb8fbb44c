"""Files of tensors and plain types, written whole or not at all, loadable with weights_only=True."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from filelock import FileLock, Timeout
from torch import Tensor

from ctxgcd.errors import UserError
from ctxgcd.models import weights
from ctxgcd.utils.files import on_disk

# Of each kind of file: docs/migration.md says what each one is, and what to do with an older file.
SCHEMAS = {"ctxgcd-state": 3, "ctxgcd-model": 2, "ctxgcd-discovery": 2}
PATIENCE = 60.0  # seconds that a training waits for another one of the same run: an orphan ends in a step's time


@contextmanager
def owned(folder: Path, patience: float = PATIENCE) -> Iterator[None]:
    """Hold a run's state folder, waiting a while for another process that holds it; the kernel frees it.

    Raises UserError while another process trains that run.
    """
    lock = FileLock(folder / "lock")
    with on_disk(folder):
        folder.mkdir(parents=True, exist_ok=True)
        try:
            lock.acquire(timeout=0)
        except Timeout:
            print(f"waiting for another process that trains the run of {folder}", flush=True)
            try:
                lock.acquire(timeout=patience)
            except Timeout:
                raise UserError(
                    f"the run of {folder} is being trained by another process; wait for it to end"
                ) from None
    try:
        yield
    finally:
        lock.release()


def save(path: Path, kind: str, content: Mapping[str, Any]) -> None:
    """Write `content` with its kind, schema and digest to a temporary name, then move it into place."""
    weights.save(path, {"kind": kind, "schema": SCHEMAS[kind], "digest": digest(content), **content})


def load(path: Path, kind: str, anew: str = "delete it to start that run anew") -> dict[str, Any]:
    """Read what `save` wrote. Raises UserError for a damaged file, another kind or another schema.

    anew: what to do then.
    """
    try:
        content = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # unpickling raises many kinds; each means a damaged or foreign file
        raise UserError(
            f"{path} cannot be read, is damaged or no file of ctxgcd ({type(error).__name__}); {anew}"
        ) from None
    if not isinstance(content, dict) or content.pop("kind", None) != kind:
        raise UserError(f"{path} is no {kind} of ctxgcd; give the right file, or {anew}")
    if (schema := content.pop("schema", None)) != SCHEMAS[kind]:
        raise UserError(
            f"{path} has schema {schema}, but this version reads schema {SCHEMAS[kind]}; {anew}, or see "
            "docs/migration.md"
        )
    if content.pop("digest", None) != digest(content):
        raise UserError(f"{path} is damaged: its content is not what was written; {anew}")
    return content


def digest(content: Any) -> str:
    """A sha256 over nested dicts and lists of tensors and plain types; torch itself loads a flipped bit silently."""
    found = hashlib.sha256()

    def add(part: Any) -> None:
        if isinstance(part, Tensor):
            found.update(f"{part.dtype}{tuple(part.shape)}".encode())
            found.update(part.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().data)
        elif isinstance(part, Mapping):
            for key, value in part.items():
                found.update(f"{key!r}:".encode())
                add(value)
        elif isinstance(part, list | tuple):
            found.update(f"[{len(part)}]".encode())
            for value in part:
                add(value)
        else:
            found.update(repr(part).encode())

    add(content)
    return found.hexdigest()
