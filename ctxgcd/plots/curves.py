"""Training curves: one panel for each loss term, with mean and range over seeds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import product
from math import ceil
from pathlib import Path
from typing import Any

import pandas as pd
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator

from ctxgcd.catalogue.entries import all_health, all_terms
from ctxgcd.errors import UserError
from ctxgcd.plots.style import GREY, LINE_STYLES, PALETTE, figure, plain
from ctxgcd.tables.display import method_name

LOSS = r"total loss $\mathcal{L}$"


def late_start(runs: Sequence[pd.DataFrame]) -> int | None:
    """Return the first epoch of a term that starts after epoch 0, or None."""
    history = pd.concat(runs)
    firsts = [history.loc[history[term].notna(), "epoch"].min() for term in all_terms() if term in history]
    late = [int(first) for first in firsts if first > 0]
    return min(late, default=None)


def training_curves(histories: Mapping[str, Sequence[pd.DataFrame]], out: Path, title: str) -> None:
    """Draw each loss term over epochs: one line per row (mean over seeds) in a band from minimum to maximum.

    The columns by which methods are judged (`health` of their entries) follow. `histories` maps a row to the
    history.csv frames of its seeds. A dotted line marks where further terms start. Terms that no run has get no panel.
    Raises UserError if there is no history.
    """
    drawn = {row: pd.concat(runs) for row, runs in histories.items() if any(len(run) for run in runs)}
    if not drawn:
        raise UserError(f"{out.name} has no training history to draw; give history.csv files with at least one epoch")
    symbols = {"loss": LOSS, **{name: term.symbol for name, term in all_terms().items()}, **all_health()}
    panels = [t for t in symbols if any(t in h and h[t].notna().any() for h in drawn.values())]
    starts = sorted({start for runs in histories.values() if runs and (start := late_start(runs)) is not None})
    columns = min(4 if len(panels) > 6 else 3, len(panels))
    lines = ceil(len(panels) / columns)
    looks: list[dict[str, Any]] = [
        {"linestyle": style, "color": color} for style, color in product(LINE_STYLES, PALETTE)
    ]
    with figure(out, max(3.0 * columns, 6.0), 2.4 * lines + 1.0) as drawing:
        axes = drawing.subplots(lines, columns, squeeze=False, sharex=True).ravel()
        for axis, term in zip(axes, panels, strict=False):
            axis.set_title(symbols[term], loc="left", fontsize=10)
            for start in starts:
                axis.axvline(start, color=GREY, linestyle=":", linewidth=1.2)
            for (_, history), look in zip(drawn.items(), looks, strict=False):
                if term not in history:
                    continue
                epochs = history.groupby("epoch")[term].agg(["mean", "min", "max"]).dropna()
                marker = "o" if len(epochs) == 1 else None  # a line with one point is invisible
                axis.plot(epochs.index, epochs["mean"], linewidth=1.4, marker=marker, **look)
                axis.fill_between(epochs.index, epochs["min"], epochs["max"], color=look["color"], alpha=0.2, lw=0)
            spread = [h[term].dropna() for h in drawn.values() if term in h]
            least, most = (f(f(values) for values in spread if len(values)) for f in (min, max))
            if least > 0 and most > 100 * least:  # the released L_n has another scale than the other terms
                axis.set_yscale("log")
            axis.xaxis.set_major_locator(MaxNLocator(nbins=5, integer=True))
        for axis in axes[max(len(panels) - columns, 0) : len(panels)]:
            axis.set_xlabel("epoch")
            axis.tick_params(labelbottom=True)  # panels above a gap in the last line need labels too
        for axis in axes[len(panels) :]:
            axis.remove()
        handles = [
            Line2D([], [], label=plain(method_name(row)), **look) for row, look in zip(drawn, looks, strict=False)
        ]
        if starts:
            began = ", ".join(map(str, starts))
            handles.append(Line2D([], [], color=GREY, linestyle=":", label=f"further terms start (epoch {began})"))
        drawing.legend(handles=handles, loc="outside lower center", ncols=min(len(handles), 3))
        drawing.suptitle(plain(title, 90) + " (line: mean, band: range over seeds)", fontsize=12)
