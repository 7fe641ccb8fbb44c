"""Checkpoints: files of tensors and plain types, written atomically and loadable with weights_only=True."""

from __future__ import annotations

import hashlib
import os
import platform
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import torch
from filelock import FileLock, Timeout
from torch import Tensor

from ctxgcd.errors import UserError
from ctxgcd.models import weights
from ctxgcd.utils.files import on_disk, write_text

# Schema versions of each kind of file; docs/migration.md describes them and how to handle older files.
SCHEMAS = {"ctxgcd-state": 3, "ctxgcd-model": 2, "ctxgcd-discovery": 2}
OWNER = "owner"  # in the locked folder: the process that holds the lock
PATIENCE, POLL = 60.0, 1.0  # seconds to wait for another process, and between two attempts


class TrainedElsewhere(UserError):
    """Another process trains the run."""


@contextmanager
def owned(folder: Path, patience: float | None = PATIENCE) -> Iterator[None]:
    """Lock a run's state folder; the kernel releases the lock when the process ends.

    patience: seconds to wait for another process that trains the run; None waits until that process has ended.

    Raises TrainedElsewhere, a UserError, if another process still trains the run after the waiting time.
    """
    lock, owner = FileLock(folder / "lock"), folder / OWNER
    with on_disk(folder):
        folder.mkdir(parents=True, exist_ok=True)
        try:
            lock.acquire(timeout=0)
        except Timeout:
            who = _text(owner) or "another process"
            if patience != 0:
                print(f"waiting for {who}, which trains the run in {folder}", flush=True)
            try:
                lock.acquire(timeout=-1 if patience is None else patience, poll_interval=POLL)
            except Timeout:
                raise TrainedElsewhere(f"{who} trains the run in {folder}; wait until it has ended") from None
    try:
        with suppress(UserError):  # the disk may be full, and only a training needs space
            write_text(owner, f"process {os.getpid()} on {platform.node()} ({Path(sys.argv[0]).name})")
        yield
    finally:
        with suppress(OSError):
            owner.unlink()
        lock.release()


def _text(file: Path) -> str:
    """Return the text of a file, or nothing if there is none."""
    return file.read_text(encoding="utf-8") if file.exists() else ""


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
