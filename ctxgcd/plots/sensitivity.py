"""Sensitivity curves: measured and published accuracy against each parameter."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pandas as pd
from matplotlib.lines import Line2D

from ctxgcd.errors import UserError
from ctxgcd.plots.style import GREY, PALETTE, figure, plain
from ctxgcd.tables.aggregate import COMPARED
from ctxgcd.tables.display import benchmark_name
from ctxgcd.tables.published import QUANTITIES

MARKERS = {"all": "o", "old": "s", "new": "^"}
COLORS = dict(zip(QUANTITIES, PALETTE, strict=False))


def sensitivity_curves(long: pd.DataFrame, out: Path, title: str) -> None:
    """Draw All, Old and New (percent) with one std over each parameter, slightly shifted; hollow markers: as published.

    `long` is a sensitivity table; each benchmark is a row of panels, each parameter a column. Raises UserError if it
    is empty."""
    data = long[(long["set"] == COMPARED[0]) & (long["metric"] == COMPARED[1])]
    if data.empty:
        raise UserError(f"{out.name} has no sensitivity runs to draw; give rows such as full-paper+lambda_n=0.3")
    benchmarks, parameters = list(dict.fromkeys(data["benchmark"])), list(dict.fromkeys(data["parameter"]))
    has_published = any(data[f"{quantity}_published"].notna().any() for quantity in QUANTITIES)
    with figure(out, max(3.3 * len(parameters), 6.0), 3.0 * len(benchmarks) + 1.0) as drawing:
        grid = drawing.subplots(len(benchmarks), len(parameters), squeeze=False, sharey="row")
        for axes, benchmark in zip(grid, benchmarks, strict=True):
            axes[0].set_ylabel(f"{plain(benchmark_name(benchmark), 28)}: accuracy (%)")
            for axis, parameter in zip(axes, parameters, strict=True):
                points = data[(data["benchmark"] == benchmark) & (data["parameter"] == parameter)]
                at = points["value"]
                for own in at[~points["method"].str.contains("+", regex=False)]:
                    axis.axvline(own, color=GREY, linestyle=":", linewidth=1.2)
                apart = 0.03 * (at.max() - at.min())  # shifted, so that equal values do not overlap
                for place, quantity in enumerate(QUANTITIES):
                    x = at + (place - 1) * apart
                    look: dict[str, Any] = {"color": COLORS[quantity], "marker": MARKERS[quantity]}
                    published = points[f"{quantity}_published"]
                    axis.plot(x, published, linestyle="--", linewidth=0.8, markerfacecolor="white", **look)
                    mean, std = points[f"{quantity}_mean"], points[f"{quantity}_std"]
                    axis.errorbar(x, mean, yerr=std, capsize=3, linewidth=1.4, **look)
                axis.set_xticks(sorted(set(at)))
                axis.set_xlabel(plain(parameter))
                axis.margins(x=0.1)
        handles = [Line2D([], [], color=COLORS[q], marker=MARKERS[q], label=q.capitalize()) for q in QUANTITIES]
        if has_published:
            hollow: dict[str, Any] = {"color": GREY, "marker": "o", "markerfacecolor": "white"}
            handles.append(Line2D([], [], linestyle="--", linewidth=0.8, label="published", **hollow))
        handles.append(Line2D([], [], color=GREY, linestyle=":", label="main run"))
        drawing.legend(handles=handles, loc="outside lower center", ncols=len(handles))
        seeds = "mean ± std over seeds" if data["n"].max() > 1 else "one seed"
        drawing.suptitle(f"{plain(title, 90)} ({seeds})", fontsize=12)
