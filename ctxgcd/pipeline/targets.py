"""The rows, runs, files and benchmarks of tables and targets."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from ctxgcd.benchmarks.readers.registry import SOURCES
from ctxgcd.catalogue.entries import METHODS
from ctxgcd.config import PAIRED, Own, Params, completed
from ctxgcd.errors import UserError, nearest
from ctxgcd.names import number_text
from ctxgcd.pipeline.classes import old_classes
from ctxgcd.pipeline.identity import ESTIMATED, identity, read_estimate
from ctxgcd.pipeline.paths import (
    BENCHMARK_FILE,
    FOLDERS,
    KINDS,
    RUN_FILE,
    TABLE_FILE,
    duplicates_file,
    estimate_file,
    figure_file,
    summary_file,
    table_files,
)
from ctxgcd.pipeline.resolve import resolve
from ctxgcd.pipeline.rows import ROW, parse_row, refuse
from ctxgcd.pipeline.runs import Run, read_seed
from ctxgcd.utils.files import read_object

DEMO = "fashion"  # the benchmark included in the package
BASELINE = "simgcd"  # the baseline row of the statistics
SHOWN = "full-paper"  # the row whose features are drawn


def table_rows(params: Params, kind: str, benchmark: str) -> list[str]:
    """Return the unique rows of a benchmark in the tables of a kind, in order."""
    if kind == "main":
        tables = [table for table, of in params.tables.items() if benchmark in of] or [""]
        return list(dict.fromkeys(row for table in tables for row in main_rows(params, table)))
    if kind == "ablation":
        return params.rows_of.get(f"ablation_{benchmark}", params.rows.ablation)
    if kind == "statistics":
        return [BASELINE, *table_pairs(params, kind, benchmark)]
    if kind == "terms":
        return _trained(params, benchmark)
    if kind in PAIRED:
        return list(dict.fromkeys(name for pair in table_pairs(params, kind, benchmark).items() for name in pair))
    return list(dict.fromkeys(row for _, _, row in sensitivity_points(params, benchmark)))


def main_rows(params: Params, table: str) -> list[str]:
    """Return the rows of a main table by its file stem: those in rows_of, else those of rows.main."""
    return params.rows_of.get(table, params.rows.main)


def sensitivity_points(params: Params, benchmark: str) -> list[tuple[str, float, str]]:
    """Return (parameter, value, row) of every grid point; the row is full-paper for its own values."""
    base = resolve(params, benchmark, "full-paper", params.seeds[0])
    points = [
        (key, value, "full-paper" if base[key] == value else f"full-paper+{key}={number_text(value)}")
        for key, grid in params.sensitivity.model_dump().items()
        for value in grid
    ]
    if {row for _, _, row in points} == {"full-paper"}:
        raise UserError(
            f"benchmark {benchmark}: the sensitivity grids contain only the values of full-paper, so there is "
            "nothing to compare; add other values under sensitivity"
        )
    return points


def table_benchmarks(params: Params, table: str) -> list[str]:
    """Return the benchmarks of a table by its file stem: main_ssb, ablation_cub, sensitivity_cub."""
    kind, _, rest = table.partition("_")
    if kind == "main":
        if table not in params.tables:
            refuse(table, params.tables, "params.yaml", "table")
        return params.tables[table]
    if rest not in params.benchmarks:
        refuse(rest, params.benchmarks, "params.yaml", "benchmark")
    return [rest]


def table_runs(params: Params, table: str) -> list[Run]:
    """Return the unique runs that a table needs, in the order of the table."""
    return [run for benchmark in table_benchmarks(params, table) for run in runs_in(params, table, benchmark)]


def runs_in(params: Params, table: str, benchmark: str) -> list[Run]:
    """Return the runs of one benchmark in a table by its file stem."""
    seeds = seeds_of(params, table.partition("_")[0], benchmark)
    return [Run(benchmark, row, seed) for row in rows_in(params, table, benchmark) for seed in seeds]


def rows_in(params: Params, table: str, benchmark: str) -> list[str]:
    """Return the rows of one benchmark in a table by its file stem."""
    kind = table.partition("_")[0]
    return main_rows(params, table) if kind == "main" else table_rows(params, kind, benchmark)


def runs_of(params: Params, kind: str, benchmark: str) -> list[Run]:
    """Return the runs of one benchmark in all tables of a kind."""
    rows, seeds = table_rows(params, kind, benchmark), seeds_of(params, kind, benchmark)
    return [Run(benchmark, row, seed) for row in rows for seed in seeds]


def asked_runs(params: Params, benchmark: str) -> set[Run]:
    """Return every run of a benchmark in a table of any kind."""
    asked: set[Run] = set()
    for kind in KINDS:
        with suppress(UserError):  # a row of PAIRED that is impossible for this benchmark
            asked.update(runs_of(params, kind, benchmark))
    return asked


def table_pairs(params: Params, kind: str, benchmark: str) -> dict[str, str]:
    """Return the pairs of rows that a table of differences compares seed by seed; empty for other tables.

    Overrides without an effect on this benchmark are removed from the rows' names, so that no run is trained under two
    names. A pair whose rows are then equal is left out.
    """
    if kind in PAIRED:
        asked: dict[str, str] = getattr(params.rows, PAIRED[kind])
        short = {row: _shortest(params, benchmark, row) for pair in asked.items() for row in pair}
        pairs: dict[str, str] = {}
        for row, against in asked.items():
            if short[row] != short[against] and pairs.setdefault(short[row], short[against]) != short[against]:
                raise UserError(
                    f"rows.{PAIRED[kind]}: on {benchmark}, '{row}' equals '{short[row]}', which is already compared "
                    f"with '{pairs[short[row]]}'; remove one of the two"
                )
        return pairs
    if kind != "statistics":
        return {}
    return {row: BASELINE for row in _trained(params, benchmark) if row != BASELINE}


def _trained(params: Params, benchmark: str) -> list[str]:
    """Return the rows of a benchmark's main and ablation tables whose methods train."""
    rows = [row for kind in ("main", "ablation") for row in table_rows(params, kind, benchmark)]
    return [row for row in dict.fromkeys(rows) if parse_row(row).trains]


def _shortest(params: Params, benchmark: str, row: str) -> str:
    """Return the row without overrides that equal the benchmark's parameters."""
    own = identity(resolve(params, benchmark, row, 0))
    match = ROW.fullmatch(row)
    assert match
    begin, end, words = row[: match.start("changed")], row[match.end("changed") :], match["changed"].split("+")[1:]
    for word in tuple(words):
        rest = [other for other in words if other != word]
        shorter = "+".join([begin, *rest]) + end
        if identity(resolve(params, benchmark, shorter, 0)) == own:
            row, words = shorter, rest
    return row


def seeds_of(params: Params, kind: str, benchmark: str) -> list[int]:
    """Return the training seeds of a benchmark's runs in a kind of table."""
    if benchmark not in params.seeds_of:
        return params.seeds
    of = params.seeds_of[benchmark].model_dump()
    seeds: list[int] = of.get(PAIRED.get(kind, kind), of["ablation"])
    return seeds


def all_tables(params: Params) -> list[str]:
    """Return the file stems of the tables of `all_tables`."""
    asked = params.all_tables
    of_one = [f"{kind}_{b}" for kind in ("ablation", "statistics", "terms") for b in asked.ablation]
    return [*asked.main, *of_one, *(f"sensitivity_{b}" for b in asked.sensitivity)]


def planned_rows(params: Params) -> list[dict[str, Any]]:
    """Return every possible row of the main, ablation and sensitivity tables, with `table`, `benchmark` and `seeds`."""
    single = [f"{kind}_{b}" for kind in ("ablation", "sensitivity") for b in params.benchmarks]
    planned: list[dict[str, Any]] = []
    for table in [*params.tables, *single]:
        for b in table_benchmarks(params, table):
            seeds = seeds_of(params, table.partition("_")[0], b)
            with suppress(UserError):  # a grid around a row that is impossible for this benchmark
                rows = [row for row in rows_in(params, table, b) if _is_possible(params, b, row)]
                planned += [{"table": table, "benchmark": b, "row": row, "seeds": seeds} for row in rows]
    return planned


def _is_possible(params: Params, benchmark: str, row: str) -> bool:
    try:
        resolve(params, benchmark, row, 0)
    except UserError:
        return False
    return True


def existing_metrics(params: Params, planned: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the content of metrics.json of every planned run that exists with the current parameters."""
    wanted = {Run(one["benchmark"], one["row"], seed) for one in planned for seed in one["seeds"]}
    found = []
    for run in sorted(wanted):
        file = Path(run.file("metrics.json"))
        if not file.is_file():
            continue
        asked = resolve(params, run.benchmark, run.row, run.seed)
        metrics = read_object(file, "parameters")
        estimate = Path(estimate_file(run.benchmark))
        if asked["K"] == ESTIMATED and estimate.exists():
            asked["K"] = read_estimate(estimate)
        if metrics["parameters"] == asked:
            found.append(metrics)
    return found


def benchmark_files(params: Params, benchmark: str) -> list[str]:
    """Return all result files of one benchmark: scores of runs, tables and figures."""
    return list(runs_by_file(params, benchmark))


def runs_by_file(params: Params, benchmark: str) -> dict[str, list[Run]]:
    """Return the runs behind each of `benchmark_files`; none for files that only need the images."""
    single = [table for table, of in params.tables.items() if of == [benchmark]]
    kinds = [k for k in ("ablation", "sensitivity") if single or benchmark in getattr(params.all_tables, k)]
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


def shown_run(params: Params, benchmark: str) -> Run:
    """Return the run whose features are drawn."""
    return Run(benchmark, SHOWN, seeds_of(params, "main", benchmark)[0])


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
        if entry.reader not in SOURCES:
            refuse(entry.reader, SOURCES, f"benchmarks.{benchmark}.reader", "reader")
    runs = {(run.benchmark, run.row) for word in words or ["all_tables"] for run in runs_behind(params, word)}
    warnings = []
    for benchmark, row in sorted(runs):
        resolved = _possible(params, benchmark, row)
        if said := METHODS[resolved["method"]].warning(completed(resolved)):
            warnings.append(f"{benchmark}/{row}: {said}")
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
