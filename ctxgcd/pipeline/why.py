"""Why a run would be made again: differences between the request and the record in its files."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ctxgcd.config import Params
from ctxgcd.errors import UserError
from ctxgcd.names import counted
from ctxgcd.pipeline import code, run_cache
from ctxgcd.pipeline.classes import class_list_hash
from ctxgcd.pipeline.data_fingerprint import data_fingerprint
from ctxgcd.pipeline.diff import with_defaults
from ctxgcd.pipeline.equality import oldest
from ctxgcd.pipeline.identity import ESTIMATED, read_estimate
from ctxgcd.pipeline.paths import RUN_CACHE, RUNS, estimate_file, split_file
from ctxgcd.pipeline.resolve import estimate_of, resolve
from ctxgcd.pipeline.rows import parse_row
from ctxgcd.pipeline.run_cache import code_of, kept
from ctxgcd.pipeline.runs import Run, read_seed
from ctxgcd.utils.files import file_sha256, read_or_empty

TRAINING = re.compile(r"Job \d+: Training (\S+) (\S+) seed (\d+)\nReason: (.*)")  # in a dry run
STATS = re.compile(r"^(?!(?:total|train) )(\w+) +(\d+)$", re.MULTILINE)  # the jobs of other rules in a dry run
OLD_SCHEME = "its run.json has an older format without the digests of modules (docs/migration.md)"


def why(params: Params, requested: Sequence[Run], words: Sequence[str], snakefile: str, results: Path = Path()) -> str:
    """Return the reason for each run that a call would make, one line per run, and the numbers of other runs and jobs.

    Args:
        requested: the runs behind the targets.
        words: arguments of the call without `why`; a dry run with them lists the runs that would be made.
        snakefile: path of the call's Snakefile.
        results: the folder that contains results/, if a storage provider is used.
    """
    planned, others = _planned(words, snakefile)
    reasons = {run: _reason(params, run, snakemake_reason, results) for run, snakemake_reason in planned.items()}
    lines = [f"{run.folder.removeprefix(f'{RUNS}/')}: {reason}" for run, reason in reasons.items()]
    rest = len(set(requested) - set(planned))
    jobs = f"; other jobs: {', '.join(f'{rule} {number}' for rule, number in others.items())}" if others else ""
    return "\n".join([*lines, f"{counted(len(planned), 'run')} would be made, {rest} up to date{jobs}"])


def difference(params: Params, run: Run, results: Path = Path()) -> str:
    """Return how a run differs from the requested one, in words; empty if it is up to date."""
    made = read_or_empty(results / run.file("run.json"))
    recorded = made.get("parameters")
    if not isinstance(recorded, dict):
        return "its run.json is missing or damaged" if (results / run.folder).is_dir() else "it does not exist"
    if lacking := [name for name in run_cache.FILES if not (results / run.file(name)).is_file()]:
        return f"it lacks {', '.join(lacking)}"
    try:
        requested = resolve(params, run.benchmark, run.row, run.seed)
        if requested["K"] == ESTIMATED:
            requested["K"] = estimated_now(params, run.benchmark, results)
    except UserError as error:
        return str(error)
    usual = with_defaults({"method": requested["method"]})
    now, before = usual | requested, usual | recorded
    changed = [
        f"{key} is {_shown(now, key)}, was {_shown(before, key)}"
        for key in now | before
        if _shown(now, key) != _shown(before, key)
    ]
    why = [f"other parameters ({', '.join(changed)})"] if changed else []
    if made.get("split_sha256") != (split := split_hash(run.benchmark, results)):
        why.append(f"another split ({split[:8]}, was {str(made.get('split_sha256'))[:8]})")
    by = code.of_row(params.benchmarks[run.benchmark].reader, parse_row(run.row))
    if code_of(made) != by.hash:
        why.append(changed_code(made, by.modules))
    return ", ".join(why)


def cached(params: Params, run: Run, results: Path = Path()) -> Path | None:
    """Return the folder of a cached run with the requested parameters, code and the present split, or None."""
    parameters, split = resolve(params, run.benchmark, run.row, run.seed), split_hash(run.benchmark, results)
    try:
        if parameters["K"] == ESTIMATED:
            parameters["K"] = estimated_now(params, run.benchmark, results)
    except UserError:
        return None
    by = code.of_row(params.benchmarks[run.benchmark].reader, parse_row(run.row))
    return kept(RUN_CACHE, parameters, split, by.hash)


def changed_code(made: Mapping[str, Any], modules: Mapping[str, str]) -> str:
    """Return which modules changed since a result was made, in words, except those declared equal."""
    before = made.get("modules")
    if not isinstance(before, dict):
        return OLD_SCHEME
    old, now = (frozenset[str]().union(*map(oldest, of.values())) for of in (before, modules))
    changed = [name for name, digest in modules.items() if not oldest(digest) <= old]
    gone = [name for name, digest in before.items() if not oldest(digest) <= now and name not in changed]
    differences = [f"{_path(name)} changed" if name in before else f"{_path(name)} is new" for name in changed]
    return ", ".join([*differences, *(f"{_path(name)} is no longer used" for name in gone)])


def split_hash(benchmark: str, results: Path = Path()) -> str:
    """Return the SHA-256 of the split itself, independent of the recorded hash."""
    file = results / split_file(benchmark)
    return file_sha256(file) if file.is_file() else "missing"


def estimated_now(params: Params, benchmark: str, results: Path = Path()) -> int:
    """Return the estimate of K. Raises UserError unless it is up to date."""
    file = results / estimate_file(benchmark)
    requested = estimate_of(params, benchmark) | {"code": code.script("estimate_k").hash}
    made = read_or_empty(file)
    if any(made.get(key) != value for key, value in requested.items()):
        raise UserError(f"its K must be estimated again ({file} is missing or out of date)")
    return read_estimate(file)


def _reason(params: Params, run: Run, snakemake_reason: str, results: Path) -> str:
    found = difference(params, run, results) or split_made_again(params, run.benchmark, results)
    return f"{found or snakemake_reason}{_from_the_cache(params, run, results)}"


def split_made_again(params: Params, benchmark: str, results: Path = Path()) -> str:
    """Return why the list of images and the split are made again; the split itself may stay the same."""
    made, entry = read_or_empty(results / split_file(benchmark, "source.json")), params.benchmarks[benchmark]
    by = code.manifest(entry.reader) | code.split(entry.reader)
    why = [changed_code(made, by.modules)] if code_of(made) != by.hash else []
    if made.get("fingerprint") != data_fingerprint(benchmark, entry.model_dump()):
        why.append("its data changed")
    if (now := class_list_hash(entry)) and made.get("class_list", {}).get("sha256") != now:
        why.append("its class list changed")
    return f"its split is made again ({', '.join(why)})" if why else ""


def _from_the_cache(params: Params, run: Run, results: Path) -> str:
    """Return a note on a cached run with the requested parameters, valid if its split stays the same."""
    if not (state := cached(params, run, results)):
        return ""
    by = code.of_row(params.benchmarks[run.benchmark].reader, parse_row(run.row))
    equal = read_or_empty(state / "finished/run.json").get("true_code") != by.true_hash
    return f"; a finished run{' with equal code' * equal} is cached in {state} and copied if its split stays the same"


def _planned(words: Sequence[str], snakefile: str) -> tuple[dict[Run, str], dict[str, str]]:
    """Return the runs of a dry run, each with Snakemake's reason, and the number of jobs of each other rule."""
    # The last of repeated options takes precedence: --quiet of the call would hide the jobs, and its --snakefile and
    # --directory are relative to another folder than the current one of this process.
    ours = ["--dry-run", "--nolock", "--quiet", "host", "--snakefile", snakefile, "--directory", str(Path.cwd())]
    done = subprocess.run([sys.executable, "-m", "snakemake", *words, *ours], capture_output=True, text=True)
    output = done.stdout + done.stderr
    if done.returncode:
        lines = [line for line in output.splitlines() if line.strip() and not line.startswith("Using ")]
        raise UserError(f"why: Snakemake cannot plan this call: {lines[-1] if lines else 'it prints no reason'}")
    found = sorted(TRAINING.findall(output))
    runs = {Run(benchmark, row, read_seed(seed)): reason for benchmark, row, seed, reason in found}
    return runs, dict(STATS.findall(output))


def _path(module: str) -> str:
    path, _, name = module.partition(":")
    return f"{path.replace('.', '/')}.py{f' ({name})' * bool(name)}"


def _shown(values: Mapping[str, Any], key: str) -> str:
    return json.dumps(values[key]) if key in values else "absent"
