"""Checkpoints: files of tensors and plain types, written atomically and loadable with weights_only=True."""

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

# Schema versions of each kind of file; docs/migration.md describes them and how to handle older files.
SCHEMAS = {"ctxgcd-state": 3, "ctxgcd-model": 2, "ctxgcd-discovery": 2}
PATIENCE = 60.0  # seconds to wait for another training of the same run; an orphan ends within one step


class TrainedElsewhere(UserError):
    """Another process trains the run."""


@contextmanager
def owned(folder: Path, patience: float = PATIENCE) -> Iterator[None]:
    """Lock a run's state folder; the kernel releases the lock when the process ends.

    Raises TrainedElsewhere, a UserError, if another process still trains the run after a waiting time.
    """
    lock = FileLock(folder / "lock")
    with on_disk(folder):
        folder.mkdir(parents=True, exist_ok=True)
        try:
            lock.acquire(timeout=0)
        except Timeout:
            if patience:
                print(f"waiting for another process that trains the run in {folder}", flush=True)
            try:
                lock.acquire(timeout=patience)
            except Timeout:
                raise TrainedElsewhere(f"another process trains the run in {folder}; wait until it has ended") from None
    try:
        yield
    finally:
        lock.release()


def save(path: Path, kind: str, content: Mapping[str, Any]) -> None:
    """Write `content` atomically, with its kind, schema and digest."""
    weights.save(path, {"kind": kind, "schema": SCHEMAS[kind], "digest": digest(content), **content})


def load(path: Path, kind: str, advice: str = "delete it to restart the training") -> dict[str, Any]:
    """Read a file written by `save`. Raises UserError for a damaged file, another kind or another schema.

    advice: advice in these messages.
    """
    try:
        content = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # pickle raises many types of errors for an invalid file
        raise UserError(f"{path} is damaged or was not written by ctxgcd ({type(error).__name__}); {advice}") from None
    if not isinstance(content, dict) or content.pop("kind", None) != kind:
        raise UserError(f"{path} is not a file of kind {kind}; give the right file, or {advice}")
    if (schema := content.pop("schema", None)) != SCHEMAS[kind]:
        raise UserError(
            f"{path} has schema {schema}, but this version reads schema {SCHEMAS[kind]}; {advice}, or see "
            "docs/migration.md"
        )
    if content.pop("digest", None) != digest(content):
        raise UserError(f"{path} is damaged: its content does not match its digest; {advice}")
    return content


def digest(content: Any) -> str:
    """Return a SHA-256 of nested dicts and lists of tensors and plain types, which detects bit errors."""
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
