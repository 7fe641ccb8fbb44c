"""Restores recorded results in a fresh clone and keeps those that match the current params.yaml and code.

A pull gives every file a new time, and git does not store Snakemake's provenance records. So Snakemake cannot tell
whether a pulled run is up to date; the parameters and hashes in each run's files can.
"""

from __future__ import annotations

import errno
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from glob import glob
from itertools import chain, count
from pathlib import Path
from textwrap import shorten
from typing import TypeAlias

import yaml

from ctxgcd.config import Params
from ctxgcd.errors import UserError
from ctxgcd.pipeline import run_cache
from ctxgcd.pipeline.code import script
from ctxgcd.pipeline.identity import ESTIMATED
from ctxgcd.pipeline.paths import (
    DATA_CHECK,
    RUN_CACHE,
    RUNS,
    duplicates_file,
    estimate_files,
    run_folders,
    split_files,
    table_files,
)
from ctxgcd.pipeline.runs import Run, read_seed
from ctxgcd.pipeline.tables import table_runs
from ctxgcd.pipeline.targets import runs_by_file
from ctxgcd.pipeline.why import difference
from ctxgcd.utils.files import on_disk, read_or_empty

ASIDE, LEFT_OUT = Path("work/restoring"), Path("work/left_out")
TakeOut: TypeAlias = Callable[[str, bool], None]


def restore(params: Params) -> None:
    """Pull the results recorded in dvc.lock, keep those that are up to date, and make their tables again.

    A run that differs is reported with the reason and removed from results/, together with splits and estimates that
    no kept run uses. Snakemake makes them again when they are requested, and DVC's cache still contains them. A run
    that is not recorded is moved to work/left_out. If a step fails, results/ is as it was after the pull. If the
    process is killed, the next call moves removed files back, or to work/left_out if new files are in their place.
    Raises UserError if nothing is recorded or a command fails.
    """
    with taken_out() as take_out:
        _restore(params, pull(), take_out)


def _restore(params: Params, outputs: set[str], take_out: TakeOut) -> None:
    recorded = {file for file in outputs if Path(file).is_file()} - {DATA_CHECK}  # not an output of a rule
    found = {run: difference(params, run) for run in made_runs()}
    kept = {run for run, why in found.items() if not why}
    for why in dict.fromkeys(why for why in found.values() if why):
        same_reason = [run for run in found if found[run] == why]
        print(f"not kept: {', '.join(run.folder.removeprefix(f'{RUNS}/') for run in same_reason)}: {why}", flush=True)
        for run in same_reason:
            take_out(run.folder, _is_in(run.folder, outputs))
    print(f"{len(kept)} of {len(found)} recorded runs match the current params.yaml and code", flush=True)
    valid = recorded & _files_behind(kept)
    for file in recorded - valid:
        take_out(file, True)
    if not kept:
        return
    for run in kept:  # in case Snakemake runs one of them again
        made = read_or_empty(Path(run.file("run.json")))
        run_cache.take(Path(run.folder), run_cache.folder_of(RUN_CACHE, made["identity"], run.row))
    trained = [run.file("metrics.json" if _same_scores(run) else "run.json") for run in sorted(kept)]
    _call("snakemake", "--touch", "--forceall", *trained, *sorted(valid), "--quiet", "all")
    tables = {file for file, of in _made_from(params, kept).items() if file in recorded and kept.issuperset(of)}
    _call("snakemake", *(run.file("metrics.json") for run in sorted(kept)), *sorted(tables), "--quiet", "all")
    # Make missing caches in a separate call: Snakemake would run a kept run again if its caches were made in one call.
    if targets := [f"benchmark_{benchmark}" for benchmark in _incomplete(params, kept)]:
        try:
            _call("snakemake", *targets, "--until", "weights", "image_store", "features", "--quiet", "all")
        except UserError:
            print("the caches of the runs that were not kept cannot be made now; the restored runs are kept")


def pull() -> set[str]:
    """Pull the stages recorded in dvc.lock; return their output files and folders."""
    lock = Path("dvc.lock")
    if not lock.is_file():
        raise UserError(
            "dvc.lock does not exist, so no results are recorded; run `dvc repro`, which writes it, or check out a "
            "commit that contains it"
        )
    stages = yaml.safe_load(lock.read_text(encoding="utf-8"))["stages"]
    print(f"Pulling the results of {', '.join(stages)}", flush=True)
    done = subprocess.run([sys.executable, "-m", "dvc", "pull", *stages], capture_output=True, text=True)
    if done.returncode:
        reason = shorten(done.stderr.rpartition("ERROR: ")[2].split("<https", 1)[0], 300)
        if "no default remote" in done.stdout + done.stderr:  # DVC prints this long before its error
            reason = "no default remote is set; run `dvc remote add --default NAME URL`"
        raise UserError(f"`dvc pull` failed and nothing was restored: {reason}")
    return {out["path"] for stage in stages.values() for out in stage["outs"]}


@contextmanager
def taken_out() -> Iterator[TakeOut]:
    """Yield a function that removes a file or folder from results/, given whether DVC's cache contains it.

    If the block fails, everything is moved back; if the process is killed, the next call moves it back. Otherwise
    files in DVC's cache are deleted, and the others are moved to work/left_out.
    """
    _bring_back()
    cached: dict[str, bool] = {}

    def take_out(path: str, in_cache: bool) -> None:
        _move(Path(path), ASIDE / path)
        cached[path] = in_cache

    try:
        yield take_out
    except BaseException:
        _bring_back(same_call=True)
        raise
    for path in (path for path, in_cache in cached.items() if not in_cache):
        print(f"{path} is not recorded; moved to {_leave_out(path)}", flush=True)
    _delete(ASIDE)


def _bring_back(same_call: bool = False) -> None:
    """Move removed files back to results/, and folders of runs as a whole.

    Results made in the meantime stay; the removed ones are then moved to work/left_out. Only files made by the same
    call, such as tables, are overwritten, never runs.
    """
    for folder in ("results/**", f"{ASIDE}/**", f"{LEFT_OUT}/**", f"{ASIDE.parent}"):
        for left in glob(f"{folder}/{_unfinished(Path('*'))}", recursive=True):
            with on_disk(Path(left)):
                _remove(Path(left))
    runs = sorted(ASIDE.glob(f"{RUNS}/*/*/seed*"))
    for kept in chain(runs, filter(Path.is_file, sorted(ASIDE.rglob("*")))):  # remaining files, after the runs
        path = kept.relative_to(ASIDE)
        with suppress(OSError):
            path.rmdir()  # an empty folder that Snakemake made for a run
        if path.exists() and not (same_call and path.is_file() and kept.is_file()):
            to = _leave_out(str(path))
            print(f"{path} exists and is not overwritten; the earlier version is moved to {to}", flush=True)
        else:
            _move(kept, path)
    _delete(ASIDE)


def _leave_out(path: str) -> Path:
    """Move a removed file or folder to an unused name in work/left_out; return its path."""
    names = chain([path], (f"{path}-{number}" for number in count(2)))
    to = next(kept for name in names if not (kept := LEFT_OUT / name).exists())
    _move(ASIDE / path, to)
    return to


def _move(source: Path, target: Path) -> None:
    """Move a file, or a folder to an unused path. A killed copy to another file system leaves no incomplete target."""
    with on_disk(target):
        target.parent.mkdir(parents=True, exist_ok=True)
        try:
            os.rename(source, target)
            return
        except OSError as error:
            if error.errno != errno.EXDEV:
                raise
        copy = _unfinished(target)
        if source.is_dir():
            shutil.copytree(source, copy, symlinks=True)
        else:
            shutil.copy2(source, copy, follow_symlinks=False)
        os.rename(copy, target)
    _delete(source)


def _delete(path: Path) -> None:
    """Delete a file or folder if it exists. A killed call leaves it complete, or nothing under its name."""
    with on_disk(path), suppress(FileNotFoundError):
        os.rename(path, _unfinished(path))
        _remove(_unfinished(path))


def _remove(path: Path) -> None:
    shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()


def _unfinished(path: Path) -> Path:
    """Return the temporary name of an incomplete copy or deletion of `path`; the next call deletes such files."""
    return path.with_name(f".{path.name}.moving")


def _is_in(path: str, outputs: set[str]) -> bool:
    return not outputs.isdisjoint([path, *map(str, Path(path).parents)])


def made_runs() -> list[Run]:
    """Return the runs in results/runs/BENCHMARK/ROW/seedN; other files are ignored."""
    runs = []
    for folder in run_folders():
        benchmark, row, seed = folder.parts[-3:]
        with suppress(UserError):
            if folder.is_dir():
                runs.append(Run(benchmark, row, read_seed(seed.removeprefix("seed"))))
    return sorted(runs)


def _files_behind(runs: Iterable[Run]) -> set[str]:
    """Return the files that these runs depend on: splits, duplicates of images, and estimates of K."""
    made = {run: read_or_empty(Path(run.file("run.json")))["parameters"] for run in runs}
    of_split = {run.benchmark for run in made}
    of_estimate = {run.benchmark for run, parameters in made.items() if parameters["K_source"] == ESTIMATED}
    return {file for benchmark in of_split for file in (*split_files(benchmark), duplicates_file(benchmark))} | {
        file for benchmark in of_estimate for file in estimate_files(benchmark)
    }


def _made_from(params: Params, runs: Iterable[Run]) -> dict[str, list[Run]]:
    """Return the runs behind every table and figure of these runs' benchmarks and behind tables over several."""
    own = [runs_by_file(params, benchmark) for benchmark in sorted({run.benchmark for run in runs})]
    tables = {file: table_runs(params, table) for table in params.all_tables.main for file in table_files(table)}
    tables |= {file: [] for file in table_files("audit_published")}
    return {file: of for behind in [*own, tables] for file, of in behind.items()}


def _incomplete(params: Params, runs: set[Run]) -> list[str]:
    """Return the benchmarks of these runs whose tables and figures also need other runs."""
    own = sorted({run.benchmark for run in runs})
    return [benchmark for benchmark in own if not runs.issuperset(chain(*runs_by_file(params, benchmark).values()))]


def _same_scores(run: Run) -> bool:
    return read_or_empty(Path(run.file("metrics.json"))).get("scoring_code") == script("score_run").hash


def _call(module: str, *arguments: str) -> None:
    if subprocess.run([sys.executable, "-m", module, *arguments]).returncode:
        raise UserError(f"`{module}` failed (see its messages above); fix the cause and restore again")
