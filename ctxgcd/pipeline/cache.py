"""Finished runs in work/runs: those of this very identity, and those that equal code has made."""

from __future__ import annotations

from collections.abc import Mapping
from glob import escape
from pathlib import Path
from typing import Any

from ctxgcd.errors import UserError
from ctxgcd.files import read_object
from ctxgcd.pipeline.code import hash_of
from ctxgcd.pipeline.identity import identity
from ctxgcd.training import finished


def kept(work: Path, parameters: Mapping[str, Any], split_hash: str, code: str) -> Path | None:
    """The state folder of a finished run of these parameters, this split and this code, or None.

    A run that was finished before its code was declared equal lies under another identity; it is found by the digests
    of its modules.
    """
    row = parameters["row"]
    own = finished.folder_of(work, identity(dict(parameters), split_hash, code), row)
    if (own / "finished").is_dir():
        return own
    others = sorted(work.glob(f"*-{escape(row)}/finished/run.json"))
    return next((file.parents[1] for file in others if _is_equal(file, parameters, split_hash, code)), None)


def _is_equal(run: Path, parameters: Mapping[str, Any], split_hash: str, code: str) -> bool:
    try:
        made = read_object(run, "parameters", "split_sha256", "modules")
    except UserError:  # of an older scheme, or damaged
        return False
    return (made["parameters"], made["split_sha256"]) == (parameters, split_hash) and code_of(made) == code


def code_of(made: Mapping[str, Any]) -> str:
    """The hash of the code that made a run, by what is declared equal now; empty where run.json has no modules."""
    return hash_of(made["modules"].values()) if isinstance(made.get("modules"), dict) else ""
