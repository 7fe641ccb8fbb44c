"""The style of all figures: Agg backend without pyplot, colours for colour blindness, plain texts, atomic files."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from ctxgcd.tables.display import SYMBOL
from ctxgcd.utils.files import replacing

DPI = 150

# Okabe and Ito, "Color Universal Design" (2008), without yellow, which is invisible on white.
PALETTE = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00", "#000000")
LINE_STYLES = ("-", "--", "-.")
GREY = "#767676"

RC: dict[Any, Any] = {
    "font.family": "DejaVu Sans",  # included in matplotlib, so the same on every machine
    "font.size": 10,
    "axes.titlesize": 11,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.color": "#e5e5e5",
    "axes.axisbelow": True,
    "legend.frameon": False,
}


def plain(text: object, width: int = 40) -> str:
    """Make a text safe to draw: one line, no mathtext except our own symbols, shortened to `width` characters."""
    line = re.sub(r"\s+", " ", str(text)).strip()
    line = line if len(line) <= width else line[: width - 1] + "…"
    line = line.replace("\\", "\\\\") if "$" in line else line
    return SYMBOL.sub(lambda m: f"${m[1].replace('lambda', chr(92) + 'lambda')}_{m[2]}$", line.replace("$", r"\$"))


@contextmanager
def figure(out: Path, width: float, height: float) -> Iterator[Figure]:
    """Yield a figure of width x height inches, and save it to `out` (PNG) atomically when the block ends.

    User settings (matplotlibrc) and the backend in the environment are ignored. The file contains neither a date nor
    a version, so equal data gives equal bytes."""
    with mpl.rc_context():
        mpl.rcdefaults()
        mpl.rcParams.update(RC)
        drawing = Figure(figsize=(width, height), dpi=DPI, layout="constrained")
        FigureCanvasAgg(drawing)
        yield drawing
        with replacing(out) as temporary:
            drawing.savefig(temporary, format="png", dpi=DPI, metadata={"Software": None})
