"""Notes under a table of accuracies: images and metrics, missing rows, and different environments."""

from __future__ import annotations

import pandas as pd

from ctxgcd.tables.aggregate import NO_TEST, PUBLISHED_ONLY
from ctxgcd.tables.display import benchmark_name

FLOAT32 = "float32"  # the precision of the published numbers


def knows_changed(lines: pd.DataFrame) -> bool:
    """Return whether a table has `changed` for any row; tables made by an earlier version have no such column."""
    return "changed" in lines and bool(lines["changed"].notna().any())


def percent_text(percent: float | None) -> str:
    """Return `changed` as a table shows it."""
    return "–" if pd.isna(percent) else f"{percent:.2f}"


def changed_note(lines: pd.DataFrame, other: str) -> list[str]:
    """Return a note on Changed if the table has it; other: whose classes a row's are compared with."""
    note = (
        f"Changed: percent of the unlabelled images whose class differs from {other} of the same seed, New classes "
        "matched; mean over seeds."
    )
    return [note] if knows_changed(lines) else []


def _list(lines: pd.DataFrame) -> str:
    return ", ".join(dict.fromkeys(lines["label"]))


def _values(lines: pd.DataFrame, what: pd.Series) -> str:
    """Return a value once if all rows share it, else each value with its rows."""
    groups = [(str(value), lines.loc[group.index]) for value, group in what.groupby(what, sort=False)]
    return " and ".join(value if len(groups) == 1 else f"{value} ({_list(group)})" for value, group in groups)


def _precision_note(lines: pd.DataFrame) -> list[str]:
    """Return a note if a row with published numbers was not computed in float32, as they were.

    Tables made by an earlier version have no precision.
    """
    beside = lines[(lines["n"] > 0) & lines["all_published"].notna()]
    if "precision" not in lines or beside["precision"].isin(["", FLOAT32]).all():
        return []
    if beside["benchmark"].nunique() > 1:
        beside = beside.assign(label=beside["label"] + " on " + beside["benchmark"].map(benchmark_name))
    values = _values(beside, beside["precision"])
    return [
        f"Precision of the rows with published numbers: {values}; the published numbers were computed in {FLOAT32}."
    ]


def _benchmark_note(key: str, lines: pd.DataFrame) -> str:
    """Return a note on one benchmark: its number of images, K and its source, and the epoch."""
    made = lines[lines["n"] > 0]
    if made.empty:
        return f"{benchmark_name(key)}: no runs."
    epochs = made["epoch"].dropna()
    facts = [
        _values(made, made["images"].map("{:,}".format)) + " images",
        "K = " + _values(made, made["K"].astype(str) + " (" + made["K_source"] + ")"),
        *(["scored at epoch " + _values(made, epochs.astype(str))] if len(epochs) else []),
    ]
    return f"{benchmark_name(key)}: {'; '.join(facts)}."


def collapsed_note(lines: pd.DataFrame) -> list[str]:
    """Return a note on runs with collapsed projections; lines have `label`, `benchmark` and `collapsed` (seeds)."""
    several = lines["benchmark"].nunique() > 1
    groups = lines[lines["collapsed"] != ""].groupby(["benchmark", "collapsed"], sort=False)
    runs = [
        f"{_list(group)}{f' on {benchmark_name(str(b))}' if several else ''}: seed {str(seeds).replace(' ', ', ')}"
        for (b, seeds), group in groups
    ]
    what = "Collapsed (projections nearly equal in the last epoch; contrastive and context losses had almost no effect)"
    return [f"{what}: {'; '.join(runs)}."] if runs else []


def _idle_note(lines: pd.DataFrame) -> list[str]:
    """Return a note on rows whose mechanism had no effect in a run (`note` of the long table)."""
    several = lines["benchmark"].nunique() > 1
    idle = lines[(lines["n"] > 0) & (lines["note"] != "")]
    rows = [
        label + (f" on {benchmark_name(str(key))}" if several else "") + f": {why}"
        for label, key, why in zip(idle["label"], idle["benchmark"], idle["note"], strict=True)
    ]
    return [f"Mechanism without effect: {'; '.join(rows)}."] if rows else []


def _missing_note(lines: pd.DataFrame) -> list[str]:
    """Return a note on rows without runs, by benchmark if the table has several."""
    several = lines["benchmark"].nunique() > 1
    gaps = [
        _list(group) + (f" on {benchmark_name(str(key))}" if several else "")
        for key, group in lines[lines["n"] == 0].groupby("benchmark", sort=False)
    ]
    return [f"Missing: {'; '.join(gaps)}."] if gaps else []


def _environment_note(lines: pd.DataFrame) -> list[str]:
    """Return a note on differences between the runs' environments; missing libraries do not count as different."""
    pairs = [
        {"key": key, "value": value, "label": line["label"], "benchmark": benchmark_name(line["benchmark"])}
        for _, line in lines.iterrows()
        for key, _, values in (part.partition("=") for part in line["environment"].split("; ") if part)
        for value in values.split("|")
    ]
    frame = pd.DataFrame(pairs, columns=["key", "value", "label", "benchmark"])
    differences = []
    for key, group in frame.groupby("key", sort=False):
        if group["value"].nunique() > 1:
            several = group["benchmark"].nunique() > 1
            if several and group.groupby("benchmark")["value"].nunique().max() == 1:
                named = group.assign(label=group["benchmark"])  # one value per benchmark: name no rows
            else:
                named = group.assign(label=group["label"] + (" on " + group["benchmark"] if several else ""))
            differences.append(f"{key} {_values(named, named['value'])}")
    return [f"Different environments: {'; '.join(differences)}."] if differences else []


def _test_note(long: pd.DataFrame) -> str:
    """Return a note on the official test part and on benchmarks without one."""
    absent = [benchmark_name(b) for b in dict.fromkeys(long.loc[long["note"] == NO_TEST, "benchmark"])]
    without = f"; {', '.join(absent)}: {NO_TEST}, so its inductive values are empty" if absent else ""
    return (
        f"The CSV file of this table also contains the other metrics and the official test part{without}. "
        "statistics_BENCHMARK tests whether differences between rows are significant."
    )


def notes_of(
    long: pd.DataFrame, lines: pd.DataFrame, *, note: str, scope: str, has_published: bool, alone: bool
) -> list[str]:
    """Return the notes of a table, in their order.

    Args:
        long: the whole long table.
        lines: those of its lines that the table shows, with their `label`.
        note: the table's own note, which comes first.
        scope: the values that are compared, such as "each column".
        has_published: whether published values stand below ours.
        alone: whether the table has rows of the paper that were not run here.
    """
    measure = (
        "Clustering accuracy v2 in percent on the unlabelled training images, mean ± std over n seeds "
        "(ddof = 1; no std for n = 1; n is written a/b if it differs between benchmarks). "
        f"Bold: best measured value of {scope}; underlined: second."
    )
    notes = [note, measure]
    if has_published:
        notes.append(
            "Published: the value in the paper. Our mean is ≈ within, ↑ above or ↓ below two standard errors of it "
            "(with SimGCD's published std, because the paper gives none); no sign: no standard error is known."
        )
    if alone:
        notes.append(
            f"{PUBLISHED_ONLY.capitalize()}: the paper's values for rows of its table that have no row here. They are "
            "not measured here, and are neither ranked nor compared."
        )
    notes += _precision_note(lines)
    notes += changed_note(lines, "SimGCD's")
    notes += [_benchmark_note(str(key), group) for key, group in lines.groupby("benchmark", sort=False)]
    notes += collapsed_note(lines) + _idle_note(lines) + _environment_note(lines[lines["n"] > 0]) + _missing_note(lines)
    return list(filter(None, [*notes, _test_note(long)]))
