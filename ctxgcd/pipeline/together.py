"""`snakemake together TARGET...`: runs of one benchmark and seed are trained in one job.

Runs with new views through the same trunk share its forward passes, which are most of their cost. Other runs save the
imports, which take seconds, and those with the same cached views read the sampled ones once. The jobs keep the runs in
the run cache, and the normal call copies them from there.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any, NoReturn

from ctxgcd.config import Params
from ctxgcd.pipeline.identity import short_hash
from ctxgcd.pipeline.paths import TOGETHER
from ctxgcd.pipeline.resolve import resolve
from ctxgcd.pipeline.runs import Run
from ctxgcd.pipeline.trunk import grouped, trunk_of
from ctxgcd.pipeline.why import cached, difference
from ctxgcd.utils.files import undamaged, write_text

RULE = "train_together"
MOST = 10  # runs of one job, unless they share the trunk
MARK = "argument-"  # replaces arguments to find out which of them are targets
NEXT = "the same call without `together` copies the runs and makes scores, tables and figures"
CALLED = "CTXGCD_TOGETHER"  # the targets of a call of `together`, whose process then makes jobs and no targets


TargetsOf = Callable[[Sequence[str]], Sequence[str]]


def call(
    jobs: Iterable[Sequence[Run]], wanted: Sequence[str], words: Sequence[str], snakefile: str, targets_of: TargetsOf
) -> NoReturn:
    """Replace this process by a call of Snakemake for jobs in place of targets.

    Snakemake offers no way to change its targets while it reads the Snakefile.

    Args:
        jobs: the runs of each job.
        wanted: the targets.
        words: arguments of the call without `together`.
        snakefile: path of the main Snakefile.
        targets_of: returns the targets among arguments, as Snakemake parses them.
    """
    # The last of repeated options takes precedence: the call's own paths are relative to the folder it was started in.
    here = ["--snakefile", snakefile, "--directory", str(Path.cwd())]
    options = [*without_targets(words, wanted, targets_of), *here]
    specs = [f"{RULE}:{','.join(f'{key}={value}' for key, value in written(runs).items())}" for runs in jobs]
    os.environ[CALLED] = " ".join(wanted)
    sys.stdout.flush()
    os.execv(sys.executable, [sys.executable, "-m", "snakemake", "--target-jobs", *specs, *options])


def without_targets(words: Sequence[str], wanted: Sequence[str], targets_of: TargetsOf) -> list[str]:
    """Return the arguments of a call without its targets. An option may have the name of a target as its value."""
    marked = [f"{MARK}{place}" if word in wanted else word for place, word in enumerate(words)]
    found = set(targets_of(marked))
    return [word for word, mark in zip(words, marked, strict=True) if word != "--" and mark not in found]


def targets() -> list[str]:
    """Return the targets of the call of `together` that became this process, if it is one."""
    return os.environ.get(CALLED, "").split()


def unfinished(params: Params, runs: Iterable[Run], results: Path = Path()) -> list[Run]:
    """Return the unique runs that are neither up to date in results/ nor finished in the run cache.

    results: the folder that contains results/, if a storage provider is used.
    """
    unique = dict.fromkeys(runs)
    return [run for run in unique if difference(params, run, results) and not cached(params, run, results)]


def divided(params: Params, runs: Sequence[Run], cores: int) -> list[list[Run]]:
    """Divide runs into jobs of one benchmark, seed and number of threads.

    Runs that share the trunk are one job. The others are divided into jobs of about equal size: of at most MOST runs,
    and of fewer if there are few runs for the number of cores.
    """
    most = max(1, min(MOST, len(runs) // cores))
    jobs = []
    for group in _groups(params, runs):
        by = grouped([resolve(params, run.benchmark, run.row, run.seed) for run in group], trunk_of)
        jobs += [[group[place] for place in places] for places in by if len(places) > 1]
        jobs += _parts([group[places[0]] for places in by if len(places) == 1], most)
    return jobs


def threads(params: Params, runs: Sequence[Run]) -> int:
    """Return the number of threads of the runs of a job."""
    return _threads(params, runs[0])


def written(runs: Sequence[Run]) -> dict[str, str]:
    """Write the rows of a job to a file named by their hash; return the job's wildcards, from which `read` finds it.

    The rows are in a file because a job in a queue or a pod is planned again there, without the targets of the call.
    """
    rows = rows_file([run.row for run in runs])
    return {"benchmark": runs[0].benchmark, "seed": str(runs[0].seed), "content": rows.stem}


def read(benchmark: str, seed: str, content: str) -> list[Run]:
    """Return the runs of a job."""
    file = TOGETHER / f"{content}.json"
    with undamaged(file):
        rows = json.loads(file.read_text(encoding="utf-8"))
    return [Run(benchmark, row, int(seed)) for row in rows]


def rows_file(content: Any) -> Path:
    """Write values of JSON types to a file named by their hash, unless it is there undamaged; return its path."""
    text = json.dumps(content)
    file = TOGETHER / f"{short_hash(text)}.json"
    if not file.is_file() or file.read_bytes() != text.encode():
        write_text(file, text)
    return file


def _groups(params: Params, runs: Iterable[Run]) -> Iterator[list[Run]]:
    def key(run: Run) -> tuple[str, int, int]:
        return run.benchmark, run.seed, _threads(params, run)

    for _, of in groupby(sorted(runs, key=key), key):
        yield list(of)


def _threads(params: Params, run: Run) -> int:
    number: int = resolve(params, run.benchmark, run.row, run.seed)["threads"]
    return number


def _parts(runs: list[Run], most: int) -> Iterator[list[Run]]:
    count = -(-len(runs) // most)
    for number in range(count):
        yield runs[number::count]
