"""Aggregation of runs' metrics.json files to a long table: mean, std, values per seed, published values."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import product
from math import sqrt
from pathlib import Path
from typing import Any

import pandas as pd

from ctxgcd.errors import UserError
from ctxgcd.names import METRICS, SETS
from ctxgcd.tables.display import changed_numbers
from ctxgcd.tables.published import PAPER_VALUES, QUANTITIES, published_spread, published_value, without_ours
from ctxgcd.utils.files import read_rows, undamaged

SCHEMA = 1
REQUIRED = ("benchmark", "row", "seed", "split_sha256", "K", "K_source", "epoch", "scores")
COMPARED = ("unlabelled", "v2")  # the paper's tables hold this set and metric only
INDUCTIVE = ("test", "v2")
NO_TEST = "no test part in the data"
PUBLISHED_ONLY = "published, not run here"
INTEGERS = ("K", "epoch", "n", "images")
STATISTICS = ("mean", "std", "published", "difference")
LONG_COLUMNS = [
    *("benchmark", "method", "set", "metric", "K", "K_source", "precision", "epoch", "n"),
    *(f"{q}_{c}" for q in QUANTITIES for c in (*STATISTICS, "verdict")),
    *("changed", "images", "seeds", *(f"{q}_per_seed" for q in QUANTITIES), "environment", "code", "collapsed", "note"),
]
TEXTS = [c for c in LONG_COLUMNS if c not in (*INTEGERS, "changed") and not c.endswith(STATISTICS)]


def verdict(difference: float, std: float, n: int, published_std: float | None, published_n: float) -> str:
    """Return whether a difference from a published value is within 2 standard errors.

    `no band` without a published spread, and at n = 1, where our spread is unknown."""
    if published_std is None or n < 2:
        return "no band"
    band = 2 * sqrt(published_std**2 / published_n + std**2 / n)
    if abs(difference) <= band + 1e-9:
        return "inside"
    return "above" if difference > 0 else "below"


def environment_text(environments: Iterable[Mapping[str, Any]]) -> str:
    """Format environments as `torch=2.4.1; device=cpu: x`, with different values as `torch=2.4.1|2.5.0`."""
    values: dict[str, set[str]] = {}
    for environment in environments:
        for key, value in environment.items():
            if value is not None:
                values.setdefault(key, set()).add(str(value).replace(";", ",").replace("|", "/"))
    return "; ".join(f"{key}={'|'.join(sorted(found))}" for key, found in values.items())


def scores_of(
    metrics: Iterable[Mapping[str, Any]], rows: Sequence[str], benchmarks: Sequence[str], agree: Sequence[str] = ()
) -> pd.DataFrame:
    """Return one line per run and score of the given rows and benchmarks, in the order of their seeds.

    Raises UserError if runs of one benchmark differ in a column of `agree`, or have another schema.
    """
    lines = []
    for run in metrics:
        name = f"{run.get('benchmark')}/{run.get('row')}, seed {run.get('seed')}"
        if run.get("schema") != SCHEMA or (lacking := [key for key in REQUIRED if key not in run]):
            what = f"schema {run.get('schema')}" if run.get("schema") != SCHEMA else f"no {', '.join(lacking)}"
            raise UserError(f"the metrics of {name} have {what}, but expected schema {SCHEMA}; make that run again")
        if run["row"] in rows and run["benchmark"] in benchmarks:
            whole = {key: run[key] for key in REQUIRED if key != "scores"}
            whole |= {"environment": run.get("environment", {}), "collapsed": run.get("collapsed", False)}
            whole["idle"] = run.get("idle", "")
            whole |= {"code": run.get("true_code", ""), "precision": run.get("parameters", {}).get("precision", "")}
            lines += [{**whole, **score, "images": score["n"]} for score in run["scores"]]
    columns = [
        *(key for key in REQUIRED if key != "scores"),
        "environment",
        "code",
        "precision",
        "collapsed",
        "idle",
        "set",
        "metric",
        "images",
        *QUANTITIES,
    ]
    frame = pd.DataFrame(lines, columns=columns).astype(dict.fromkeys(QUANTITIES, float))
    for benchmark in benchmarks:
        _require_equal(frame[frame["benchmark"] == benchmark], benchmark, agree)
    return frame.sort_values("seed", kind="stable")


def _require_equal(frame: pd.DataFrame, where: str, columns: Sequence[str]) -> None:
    """Raise UserError if runs to be averaged or compared differ in one of the columns."""
    for column in columns:
        if frame[column].nunique(dropna=False) > 1:
            seen = frame.drop_duplicates(["row", "seed", column])
            runs = ", ".join(
                f"{row}/seed{seed} has {value}"
                for row, seed, value in zip(seen["row"], seen["seed"], seen[column], strict=True)
            )
            raise UserError(
                f"{where}: runs with different {column} cannot be in one table ({runs}); make them again with the same "
                f"{column}"
            )


def must_agree(runs: pd.DataFrame, where: str) -> None:
    """Raise UserError unless the runs of one row, set and metric differ only in their seeds, without duplicates."""
    _require_equal(runs, where, ["K", "K_source", "precision", "epoch", "images"])
    if runs["seed"].duplicated().any():
        raise UserError(f"{where}: the seeds {list(runs['seed'])} have a duplicate; give each run once")


def _idle(group: pd.DataFrame) -> str:
    """Return why the mechanism of a row had no effect, with the seeds of these runs, or an empty string."""
    of = group[group["idle"] != ""].groupby("idle", sort=False)["seed"]
    return "; ".join(f"{why} (seed {', '.join(map(str, seeds))})" for why, seeds in of)


def _entry(group: pd.DataFrame, published: Mapping[str, float] | None, benchmark: str) -> dict[str, Any]:
    """Aggregate the runs of one row, set and metric; an empty group gives n = 0."""
    entry: dict[str, Any] = {
        "n": len(group),
        "seeds": " ".join(map(str, group["seed"])),
        "environment": environment_text(group["environment"]),
        "code": " ".join(dict.fromkeys(group["code"])),
        "collapsed": " ".join(map(str, group.loc[group["collapsed"].astype(bool), "seed"])),
        **{c: group[c].iloc[0] if len(group) else None for c in ("K", "K_source", "precision", "epoch", "images")},
    }
    spread = published_spread(benchmark)
    for quantity in QUANTITIES:
        values = group[quantity]
        mean, std = values.mean(skipna=False), values.std(ddof=1, skipna=False)
        entry |= {f"{quantity}_mean": mean, f"{quantity}_std": std}
        if values.notna().any():
            entry[f"{quantity}_per_seed"] = " ".join("-" if pd.isna(v) else repr(float(v)) for v in values)
        if published is None:
            continue
        entry[f"{quantity}_published"] = published[quantity]
        if pd.notna(mean):
            difference = mean - published[quantity]
            entry[f"{quantity}_difference"] = difference
            band = (spread[quantity], spread["n"]) if spread else (None, 0)
            entry[f"{quantity}_verdict"] = verdict(difference, std, len(group), *band)
    return entry


def _typed(frame: pd.DataFrame) -> pd.DataFrame:
    """Set the type of each column: nullable integers, floats with NaN, strings with '' for missing values."""
    texts = {c: "str" for c in [*TEXTS, "parameter"] if c in frame}
    integers = dict.fromkeys(INTEGERS, "Int64")
    floats = {str(c): "float64" for c in frame if c not in texts and c not in integers}
    filled = {c: frame[c].astype(object).where(frame[c].notna(), "") for c in texts}
    return frame.assign(**filled).astype({**texts, **integers, **floats})


def long_table(
    metrics: list[dict[str, Any]],
    *,
    table: str,
    rows: list[str],
    benchmarks: list[str],
    changed: Mapping[tuple[str, str], float] = {},
) -> pd.DataFrame:
    """Aggregate the metrics of many runs into the long form: one line per benchmark, row, set and metric.

    Values are in percent at full precision; std has ddof = 1 and is empty at n = 1. Published values, difference and
    verdict are given only for v2 of the unlabelled set. A row without runs, or without a test part, has n = 0 and a
    note; so has a row whose mechanism had no effect in a run. `table` is our name (`main_ssb`) or the paper's (`ssb`).
    `changed` is the percent of images of D^u whose class differs from SimGCD's, by benchmark and row, and is given only
    for v2 of the unlabelled set too. Raises UserError if the runs of a row differ in K, epoch or set size, or those of
    a benchmark in the split.
    """
    scores = scores_of(metrics, rows, benchmarks, agree=["split_sha256"])
    entries = []
    for benchmark, row in product(benchmarks, rows):
        runs = scores[(scores["benchmark"] == benchmark) & (scores["row"] == row)]
        groups = {tuple(map(str, key)): group for key, group in runs.groupby(["set", "metric"], sort=False)}
        order = [*product(SETS, METRICS), *groups]
        for key in sorted({COMPARED, *[INDUCTIVE] * bool(groups), *groups}, key=order.index):
            group = groups.get(key, runs.iloc[:0])
            must_agree(group, f"{benchmark}/{row}")
            published = published_value(table, benchmark, row) if key == COMPARED else None
            entry: dict[str, Any] = {"benchmark": benchmark, "method": row, "set": key[0], "metric": key[1]}
            if not len(group):
                entry["note"] = NO_TEST if len(runs) else "not run"
            if key == COMPARED:
                entry["changed"] = changed.get((benchmark, row))
                entry.setdefault("note", _idle(group))
            entries.append(entry | _entry(group, published, benchmark))
    return _typed(pd.DataFrame(entries, columns=LONG_COLUMNS))


def with_published_rows(long: pd.DataFrame, *, table: str) -> pd.DataFrame:
    """Return a long table followed by the rows of the paper's table that none of its rows stands for.

    The added lines have the paper's key as `method`, the published values, n = 0 and the note PUBLISHED_ONLY, and are
    empty otherwise. They are last, so a row that is run takes the place of the published one.
    """
    printed = without_ours(table, set(long["benchmark"]), dict.fromkeys(long["method"]))
    shared = {"set": COMPARED[0], "metric": COMPARED[1], "n": 0, "note": PUBLISHED_ONLY}
    lines = [
        {"benchmark": one["benchmark"], "method": one["method"], **shared}
        | {f"{quantity}_published": one[quantity] for quantity in QUANTITIES}
        for one in printed.to_dict("records")
    ]
    return pd.concat([long, _typed(pd.DataFrame(lines, columns=LONG_COLUMNS))], ignore_index=True) if lines else long


def sensitivity_table(metrics: list[dict[str, Any]], *, rows: list[str], benchmarks: list[str]) -> pd.DataFrame:
    """Return the long form with the columns `parameter` and `value`, sorted by both.

    Rows are a base (`full-paper`) and rows with one override; the base is repeated for each parameter, with the
    resolved value of its run (without a run, the paper's value). Raises UserError for two overrides."""
    long = long_table(metrics, table="sensitivity", rows=rows, benchmarks=benchmarks)
    overrides = {row: changed_numbers(row) for row in rows}
    if crowded := [row for row, pairs in overrides.items() if len(pairs) > 1]:
        raise UserError(f"row '{crowded[0]}' changes several parameters, but sensitivity tables change one per row")
    found = {key for pairs in overrides.values() for key in pairs}
    parameters = [key for key in PAPER_VALUES if key in found] + sorted(found - set(PAPER_VALUES))
    own = {(run["benchmark"], run["row"]): run.get("parameters", {}) for run in metrics}

    def value(benchmark: str, row: str, parameter: str) -> float | None:
        base = own.get((benchmark, row), {}).get(parameter, PAPER_VALUES.get(parameter))
        return overrides[row].get(parameter) if overrides[row] else base

    parts = []
    for parameter in parameters:
        values = [value(b, m, parameter) for b, m in zip(long["benchmark"], long["method"], strict=True)]
        part = long.assign(parameter=parameter, value=pd.array(values, dtype="Float64"))
        parts.append(part[part["value"].notna()].sort_values("value", kind="stable"))
    table = pd.concat(parts) if parts else long.assign(parameter="", value=None).iloc[:0]
    table["benchmark"] = pd.Categorical(table["benchmark"], benchmarks)
    table["parameter"] = pd.Categorical(table["parameter"], parameters)
    table = table.sort_values(["benchmark", "parameter"], kind="stable", ignore_index=True)
    at = LONG_COLUMNS.index("method") + 1
    columns = [*LONG_COLUMNS[:at], "parameter", "value", *LONG_COLUMNS[at:]]
    return _typed(table.astype({"benchmark": "str", "parameter": "str"})[columns])


def read_long(path: Path) -> pd.DataFrame:
    """Read a long table from its CSV, with the types and values as written. Raises UserError for another file."""
    texts = dict.fromkeys([*TEXTS, "parameter"], "str")
    frame = read_rows(path, dtype=texts, keep_default_na=False, na_values=[""])
    with undamaged(path):
        return _typed(frame)
