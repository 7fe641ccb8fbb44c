"""The scores that a table is made of: of the runs that are asked for, not of others that lie in their place."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ctxgcd.errors import UserError
from ctxgcd.pipeline.identity import parameters_hash
from ctxgcd.utils.files import read_object


def read_scores(files: Sequence[Path], asked: Sequence[str]) -> list[dict[str, Any]]:
    """Return the content of each metrics.json.

    Snakemake knows with what a run was made only where it made it itself: not of results that were copied or pulled.

    Args:
        files: a metrics.json a run.
        asked: hash of the parameters that are asked for now (runs.parameters_hash), in the same order.

    Raises:
        UserError: a file is damaged, or its run was made with other parameters.
    """
    found = [read_object(file, "parameters") for file in files]
    for file, made, now in zip(files, found, asked, strict=True):
        if parameters_hash(made["parameters"]) != now:
            raise UserError(
                f"{file.parent} was made with other parameters than params.yaml asks for now, so it is in no table; "
                "delete that folder and run the same command again, or take the change of params.yaml back"
            )
    return found
