"""Which benchmarks, rows, seeds and runs each table has."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

from ctxgcd.config import PAIRED, Params
from ctxgcd.errors import UserError
from ctxgcd.names import number_text
from ctxgcd.pipeline.identity import ESTIMATED, identity, read_estimate
from ctxgcd.pipeline.paths import TABLE_KINDS, estimate_file
from ctxgcd.pipeline.resolve import backbone_name, protocol_of, resolve
from ctxgcd.pipeline.rows import ROW, parse_row, refuse
from ctxgcd.pipeline.runs import Run
from ctxgcd.utils.files import read_object

BASELINE = "simgcd"  # the row that statistics compare with
PUBLISHED_BACKBONE = "vit_base_patch16_224.dino"  # tables with another one name it
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
    """Return (parameter, value, row) of the grid points, or of those in rows_of; full-paper has the method's values."""
    base = resolve(params, benchmark, "full-paper", params.seeds[0])
    points = [
        (key, value, "full-paper" if base[key] == value else f"full-paper+{key}={number_text(value)}")
        for key, grid in params.sensitivity.model_dump().items()
        for value in grid
    ]
    if chosen := params.rows_of.get(table := f"sensitivity_{benchmark}"):
        of_grid = dict.fromkeys(row for _, _, row in points)
        for row in chosen:
            refuse(row, of_grid, f"params.yaml: rows_of.{table}", "row of the grid under sensitivity")
        if len(chosen) == 1 or "full-paper" not in chosen:
            raise UserError(f"params.yaml: rows_of.{table} is {chosen}; list full-paper and other rows of the grid")
        points = [point for point in points if point[2] in chosen]
    if {row for _, _, row in points} == {"full-paper"}:
        raise UserError(
            f"benchmark {benchmark}: the sensitivity grids contain only the default values, so there is "
            "nothing to compare; add a value under sensitivity"
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


def backbone_note(params: Params, table: str) -> str:
    """Return the note of a table on its backbones: their names, unless all are the published one, and their notes."""
    benchmarks, rows = table_benchmarks(params, table), dict[str, list[str]]()
    for benchmark in benchmarks:
        for row in rows_in(params, table, benchmark):
            of = f"{row} on {benchmark}" if len(benchmarks) > 1 else row
            rows.setdefault(backbone_name(params, benchmark, row), []).append(of)
    names = [f"{name} ({', '.join(of)})" if len(rows) > 1 else name for name, of in rows.items()]
    usual = all(params.backbones[name].model == PUBLISHED_BACKBONE for name in rows)
    named = [] if usual else [f"Backbone: {' and '.join(names)}."]
    return " ".join([*named, *sorted({params.backbones[name].note for name in rows} - {""})])


def backbones_in(params: Params) -> set[str]:
    """Return the names of the backbones of all benchmarks and of the rows in params.yaml."""
    pairs = [row for kind in PAIRED.values() for pair in getattr(params.rows, kind).items() for row in pair]
    rows = [*params.rows.main, *params.rows.ablation, *pairs, *(row for of in params.rows_of.values() for row in of)]
    words = {word for row in rows if (match := ROW.fullmatch(row)) for word in match["changed"].split("+")}
    own = {protocol_of(params, benchmark).backbone for benchmark in params.benchmarks}
    return own | {word.removeprefix("backbone=") for word in words if word.startswith("backbone=")}


def runs_of(params: Params, kind: str, benchmark: str) -> list[Run]:
    """Return the runs of one benchmark in all tables of a kind."""
    rows, seeds = table_rows(params, kind, benchmark), seeds_of(params, kind, benchmark)
    return [Run(benchmark, row, seed) for row in rows for seed in seeds]


def requested_runs(params: Params, benchmark: str) -> set[Run]:
    """Return every run of a benchmark in a table of any kind."""
    requested: set[Run] = set()
    for kind in TABLE_KINDS:
        with suppress(UserError):  # a row of PAIRED that is impossible here needs no runs
            requested.update(runs_of(params, kind, benchmark))
    return requested


def table_pairs(params: Params, kind: str, benchmark: str) -> dict[str, str]:
    """Return the pairs of rows that a table compares seed by seed; empty for tables without comparisons.

    Main and ablation tables compare each row with SimGCD. Overrides without an effect on this benchmark are removed
    from the names of the rows of PAIRED, so that no run is trained under two names. A pair whose rows are then equal
    is left out.
    """
    if kind in PAIRED:
        against_of: dict[str, str] = getattr(params.rows, PAIRED[kind])
        short = {row: _shortest(params, benchmark, row) for pair in against_of.items() for row in pair}
        pairs: dict[str, str] = {}
        for row, against in against_of.items():
            if short[row] != short[against] and pairs.setdefault(short[row], short[against]) != short[against]:
                raise UserError(
                    f"rows.{PAIRED[kind]}: on {benchmark} '{row}' is '{short[row]}', which is compared with "
                    f"'{pairs[short[row]]}' already; leave one of the two out"
                )
        return pairs
    if kind not in ("main", "ablation", "statistics"):
        return {}
    rows = _trained(params, benchmark) if kind == "statistics" else table_rows(params, kind, benchmark)
    return {row: BASELINE for row in rows if row != BASELINE}


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
    of = params.all_tables
    of_one = [f"{kind}_{b}" for kind in ("ablation", "statistics", "terms") for b in of.ablation]
    return [*of.main, *of_one, *(f"sensitivity_{b}" for b in of.sensitivity)]


def planned_rows(params: Params) -> list[dict[str, Any]]:
    """Return every possible row of the main, ablation and sensitivity tables, with `table`, `benchmark` and `seeds`."""
    single = [f"{kind}_{b}" for kind in ("ablation", "sensitivity") for b in params.benchmarks]
    planned: list[dict[str, Any]] = []
    for table in [*params.tables, *single]:
        for b in table_benchmarks(params, table):
            seeds = seeds_of(params, table.partition("_")[0], b)
            with suppress(UserError):  # a grid around a row that is impossible here
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
        requested = resolve(params, run.benchmark, run.row, run.seed)
        metrics = read_object(file, "parameters")
        estimate = Path(estimate_file(run.benchmark))
        if requested["K"] == ESTIMATED and estimate.exists():
            requested["K"] = read_estimate(estimate)
        if metrics["parameters"] == requested:
            found.append(metrics)
    return found


def shown_run(params: Params, benchmark: str) -> Run:
    """Return the run whose features are drawn."""
    return Run(benchmark, SHOWN, seeds_of(params, "main", benchmark)[0])
