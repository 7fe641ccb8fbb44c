"""DVC stages: their commands, dependencies and outputs."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from ctxgcd.config import Params
from ctxgcd.pipeline.identity import ESTIMATED
from ctxgcd.pipeline.paths import DATA_CHECK, RUNS, estimate_files, split_files, summary_file, table_files
from ctxgcd.pipeline.resolve import backbone_name, resolve
from ctxgcd.pipeline.runs import Run
from ctxgcd.pipeline.tables import runs_of, seeds_of
from ctxgcd.pipeline.targets import DEMO, benchmark_files, requested_benchmarks

CODE = ["ctxgcd", "workflow", "Snakefile"]  # after a change, DVC calls Snakemake, which decides what to run
COMMON = (
    "split",
    "seeds",
    "seeds_of",
    "estimate",
    "rows",
    "rows_of",
    "sensitivity",
    "tables",
    "all_tables",
    "methods",
    "settings",
)  # sections read by every run


def stages(params: Params) -> dict[str, Any]:
    """Return the content of dvc.yaml.

    The stages are check_data, the benchmarks of `all_tables`, the tables over several benchmarks, and the other
    benchmarks. DVC runs independent stages in the order of the file (unless the project has more .dvc files than
    stages). So the data is checked before any training, and `dvc repro demo` or `dvc repro cub` does not need the data
    of other benchmarks.
    """
    in_tables = requested_benchmarks(params, [])
    others = [of[0] for of in params.tables.values() if len(of) == 1 and of[0] not in in_tables]
    found = {"check_data": _stage("check_data", [DATA_CHECK], [{"params.yaml": None}])}
    found |= {_name(benchmark): _benchmark_stage(params, benchmark) for benchmark in in_tables}
    shared = [table for table in params.all_tables.main if len(params.tables[table]) > 1]
    if shared:
        over_several = [*shared, "audit_published"]
        found["tables"] = _stage(
            " ".join(table_files(table)[0] for table in over_several),
            [file for table in over_several for file in table_files(table)],
            ["seeds", "seeds_of", "rows", "rows_of", "tables", "all_tables"],
            _unique(f"{RUNS}/{benchmark}" for table in shared for benchmark in params.tables[table]),
        )
    found |= {_name(benchmark): _benchmark_stage(params, benchmark) for benchmark in _unique(others)}
    return {"stages": found, "plots": [_losses(params, b) for b in [*in_tables, *_unique(others)]]}


def _name(benchmark: str) -> str:
    return "demo" if benchmark == DEMO else benchmark


def _benchmark_stage(params: Params, benchmark: str) -> dict[str, Any]:
    protocol = params.benchmarks[benchmark].protocol
    runs = f"{RUNS}/{benchmark}"  # one directory: DVC refuses a path inside another one
    splits = split_files(benchmark)
    kinds = ("main", "ablation", "sensitivity")
    needed = {run.row: run for kind in kinds for run in runs_of(params, kind, benchmark)}.values()
    backbones = _unique(f"backbones.{backbone_name(params, benchmark, run.row)}" for run in needed)
    own = [*backbones, f"protocols.{protocol}", f"benchmarks.{benchmark}"]
    if any(resolve(params, benchmark, run.row, run.seed)["K"] == ESTIMATED for run in needed):
        splits += estimate_files(benchmark)
    metrics = summary_file(benchmark)
    files = [f for f in benchmark_files(params, benchmark) if not f.startswith(f"{runs}/") and f != metrics]
    target = "demo" if benchmark == DEMO else f"benchmark_{benchmark}"
    return _stage(target, [runs, *splits, *files], [*COMMON, *own]) | {"metrics": _owned([metrics])}


def _losses(params: Params, benchmark: str) -> dict[str, Any]:
    """Return a DVC plot of the loss of a benchmark's full method."""
    history = Run(benchmark, "full-paper", seeds_of(params, "main", benchmark)[0]).file("history.csv")
    return {f"loss of full-paper on {benchmark}": {"x": "epoch", "y": {history: "loss"}}}


def _stage(targets: str, outs: list[str], params: list[Any], deps: Iterable[str] = ()) -> dict[str, Any]:
    """Return a stage that calls Snakemake; outputs persist, because Snakemake decides what is made again."""
    ours = 'export PATH="$PWD/.venv/bin:$PATH"'  # the environment of `make`, even if it is not activated
    check = "python workflow/scripts/write_dvc_stages.py --check"
    return {
        "cmd": f"{ours} && {check} && snakemake {targets}",
        "deps": [*CODE, *deps],
        "params": params,
        "outs": _owned(outs),
    }


def _owned(paths: Iterable[str]) -> list[dict[str, Any]]:
    return [{path: {"cache": True, "persist": True}} for path in paths]


def _unique(names: Iterable[str]) -> list[str]:
    return list(dict.fromkeys(names))
