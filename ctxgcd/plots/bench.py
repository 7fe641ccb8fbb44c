"""Figures of the benchmarks: cost against the number of images, and the time of the parts of a training step."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
from matplotlib.ticker import NullFormatter

from ctxgcd.plots.style import PALETTE, figure, plain

WAYS = ("reference", "exact", "view bank")


def cost_against_n(steps: pd.DataFrame, out: Path) -> None:
    """Draw seconds against n, ours and the reference, for every benchmark with several values of n.

    steps: results/bench/steps.csv (work, unit, ours, reference, n, ...); a reference's time is computed from its rate.
    """
    works = [name for name, rows in steps.groupby("work", sort=False) if rows["n"].nunique() > 1]
    with figure(out, 3.6 * len(works), 3.4) as drawing:
        for axis, name in zip(drawing.subplots(1, len(works), squeeze=False)[0], works, strict=True):
            rows = steps[steps["work"] == name]
            for kind, color in (("reference", PALETTE[1]), ("ours", PALETTE[0])):
                axis.plot(rows["n"], rows["n"] / rows[kind], marker="o", color=color, label=kind)
            axis.set(xscale="log", yscale="log", xlabel="n", ylabel="seconds")
            axis.xaxis.set_minor_formatter(NullFormatter())
            axis.yaxis.set_minor_formatter(NullFormatter())
            axis.set_title(plain(name, 44), fontsize=9)
            axis.legend()


def step_budget(budget: pd.DataFrame, out: Path) -> None:
    """Draw one bar per training mode, divided into parts (percent of its step), with its milliseconds per view.

    budget: results/bench/budget.csv (way, part, milliseconds, views).
    """
    parts = list(dict.fromkeys(budget["part"]))
    with figure(out, 9.0, 3.4) as drawing:
        axis = drawing.subplots()
        for place, way in enumerate(WAYS):
            rows = budget[budget["way"] == way]
            total, start = rows["milliseconds"].sum(), 0.0
            for part, milliseconds in zip(rows["part"], rows["milliseconds"], strict=True):
                share = 100 * milliseconds / total
                color = PALETTE[parts.index(part)]
                axis.barh(place, share, left=start, color=color, label=part if part not in _shown(axis) else None)
                start += share
            axis.text(101, place, f"{total / rows['views'].iloc[0]:.3g} ms per view", va="center")
        axis.set_yticks(range(len(WAYS)), WAYS)
        axis.set(xlabel="percent of a step", xlim=(0, 118))
        drawing.legend(loc="outside lower center", ncols=4)


def _shown(axis: object) -> list[str]:
    return axis.get_legend_handles_labels()[1]  # type: ignore[attr-defined]
