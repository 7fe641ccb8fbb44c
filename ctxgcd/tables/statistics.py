"""Paired statistics: differences between two rows with the same seeds, with confidence intervals."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import sqrt
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy import stats

from ctxgcd.tables.aggregate import COMPARED, must_agree, scores_of
from ctxgcd.tables.display import method_name
from ctxgcd.tables.listing import Listing
from ctxgcd.tables.notes import changed_note, collapsed_note, knows_changed, percent_text
from ctxgcd.tables.published import QUANTITIES

LEVEL = 0.95
MEASURES = ("mean", "against", "difference", "std", "low", "high", "detectable", "p", "p_holm", "verdict", "per_seed")
COLUMNS = [
    "benchmark",
    "method",
    "against",
    "set",
    "metric",
    "K",
    "K_source",
    "K_against",
    "precision",
    "precision_against",
    "epoch",
    "n",
    "seeds",
    "collapsed",
    "changed",
]
COLUMNS += [f"{q}_{m}" for q in QUANTITIES for m in MEASURES]
NOT_SIGNIFICANT, UNDEFINED = "no difference seen", "not defined"


def paired(differences: NDArray[np.float64]) -> dict[str, Any]:
    """Return mean, std (ddof = 1), the two-sided 95% t interval, p and the verdict of per-seed differences [n].

    `detectable` is half of the interval: the smallest mean difference detectable with this number and spread of seeds.
    With one seed there is no interval and no verdict; if a value is undefined (no Old or no New image), the result is
    empty.
    """
    if not np.isfinite(differences).all():
        return {"verdict": UNDEFINED}
    n, mean = len(differences), float(differences.mean())
    if n < 2:
        return {"difference": mean, "verdict": "one seed"}
    std = float(differences.std(ddof=1))
    half = float(stats.t.ppf(0.5 + LEVEL / 2, n - 1)) * std / sqrt(n)
    without_spread = 1.0 if mean == 0 else 0.0
    p = 2 * float(stats.t.sf(abs(mean) / (std / sqrt(n)), n - 1)) if std > 0 else without_spread
    low, high = mean - half, mean + half
    verdict = "helps" if low > 0 else "hurts" if high < 0 else NOT_SIGNIFICANT
    measures = {"difference": mean, "std": std, "low": low, "high": high}
    return {**measures, "detectable": half, "p": p, "verdict": verdict}


def holm(p: Sequence[float]) -> list[float]:
    """Return p values with Holm's correction for all comparisons of one table, in the given order."""
    order = np.argsort(p, kind="stable")
    adjusted, running = np.empty(len(p)), 0.0
    for rank, place in enumerate(order):
        running = max(running, min(1.0, (len(p) - rank) * p[place]))
        adjusted[place] = running
    return [float(value) for value in adjusted]


def statistics(
    metrics: Sequence[Mapping[str, Any]],
    *,
    pairs: Mapping[str, str],
    benchmark: str,
    changed: Mapping[tuple[str, str], float] = {},
) -> pd.DataFrame:
    """Compare each row with another over their common seeds, by v2 on D^u; return one line per row.

    pairs: row -> the row that it is compared with. changed: the percent of images of D^u whose class differs between
    both, by benchmark and row. Raises UserError if the runs differ in their split, those of one
    row in K or epoch, or if a seed occurs twice.
    """
    scores = scores_of(metrics, [*pairs, *pairs.values()], [benchmark], agree=("split_sha256",))
    scores = scores[(scores["set"] == COMPARED[0]) & (scores["metric"] == COMPARED[1])]
    for row, runs in scores.groupby("row"):
        must_agree(runs, f"{benchmark}/{row}")
    entries = []
    for row, against in pairs.items():
        base, own = (scores[scores["row"] == name].set_index("seed") for name in (against, row))
        common = own.index.intersection(base.index).sort_values()
        entry: dict[str, Any] = {
            "benchmark": benchmark,
            "method": row,
            "against": against,
            "set": COMPARED[0],
            "metric": COMPARED[1],
            "changed": changed.get((benchmark, row), np.nan),
        }
        entry |= {"n": len(common), "seeds": " ".join(map(str, common))}
        collapsed = set(own.index[own["collapsed"].astype(bool)]) | set(base.index[base["collapsed"].astype(bool)])
        entry["collapsed"] = " ".join(map(str, sorted(collapsed & set(common))))
        for quantity in QUANTITIES if len(common) else ():
            entry |= {key: own[key].iloc[0] for key in ("K", "K_source", "precision", "epoch")}
            entry |= {f"{key}_against": base[key].iloc[0] for key in ("K", "precision")}
            differences = (own.loc[common, quantity] - base.loc[common, quantity]).to_numpy("float64")
            found = {"mean": own.loc[common, quantity].mean(), "against": base.loc[common, quantity].mean()}
            found |= paired(differences) | {"per_seed": " ".join(repr(float(value)) for value in differences)}
            entry |= {f"{quantity}_{name}": value for name, value in found.items()}
        entries.append(entry)
    frame = pd.DataFrame(entries, columns=COLUMNS).astype(dict.fromkeys(("K", "K_against", "epoch", "n"), "Int64"))
    for quantity in QUANTITIES:
        known = frame[f"{quantity}_p"].notna()
        frame.loc[known, f"{quantity}_p_holm"] = holm(frame.loc[known, f"{quantity}_p"].tolist())
    return frame


def statistics_listing(frame: pd.DataFrame, title: str) -> Listing:
    """Return a listing with one line per row and quantity: difference, interval, detectable difference, verdict."""
    lines = []
    several = frame["against"].nunique() > 1
    has_changed = knows_changed(frame)
    for _, row in frame.iterrows():
        name = method_name(row["method"]) + (f" against {method_name(row['against'])}" if several else "")
        if not row["n"]:
            lines.append([name, "", "0", *["–"] * (5 + has_changed), "not run"])
            continue
        for quantity in QUANTITIES:
            of = {name: row[f"{quantity}_{name}"] for name in MEASURES}
            known = pd.notna(of["low"])
            lines.append(
                [
                    *(name, quantity.capitalize(), str(row["n"])),
                    f"{of['mean']:.1f} / {of['against']:.1f}" if pd.notna(of["difference"]) else "–",
                    f"{of['difference']:+.2f}" if pd.notna(of["difference"]) else "–",
                    f"{of['low']:+.2f} to {of['high']:+.2f}" if known else "–",
                    f"{of['detectable']:.2f}" if known and of["std"] > 0 else "–",
                    f"{of['p']:.3f} ({of['p_holm']:.3f})" if known else "–",
                    *([percent_text(row["changed"]) if quantity == "all" else ""] if has_changed else []),
                    of["verdict"],
                ]
            )
    return Listing(
        title=title,
        head=[
            *("Row", "Images", "n", "Means", "Difference", "95% interval", "Detectable", "p (Holm)"),
            *(["Changed"] if has_changed else []),
            "Verdict",
        ],
        lines=lines,
        notes=[
            "Clustering accuracy v2 in percent on the unlabelled training images. Means: of the row / of the row that "
            "it is compared with, over n seeds. Difference: mean of the paired differences, in percentage points. Two "
            "runs with the same seed have the same sampled images, views and initial heads, unless the rows differ in "
            "one of these or are not trained.",
            "Interval: two-sided 95% t interval. Verdict: helps or hurts if the interval excludes 0. Detectable: half "
            "the width of the interval, the smallest mean difference that is significant with this number and spread "
            "of seeds; empty if the differences of all seeds are equal. Holm: p corrected for all rows of this table.",
            *changed_note(frame, "the other row's"),
            *_control_note(frame),
            *_k_note(frame),
            *collapsed_note(frame.assign(label=frame["method"].map(method_name))),
        ],
        numbers_from=2,
    )


def _control_note(frame: pd.DataFrame) -> list[str]:
    control = frame["method"].str.endswith("-zero").any()
    return ["Both weights 0: a control with the same losses, which differs by rounding only."] * bool(control)


def _k_note(frame: pd.DataFrame) -> list[str]:
    """Return a note on K and its source, by row if they differ."""
    made = frame[frame["n"] > 0]
    known = made["K"].astype(str) + " (" + made["K_source"] + ")"
    other = made["K"] != made["K_against"]
    known[other] += " against " + made.loc[other, "K_against"].astype(str)
    groups = {
        text: made.loc[group.index, "method"].map(method_name) for text, group in known.groupby(known, sort=False)
    }
    values = [text if len(groups) == 1 else f"{text}: {', '.join(names)}" for text, names in groups.items()]
    return [f"K = {'; '.join(values)}."] if values else []
