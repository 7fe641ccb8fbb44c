"""The benchmarks, runs and files of a target of the command line, and whether it can be made."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from ctxgcd.benchmarks.readers.registry import READERS
from ctxgcd.catalogue.entries import METHODS
from ctxgcd.config import Own, Params, completed
from ctxgcd.errors import UserError, nearest
from ctxgcd.models.packages import missing
from ctxgcd.pipeline.classes import old_classes
from ctxgcd.pipeline.identity import ESTIMATED
from ctxgcd.pipeline.paths import (
    BENCHMARK_FILE,
    FOLDERS,
    RUN_FILE,
    TABLE_FILE,
    duplicates_file,
    figure_file,
    summary_file,
    table_files,
)
from ctxgcd.pipeline.possible import missing_package
from ctxgcd.pipeline.resolve import backbone_name, resolve
from ctxgcd.pipeline.rows import parse_row, refuse
from ctxgcd.pipeline.runs import Run, read_seed
from ctxgcd.pipeline.tables import all_tables, runs_of, shown_run, table_benchmarks, table_runs

DEMO = "fashion"  # the benchmark included in the package


def benchmark_files(params: Params, benchmark: str) -> list[str]:
    """Return all result files of one benchmark: scores of runs, tables and figures."""
    return list(runs_by_file(params, benchmark))


def runs_by_file(params: Params, benchmark: str) -> dict[str, list[Run]]:
    """Return the runs behind each of `benchmark_files`; none for files that only need the images."""
    single = [table for table, of in params.tables.items() if of == [benchmark]]
    kinds = [kind for kind in ("ablation", "sensitivity") if single or benchmark in getattr(params.all_tables, kind)]
    kinds += ["statistics", "terms"] * ("ablation" in kinds)
    tables = {table: table_runs(params, table) for table in single + [f"{kind}_{benchmark}" for kind in kinds]}
    main = runs_of(params, "main", benchmark)
    every = list(dict.fromkeys(run for of in (main, *tables.values()) for run in of))
    trained = [run for run in main if parse_row(run.row).trains]
    figures = ({"curves": trained} if trained else {}) | {"embedding": [shown_run(params, benchmark)]}
    figures |= {"sensitivity": tables[f"sensitivity_{benchmark}"]} if "sensitivity" in kinds else {}
    return (
        {run.file("metrics.json"): [run] for run in main}
        | {file: of for table, of in tables.items() for file in table_files(table)}
        | {figure_file(figure, benchmark): of for figure, of in figures.items()}
        | {summary_file(benchmark): every, duplicates_file(benchmark): []}
    )


def requested_benchmarks(params: Params, words: Iterable[str]) -> list[str]:
    """Return the benchmarks of the targets of a command line, or those of `all_tables` if no target names one.

    A target is a rule (demo, benchmark_NAME) or a file below results/. Raises UserError for a target with an unknown
    benchmark, table or row.
    """
    requested: list[str] = []
    of_all = [benchmark for table in all_tables(params) for benchmark in table_benchmarks(params, table)]
    for word in words:
        if word == "all_tables":
            requested += of_all
        elif word == "demo":
            requested.append(DEMO)
        elif match := re.fullmatch(r"benchmark_(\w+)", word):
            requested += table_benchmarks(params, f"ablation_{match[1]}")
        elif match := TABLE_FILE.fullmatch(word):
            requested += table_benchmarks(params, match[1])
        elif match := RUN_FILE.fullmatch(word):
            requested.append(resolve(params, match[1], match[2], read_seed(match[3]))["benchmark"])
        elif match := BENCHMARK_FILE.fullmatch(word):
            requested += table_benchmarks(params, f"ablation_{match[1]}")
    return list(dict.fromkeys(requested or of_all))


def runs_behind(params: Params, target: str) -> list[Run]:
    """Return the unique runs that a target needs; none for a target made without runs.

    target: a rule (all_tables, demo, benchmark_NAME) or a file below results/, as in requested_benchmarks.
    """
    if target == "all_tables":
        runs = [run for table in all_tables(params) for run in table_runs(params, table)]
    elif match := re.fullmatch(r"(demo)|benchmark_(\w+)", target):
        by_file = runs_by_file(params, DEMO if match[1] else match[2])
        runs = [run for of in by_file.values() for run in of]
    elif match := TABLE_FILE.fullmatch(target):
        runs = table_runs(params, match[1])
    elif match := RUN_FILE.fullmatch(target):
        runs = [Run(match[1], match[2], read_seed(match[3]))]
    elif match := BENCHMARK_FILE.fullmatch(target):
        runs = runs_by_file(params, match[1]).get(target, [])
    else:
        runs = []
    return list(dict.fromkeys(runs))


def refuse_unknown_rules(words: Iterable[str], rules: Iterable[str]) -> None:
    """Raise UserError for a target that is neither a rule nor in one of the output folders."""
    rules = list(rules)
    for word in words:
        folder = Path(word).parts[0]
        if word not in rules and re.fullmatch(r"\w+", word):
            refuse(word, rules, "command line", "target")
        if folder not in FOLDERS and nearest(folder, FOLDERS):
            refuse(folder, FOLDERS, f"command line, {word}", "folder")


def check(params: Params, words: Sequence[str]) -> list[str]:
    """Raise UserError for invalid rows of params.yaml and for impossible runs of the targets; return warnings.

    words: targets, as in requested_benchmarks. A row that is impossible for a benchmark is refused only if requested.
    """
    for listed in (*params.rows.model_dump().values(), *params.rows_of.values()):
        for row in listed if isinstance(listed, list) else [*listed, *listed.values()]:
            parse_row(row)
    for benchmark, entry in params.benchmarks.items():
        if entry.reader not in READERS:
            refuse(entry.reader, READERS, f"benchmarks.{benchmark}.reader", "reader")
    runs = {(run.benchmark, run.row) for word in words or ["all_tables"] for run in runs_behind(params, word)}
    warnings = []
    for benchmark, row in sorted(runs):
        resolved = _possible(params, benchmark, row)
        if text := METHODS[resolved["method"]].warning(completed(resolved)):
            warnings.append(f"{benchmark}/{row}: {text}")
    warnings += filter(None, dict.fromkeys(missing_package(parse_row(row).method) for _, row in sorted(runs)))
    for name in dict.fromkeys(backbone_name(params, *run) for run in sorted(runs)):
        backbone = params.backbones[name]
        if backbone.weights == "package" and (text := missing(backbone.model)):
            warnings.append(f"weights of {name}: {text}")
    return warnings


def _possible(params: Params, benchmark: str, row: str) -> dict[str, Any]:
    """Return the row's parameters. Raises UserError for an estimate without a K to try.

    The labelled classes of a user's own images are not known yet.
    """
    resolved = resolve(params, benchmark, row, params.seeds[0])
    entry, most = params.benchmarks[benchmark], params.estimate.most
    old = 1 if isinstance(entry, Own) else len(old_classes(entry))
    if resolved["K"] == ESTIMATED and most <= old:
        raise UserError(
            f"estimate.most is {most}, but benchmark {benchmark}, row {row} has {old} labelled classes; give a larger "
            "value"
        )
    return resolved
