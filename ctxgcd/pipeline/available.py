"""Tables that can be made from the available data and results, completely or partially, and what is missing."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from ctxgcd.config import Params
from ctxgcd.errors import UserError
from ctxgcd.pipeline.paths import AVAILABLE, partial_table_files, table_files
from ctxgcd.pipeline.runs import Run
from ctxgcd.pipeline.tables import all_tables, existing_metrics, runs_in, runs_of, table_benchmarks

TARGET = "available_tables"


@dataclass(frozen=True)
class Available:
    """Available tables.

    Attributes:
        tables: tables of `all_tables`, each with its available benchmarks.
        absent: the reason why a benchmark is not available, by benchmark.
    """

    params: Params
    tables: dict[str, list[str]]
    absent: dict[str, str]

    def lacking(self, table: str) -> list[str]:
        """Return the missing benchmarks of a table."""
        return [b for b in table_benchmarks(self.params, table) if b not in self.tables[table]]

    def runs(self, table: str) -> list[Run]:
        """Return the runs of a table's available benchmarks.

        If none is available, return the runs of all its benchmarks, so that the data check reports what is missing.
        """
        benchmarks = self.tables[table] or table_benchmarks(self.params, table)
        return [run for benchmark in benchmarks for run in runs_in(self.params, table, benchmark)]

    def files(self) -> list[str]:
        """Return the files of all tables with results; partial tables are in a separate folder."""
        shown = [table for table, here in self.tables.items() if here]
        files = {table: partial_table_files(table) if self.lacking(table) else table_files(table) for table in shown}
        return [file for of in files.values() for file in of]

    def runs_behind(self, target: str) -> list[Run]:
        """Return every run that `available_tables`, or the file of a partial table, needs."""
        tables = [table for table, here in self.tables.items() if here] if target == TARGET else [Path(target).stem]
        return [run for table in tables for run in self.runs(table)]

    def summary(self) -> str:
        """Return one line for each missing benchmark. Raises UserError if no benchmark is available."""
        if not any(self.tables.values()):
            raise UserError(
                f"{TARGET}: no benchmark of all_tables has its data and weights, or finished runs; run `snakemake "
                "check_data` to see how to get them"
            )
        lines = [f"not available: {benchmark}: {problem}" for benchmark, problem in self.absent.items()]
        how = "Run `snakemake check_data` to see how to get what is missing."
        return "\n".join([*lines, how] if lines else ["All benchmarks are available."])


def available(params: Params, problem_of: Callable[[str], str]) -> Available:
    """Find the benchmarks of `all_tables` with data and weights or, if these are missing, with finished runs.

    problem_of: returns what a benchmark lacks before its runs can start, or an empty string.
    """
    tables = {table: table_benchmarks(params, table) for table in all_tables(params)}
    problems = {
        benchmark: problem_of(benchmark) for benchmark in dict.fromkeys(b for of in tables.values() for b in of)
    }
    here = {
        table: [b for b in of if not problems[b] or _finished(params, table.partition("_")[0], b)]
        for table, of in tables.items()
    }
    return Available(params, here, {benchmark: problem for benchmark, problem in problems.items() if problem})


def depends_on_data(targets: Iterable[str]) -> bool:
    """Return whether a target of a command line depends on the available data."""
    return any(target == TARGET or target.startswith(f"{AVAILABLE}/") for target in targets)


def _finished(params: Params, kind: str, benchmark: str) -> bool:
    """Return whether every run of a benchmark in a kind of table exists with the current parameters."""
    runs = runs_of(params, kind, benchmark)
    planned = [{"benchmark": benchmark, "row": run.row, "seeds": [run.seed]} for run in runs]
    return len(existing_metrics(params, planned)) == len(set(runs))
