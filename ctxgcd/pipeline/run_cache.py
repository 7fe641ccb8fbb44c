"""A finished run is kept beside its resume state: asked for again, it is given without training.

Snakemake deletes a job's outputs where it was killed before it recorded them, and where a value changed; a run whose
training had ended is then not lost, and a value that is changed back finds its run again.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Mapping
from glob import escape
from pathlib import Path
from typing import Any

from ctxgcd.errors import UserError
from ctxgcd.pipeline.code import hash_of
from ctxgcd.pipeline.identity import identity
from ctxgcd.utils.files import clear_unfinished, file_sha256, on_disk, read_object, replacing

FILES = ("run.json", "history.csv", "params.yaml", "final.pt", "assignments.csv", "embeddings.npz")
SUMS = "sha256.json"


def draft(state: Path) -> Path:
    """An empty folder for the files of a run that is about to be finished."""
    made = state / "finishing"
    with on_disk(made):
        shutil.rmtree(made, ignore_errors=True)
        made.mkdir(parents=True)
    return made


def keep(state: Path) -> None:
    """Make the draft, which holds FILES, the finished run: whole or not at all."""
    made = state / "finishing"
    with on_disk(made):
        (made / SUMS).write_text(json.dumps({name: file_sha256(made / name) for name in FILES}), encoding="utf-8")
        os.replace(made, state / "finished")


def folder_of(work: Path, identity: str, row: str) -> Path:
    """Where a run's state and its finished files lie; with its row: two rows of equal parameters may train at once."""
    return work / f"{identity}-{row}"


def take(out: Path, state: Path) -> None:
    """Keep the run whose files lie in `out`, unless it is kept already."""
    if not (state / "finished").exists():
        made = draft(state)
        with on_disk(made):
            for name in FILES:
                shutil.copyfile(out / name, made / name)
        keep(state)


def give(state: Path, out: Path) -> bool:
    """Copy a kept run to `out`; False where none is kept, or (told, and deleted) none that is as it was written."""
    kept = state / "finished"
    if not kept.exists():
        return False
    try:
        sums = json.loads((kept / SUMS).read_text(encoding="utf-8"))
        whole = sums == {name: file_sha256(kept / name) for name in FILES}
    except (OSError, ValueError):
        whole = False
    if not whole:
        print(f"warning: the finished run in {kept} is damaged, so it is trained anew", flush=True)
        with on_disk(kept):
            shutil.rmtree(kept) if kept.is_dir() else kept.unlink()
        return False
    clear_unfinished(out)
    for name in FILES:  # copies: what DVC makes of the results must not reach the kept ones
        with on_disk(out / name), replacing(out / name) as temporary:
            shutil.copyfile(kept / name, temporary)
    return True


def kept(work: Path, parameters: Mapping[str, Any], split_hash: str, code: str) -> Path | None:
    """The state folder of a finished run of these parameters, this split and this code, or None.

    A run that was finished before its code was declared equal lies under another identity; it is found by the digests
    of its modules.
    """
    row = parameters["row"]
    own = folder_of(work, identity(dict(parameters), split_hash, code), row)
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
