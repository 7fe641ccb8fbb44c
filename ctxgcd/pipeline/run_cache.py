"""The run cache: finished runs are kept with their checkpoints and are copied, without training, when requested again.

Snakemake deletes a job's outputs if it is killed before it records them, or if a parameter changes. The cache keeps
finished runs in both cases, so runs are reused when a parameter is changed back.
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
    """Return an empty folder for the files of a run that is being finished."""
    made = state / "finishing"
    with on_disk(made):
        shutil.rmtree(made, ignore_errors=True)
        made.mkdir(parents=True)
    return made


def keep(state: Path) -> None:
    """Atomically turn the draft, which contains FILES, into the finished run."""
    made = state / "finishing"
    with on_disk(made):
        (made / SUMS).write_text(json.dumps({name: file_sha256(made / name) for name in FILES}), encoding="utf-8")
        os.replace(made, state / "finished")


def folder_of(work: Path, identity: str, row: str) -> Path:
    """Return the folder of a run's checkpoint and finished files.

    Its name contains the row, because two rows with equal parameters may train at the same time.
    """
    return work / f"{identity}-{row}"


def take(out: Path, state: Path) -> None:
    """Add the run in `out` to the cache, unless it is already cached."""
    if not (state / "finished").exists():
        made = draft(state)
        with on_disk(made):
            for name in FILES:
                shutil.copyfile(out / name, made / name)
        keep(state)


def give(state: Path, out: Path) -> bool:
    """Copy a cached run to `out` and return True; return False if none is cached.

    A damaged run is deleted with a warning.
    """
    kept = state / "finished"
    if not kept.exists():
        return False
    try:
        sums = json.loads((kept / SUMS).read_text(encoding="utf-8"))
        whole = sums == {name: file_sha256(kept / name) for name in FILES}
    except (OSError, ValueError):
        whole = False
    if not whole:
        print(f"warning: the finished run in {kept} is damaged; it is trained again", flush=True)
        with on_disk(kept):
            shutil.rmtree(kept) if kept.is_dir() else kept.unlink()
        return False
    clear_unfinished(out)
    for name in FILES:  # copies, because DVC changes files in results/
        with on_disk(out / name), replacing(out / name) as temporary:
            shutil.copyfile(kept / name, temporary)
    return True


def kept(work: Path, parameters: Mapping[str, Any], split_hash: str, code: str) -> Path | None:
    """Return the folder of a finished run with these parameters, this split and this code, or None.

    A run that finished before its code was declared equal has another identity; it is found by its modules' digests.
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
    except UserError:  # an older format, or damaged
        return False
    return (made["parameters"], made["split_sha256"]) == (parameters, split_hash) and code_of(made) == code


def code_of(made: Mapping[str, Any]) -> str:
    """Return the hash of the code of a run under the current declarations; empty if run.json has no modules."""
    return hash_of(made["modules"].values()) if isinstance(made.get("modules"), dict) else ""
