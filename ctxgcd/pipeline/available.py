"""Which of all tables can be made with what is here, wholly or with gaps, and what is missing for the rest."""

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
    """tables: of `all_tables`, each with those of its benchmarks that are here; absent: benchmark -> why it is not."""

    params: Params
    tables: dict[str, list[str]]
    absent: dict[str, str]

    def lacking(self, table: str) -> list[str]:
        """Benchmarks that a table has no values of."""
        return [b for b in table_benchmarks(self.params, table) if b not in self.tables[table]]

    def runs(self, table: str) -> list[Run]:
        """The runs of a table's benchmarks that are here; of all where none is, so that the data check tells why."""
        benchmarks = self.tables[table] or table_benchmarks(self.params, table)
        return [run for benchmark in benchmarks for run in runs_in(self.params, table, benchmark)]

    def files(self) -> list[str]:
        """The files of every table that has something to show; those with gaps in a folder of their own."""
        shown = [table for table, here in self.tables.items() if here]
        files = {table: partial_table_files(table) if self.lacking(table) else table_files(table) for table in shown}
        return [file for of in files.values() for file in of]

    def runs_behind(self, target: str) -> list[Run]:
        """Every run that `available_tables`, or the file of a table with gaps, needs."""
        asked = [table for table, here in self.tables.items() if here] if target == TARGET else [Path(target).stem]
        return [run for table in asked for run in self.runs(table)]

    def told(self) -> str:
        """One line a benchmark that is not here. Raises UserError where none is."""
        if not any(self.tables.values()):
            raise UserError(
                f"{TARGET}: neither data nor finished runs of any benchmark of all_tables are here; `snakemake "
                "check_data` says how to get them"
            )
        lines = [f"not here: {benchmark}: {problem}" for benchmark, problem in self.absent.items()]
        return "\n".join([*lines, "How to get it: snakemake check_data"] if lines else ["All benchmarks are here."])


def available(params: Params, problem_of: Callable[[str], str]) -> Available:
    """Look for the data of every benchmark of `all_tables`; without it, its finished runs make a table too.

    problem_of: says what a benchmark lacks before its runs could start, or nothing.
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


def asked_for(targets: Iterable[str]) -> bool:
    """Whether any target of a command line depends on what is here."""
    return any(target == TARGET or target.startswith(f"{AVAILABLE}/") for target in targets)


def _finished(params: Params, kind: str, benchmark: str) -> bool:
    """Whether every run of a benchmark in a table of a kind is there, with the parameters that are asked for now."""
    runs = runs_of(params, kind, benchmark)
    planned = [{"benchmark": benchmark, "row": run.row, "seeds": [run.seed]} for run in runs]
    return len(existing_metrics(params, planned)) == len(set(runs))
