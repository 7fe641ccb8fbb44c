"""How large is each loss term beside the others? From what the trainings recorded in a few epochs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd

from ctxgcd.names import TERM_SIZES
from ctxgcd.tables.display import method_name
from ctxgcd.tables.listing import Listing

COLUMNS = ["benchmark", "method", "K", "K_source", "epoch", "term", "weight", "active_from", "n"]
COLUMNS += [f"{kind}{of}_{m}" for kind in TERM_SIZES for of in ("", "_share") for m in ("mean", "std")]


def terms_table(metrics: Sequence[Mapping[str, Any]], *, rows: Sequence[str], benchmark: str) -> pd.DataFrame:
    """Mean and std over seeds of each weighted term's value, gradient norm and shares; one line a row, epoch, term.

    Measured in the first batch of the epochs in which a term starts, and of the last one. Shares in 0..1, of the sum
    of all terms' sizes.
    """
    lines = [
        {key: run[key] for key in ("row", "K", "K_source")}
        | {"epoch": shares["epoch"], "term": name, "active_from": run["active_from"][name], **sizes}
        for run in metrics
        if run["benchmark"] == benchmark and run["row"] in rows
        for shares in run["shares"]
        for name, sizes in shares["terms"].items()
    ]
    frame = pd.DataFrame(lines)
    entries = []
    for row in rows:
        own = frame[frame["row"] == row] if len(frame) else frame
        for (epoch, term), group in own.groupby(["epoch", "term"], sort=False) if len(own) else ():
            entry = {"benchmark": benchmark, "method": row, "epoch": epoch, "term": term, "n": len(group)}
            entry |= {key: group[key].iloc[0] for key in ("K", "K_source", "weight", "active_from")}
            for size in (f"{kind}{of}" for kind in TERM_SIZES for of in ("", "_share")):
                entry |= {f"{size}_mean": group[size].mean(), f"{size}_std": group[size].std(ddof=1)}
            entries.append(entry)
    return pd.DataFrame(entries, columns=COLUMNS)


def terms_listing(frame: pd.DataFrame, title: str) -> Listing:
    """Lay out one line a row, epoch and term."""
    lines = [
        [
            *(method_name(row["method"]), str(row["epoch"]), row["term"]),
            *(f"{row['weight']:g}", str(row["active_from"]), str(row["n"])),
            *(f"{100 * row[f'{kind}_share_mean']:.1f}" for kind in TERM_SIZES),
        ]
        for _, row in frame.iterrows()
    ]
    return Listing(
        title=title,
        head=["Row", "Epoch", "Term", "Weight", "Acts from", "n", "% of loss", "% of gradient", "% of tail's gradient"],
        lines=lines,
        notes=[
            "Of each weighted term, in the first batch of the epoch, mean over n seeds: its size (without sign), "
            "the norm of its gradient over all trained parameters, and over the backbone's tail alone, through which a "
            "term changes the features that are classified; each as a share of the sum over all terms.",
            "Gradients of different terms may point against one another: a share says how large a term is, not what "
            "it does. The released code's L_n has no gradient.",
        ],
        numbers_from=3,
    )
