"""Relative sizes of the loss terms, recorded by trainings in some epochs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd

from ctxgcd.catalogue.entries import all_terms
from ctxgcd.errors import UserError
from ctxgcd.names import TERM_SIZES
from ctxgcd.tables.display import method_name
from ctxgcd.tables.listing import Listing

COLUMNS = ["benchmark", "method", "K", "K_source", "precision", "epoch", "term", "weight", "active_from", "n"]
COLUMNS += [f"{kind}{of}_{m}" for kind in TERM_SIZES for of in ("", "_share") for m in ("mean", "std")]


def terms_table(metrics: Sequence[Mapping[str, Any]], *, rows: Sequence[str], benchmark: str) -> pd.DataFrame:
    """Return mean and std over seeds of each weighted term's value, gradient norm and shares, per row, epoch and term.

    Measured in the first batch of the epochs in which a term starts, and of the last epoch. Shares (0..1) are relative
    to the sum over all terms.
    """
    own = [run for run in metrics if run["benchmark"] == benchmark and run["row"] in rows]
    if without := [run for run in own if "shares" not in run]:
        raise UserError(
            f"the metrics of {benchmark}/{without[0]['row']}, seed {without[0]['seed']} have no sizes of the terms; "
            "make that run again"
        )
    lines = [
        {key: run[key] for key in ("row", "K", "K_source")}
        | {"precision": run.get("parameters", {}).get("precision", "")}
        | {"epoch": shares["epoch"], "term": name, "active_from": run["active_from"][name], **sizes}
        for run in own
        for shares in run["shares"]
        for name, sizes in shares["terms"].items()
    ]
    frame = pd.DataFrame(lines)
    entries = []
    for row in rows:
        of_row = frame[frame["row"] == row] if len(frame) else frame
        for (epoch, term), group in of_row.groupby(["epoch", "term"], sort=False) if len(of_row) else ():
            entry = {"benchmark": benchmark, "method": row, "epoch": epoch, "term": term, "n": len(group)}
            entry |= {key: group[key].iloc[0] for key in ("K", "K_source", "precision", "weight", "active_from")}
            for size in (f"{kind}{of}" for kind in TERM_SIZES for of in ("", "_share")):
                entry |= {f"{size}_mean": group[size].mean(), f"{size}_std": group[size].std(ddof=1)}
            entries.append(entry)
    return pd.DataFrame(entries, columns=COLUMNS)


def terms_listing(frame: pd.DataFrame, title: str) -> Listing:
    """Return a listing with one line per row and epoch, and each term's shares of loss, gradient and tail gradient."""
    terms = {name: term for name, term in all_terms().items() if (frame["term"] == name).any()}
    lines = []
    for (method, epoch), group in frame.groupby(["method", "epoch"], sort=False):
        own = {row["term"]: row for _, row in group.iterrows()}
        shares = [
            "/".join(_percent(own[t][f"{size}_share_mean"]) for size in TERM_SIZES) if t in own else "" for t in terms
        ]
        lines.append([method_name(str(method)), str(epoch), str(group["n"].iloc[0]), *shares])
    return Listing(
        title=title,
        head=["Row", "Epoch", "n", *(term.head for term in terms.values())],
        lines=lines,
        notes=[
            "Each weighted term in percent of the sum over all terms: absolute value / norm of the gradient over all "
            "trained parameters / norm of the gradient over the backbone's tail only, which computes the classified "
            "features. Measured in the first batch of an epoch; means over n seeds.",
            "Gradients of different terms may cancel, so a share measures the size of a term, not its effect. L_n of "
            "the released code has no gradient. The CSV file of this table also contains values, weights and stds.",
            *_started(frame),
        ],
        numbers_from=1,
    )


def _percent(share: float) -> str:
    """Format a share in percent with two digits."""
    return f"{100 * share:.0f}" if share >= 0.0995 else f"{100 * share:.1f}"


def _started(frame: pd.DataFrame) -> list[str]:
    """Return a note on the terms that start after epoch 0."""
    late = frame[frame["active_from"] > 0].drop_duplicates(["method", "term"])
    starts = [
        f"{' and '.join(group['term'])} of {method_name(str(method))} from epoch {start}"
        for (method, start), group in late.groupby(["method", "active_from"], sort=False)
    ]
    return [f"Terms that start after epoch 0: {'; '.join(starts)}."] if starts else []
