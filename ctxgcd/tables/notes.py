"""Notes under a table of accuracies: images and metrics, missing rows, and different environments."""

from __future__ import annotations

import pandas as pd

from ctxgcd.tables.aggregate import NO_TEST
from ctxgcd.tables.display import benchmark_name


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


def _said(lines: pd.DataFrame, what: pd.Series) -> str:
    """Return a property once if all rows share it, else each value with its rows."""
    groups = [(str(value), lines.loc[group.index]) for value, group in what.groupby(what, sort=False)]
    return " and ".join(value if len(groups) == 1 else f"{value} ({_list(group)})" for value, group in groups)


def _benchmark_note(key: str, lines: pd.DataFrame) -> str:
    """Return what the numbers of one benchmark were measured on: images, K and its source, epoch."""
    made = lines[lines["n"] > 0]
    if made.empty:
        return f"{benchmark_name(key)}: no runs yet."
    epochs = made["epoch"].dropna()
    facts = [
        _said(made, made["images"].map("{:,}".format)) + " images",
        "K = " + _said(made, made["K"].astype(str) + " (" + made["K_source"] + ")"),
        *(["scored at epoch " + _said(made, epochs.astype(str))] if len(epochs) else []),
    ]
    return f"{benchmark_name(key)}: {'; '.join(facts)}."


def collapsed_note(lines: pd.DataFrame) -> list[str]:
    """Return a note on runs with collapsed projections; lines have `label`, `benchmark` and `collapsed` (seeds)."""
    several = lines["benchmark"].nunique() > 1
    groups = lines[lines["collapsed"] != ""].groupby(["benchmark", "collapsed"], sort=False)
    said = [
        f"{_list(group)}{f' on {benchmark_name(str(b))}' if several else ''}: seed {str(seeds).replace(' ', ', ')}"
        for (b, seeds), group in groups
    ]
    what = "Collapsed (all projections alike at the end, so that contrastive and context losses train next to nothing)"
    return [f"{what}: {'; '.join(said)}."] if said else []


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
    said = []
    for key, group in frame.groupby("key", sort=False):
        if group["value"].nunique() > 1:
            several = group["benchmark"].nunique() > 1
            if several and group.groupby("benchmark")["value"].nunique().max() == 1:
                named = group.assign(label=group["benchmark"])  # one value per benchmark: name no rows
            else:
                named = group.assign(label=group["label"] + (" on " + group["benchmark"] if several else ""))
            said.append(f"{key} {_said(named, named['value'])}")
    return [f"Mixed environments: {'; '.join(said)}."] if said else []


def _test_note(long: pd.DataFrame) -> str:
    """Return a note on the official test part and on benchmarks without one."""
    absent = [benchmark_name(b) for b in dict.fromkeys(long.loc[long["note"] == NO_TEST, "benchmark"])]
    without = f"; {', '.join(absent)}: {NO_TEST}, so its inductive values are empty" if absent else ""
    return (
        f"Other metrics and the official test part are in the CSV beside this table{without}. Whether rows differ by "
        "more than chance is said by statistics_BENCHMARK."
    )


def notes_of(long: pd.DataFrame, lines: pd.DataFrame, *, note: str, scope: str, has_published: bool) -> list[str]:
    """Return the notes of a table, in their order.

    Args:
        long: the whole long table.
        lines: those of its lines that the table shows, with their `label`.
        note: the table's own note, which comes first.
        scope: the set of values that are compared, such as "each column".
    """
    measure = (
        "Clustering accuracy v2 in percent on the unlabelled training images, mean ± std over n seeds "
        "(ddof = 1; no std at n = 1; n is a/b where it differs by benchmark). "
        f"Bold: best measured value of {scope}; underlined: second."
    )
    notes = [note, measure]
    if has_published:
        notes.append(
            "Published: as printed in the paper; ≈ our mean is inside, ↑ above, ↓ below the band of two "
            "standard errors (SimGCD's published std stands in for the paper's); no sign: no band."
        )
    notes += changed_note(lines, "SimGCD's")
    notes += [_benchmark_note(str(key), group) for key, group in lines.groupby("benchmark", sort=False)]
    notes += collapsed_note(lines) + _environment_note(lines[lines["n"] > 0]) + _missing_note(lines)
    return list(filter(None, [*notes, _test_note(long)]))
