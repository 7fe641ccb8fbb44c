"""The scores of a table's runs, checked against the requested parameters."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ctxgcd.errors import UserError
from ctxgcd.pipeline.identity import parameters_hash
from ctxgcd.utils.files import read_object


def read_scores(files: Sequence[Path], hashes: Sequence[str]) -> list[dict[str, Any]]:
    """Return the content of each metrics.json.

    Snakemake does not know the parameters of results that were copied or pulled, so they are compared here.

    Args:
        files: the metrics.json files of the runs.
        hashes: hashes of the requested parameters (identity.parameters_hash), in the same order.

    Raises:
        UserError: a file is damaged, or its run was made with other parameters.
    """
    found = [read_object(file, "parameters") for file in files]
    for file, made, now in zip(files, found, hashes, strict=True):
        if parameters_hash(made["parameters"]) != now:
            raise UserError(
                f"{file.parent} was made with other parameters than the current params.yaml; delete this folder and "
                "run the same command again, or undo the change of params.yaml"
            )
    return found
