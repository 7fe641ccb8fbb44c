"""The requested runs of own images, which may be impossible with the split of these images."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path

from ctxgcd.config import Own, Params
from ctxgcd.pipeline.paths import split_file
from ctxgcd.pipeline.possible import check_split
from ctxgcd.pipeline.resolve import resolve
from ctxgcd.pipeline.runs import Run
from ctxgcd.pipeline.why import split_made_again


def limits_of(params: Params, runs: Iterable[Run]) -> str:
    """Return the runs for `possible.check_requested` as JSON: those of own images, whose numbers only a split contains.

    Raises UserError for a run that is impossible with a recorded split that is up to date.
    """
    own = sorted({(run.benchmark, run.row) for run in runs if isinstance(params.benchmarks[run.benchmark], Own)})
    limits = [resolve(params, benchmark, row, 0) for benchmark, row in own]
    for benchmark in dict.fromkeys(benchmark for benchmark, _ in own):
        if not split_made_again(params, benchmark):
            from ctxgcd.benchmarks.split_file import read_split  # here, because it imports pandas

            split = read_split(Path(split_file(benchmark)))
            for resolved in limits:
                if resolved["benchmark"] == benchmark:
                    check_split(resolved, split)
    return json.dumps(limits)
