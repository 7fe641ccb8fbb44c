"""Does a term help? Differences from SimGCD seed by seed, whose streams are common, with intervals."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import sqrt
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy import stats

from ctxgcd.tables.aggregate import COMPARED, scores_of
from ctxgcd.tables.display import benchmark_name, method_name
from ctxgcd.tables.listing import Listing
from ctxgcd.tables.published import QUANTITIES

AGAINST = "simgcd"
LEVEL = 0.95
MEASURES = ("difference", "std", "low", "high", "detectable", "p", "p_holm", "verdict", "per_seed")
COLUMNS = ["benchmark", "method", "against", "set", "metric", "K", "K_source", "epoch", "n", "seeds"]
COLUMNS += [f"{q}_{m}" for q in QUANTITIES for m in MEASURES]
NOTHING = "no difference seen"


def paired(differences: NDArray[np.float64]) -> dict[str, Any]:
    """Return mean, std (ddof = 1), the two-sided 95% t interval, p and the verdict of per-seed differences [n].

    `detectable` is half the interval: the smallest mean difference that this many seeds of this spread could have
    shown. With one seed there is no interval and no verdict.
    """
    n, mean = len(differences), float(differences.mean())
    if n < 2:
        return {"difference": mean, "verdict": "one seed"}
    std = float(differences.std(ddof=1))
    half = float(stats.t.ppf(0.5 + LEVEL / 2, n - 1)) * std / sqrt(n)
    without_spread = 1.0 if mean == 0 else 0.0
    p = 2 * float(stats.t.sf(abs(mean) / (std / sqrt(n)), n - 1)) if std > 0 else without_spread
    low, high = mean - half, mean + half
    verdict = "helps" if low > 0 else "hurts" if high < 0 else NOTHING
    measures = {"difference": mean, "std": std, "low": low, "high": high}
    return {**measures, "detectable": half, "p": p, "verdict": verdict}


def holm(p: Sequence[float]) -> list[float]:
    """Return Holm's adjusted p values, in the order given: valid for all comparisons of one table together."""
    order = np.argsort(p, kind="stable")
    adjusted, running = np.empty(len(p)), 0.0
    for rank, place in enumerate(order):
        running = max(running, min(1.0, (len(p) - rank) * p[place]))
        adjusted[place] = running
    return [float(value) for value in adjusted]


def statistics(metrics: Sequence[Mapping[str, Any]], *, rows: Sequence[str], benchmark: str) -> pd.DataFrame:
    """Compare each row with SimGCD over their common seeds, v2 on D^u; one line a row.

    Raises UserError where the runs' splits, K or epochs differ.
    """
    scores = scores_of(metrics, [AGAINST, *rows], [benchmark], agree=("split_sha256", "K", "K_source"))
    scores = scores[(scores["set"] == COMPARED[0]) & (scores["metric"] == COMPARED[1])]
    base = scores[scores["row"] == AGAINST].set_index("seed")
    entries = []
    for row in rows:
        own = scores[scores["row"] == row].set_index("seed")
        common = own.index.intersection(base.index).sort_values()
        entry: dict[str, Any] = {
            "benchmark": benchmark,
            "method": row,
            "against": AGAINST,
            "set": COMPARED[0],
            "metric": COMPARED[1],
        }
        entry |= {"n": len(common), "seeds": " ".join(map(str, common))}
        for quantity in QUANTITIES if len(common) else ():
            entry |= {key: own[key].iloc[0] for key in ("K", "K_source", "epoch")}
            differences = (own.loc[common, quantity] - base.loc[common, quantity]).to_numpy("float64")
            found = paired(differences) | {"per_seed": " ".join(repr(float(value)) for value in differences)}
            entry |= {f"{quantity}_{name}": value for name, value in found.items()}
        entries.append(entry)
    frame = pd.DataFrame(entries, columns=COLUMNS)
    for quantity in QUANTITIES:
        known = frame[f"{quantity}_p"].notna()
        frame.loc[known, f"{quantity}_p_holm"] = holm(frame.loc[known, f"{quantity}_p"].tolist())
    return frame


def statistics_listing(frame: pd.DataFrame, benchmark: str) -> Listing:
    """Lay out one line a row and quantity: difference, interval, what could have been shown, verdict."""
    lines = []
    for _, row in frame.iterrows():
        if not row["n"]:
            lines.append([method_name(row["method"]), "", "0", *["–"] * 4, "not run"])
            continue
        for quantity in QUANTITIES:
            of = {name: row[f"{quantity}_{name}"] for name in MEASURES}
            known = pd.notna(of["low"])
            lines.append(
                [
                    *(method_name(row["method"]), quantity.capitalize(), str(row["n"])),
                    f"{of['difference']:+.2f}",
                    f"{of['low']:+.2f} to {of['high']:+.2f}" if known else "–",
                    f"{of['detectable']:.2f}" if known else "–",
                    f"{of['p']:.3f} ({of['p_holm']:.3f})" if known else "–",
                    of["verdict"],
                ]
            )
    return Listing(
        title=f"Differences from SimGCD on {benchmark_name(benchmark)}, seed by seed",
        head=["Row", "Images", "n", "Difference", "95% interval", "Could show", "p (Holm)", "Verdict"],
        lines=lines,
        notes=[
            "Points of clustering accuracy v2 on the unlabelled training images, mean over n seeds of a row's value "
            "less SimGCD's of the same seed: both saw the same sampled images, views and starting heads.",
            "Interval: two-sided 95% t interval. Helps or hurts: it excludes 0. Could show: half of it, the smallest "
            "mean difference that so many seeds could have told from none. Holm: p corrected for this table's rows.",
            "Both weights 0 is the control: it computes everything and must not differ.",
        ],
        numbers_from=2,
    )
