"""Copy the tables and figures of `make bench` to docs/measured/, and its table to docs/speed.md."""

from __future__ import annotations

import argparse
import shutil
from pathlib import Path

import pandas as pd
from publish_results import MARK, OUT, show_in

from ctxgcd.bench.budget import BUDGET_COLUMNS
from ctxgcd.bench.work import WORK_COLUMNS
from ctxgcd.errors import UserError
from ctxgcd.plots.bench import WAYS, cost_against_n, step_budget
from ctxgcd.utils.files import write_text
from ctxgcd.utils.reporting import reported

SPEED = Path("docs/speed.md")
HEAD = ("Work", "n", "Unit", "Ours", "Reference", "Ratio", "Peak MiB")


def table(steps: pd.DataFrame) -> str:
    """Return the rows of the results as Markdown."""
    lines = ["| " + " | ".join(HEAD) + " |", "|:--|--:|:--|--:|--:|--:|--:|"]
    for row in steps.to_dict("records"):
        ours, reference = (f"{row[k]:,.4g}" if row[k] < 1e4 else f"{row[k]:,.0f}" for k in ("ours", "reference"))
        memory = f"{row['peak_memory_mb']:,.0f}" if row["peak_memory_mb"] else ""
        cells = (row["work"], f"{row['n']:,}", row["unit"], ours, reference, f"{row['ratio']:,.2f}", memory)
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def _read(file: Path, columns: list[str]) -> pd.DataFrame:
    try:
        frame = pd.read_csv(file)
    except (OSError, ValueError):  # also an empty file
        frame = pd.DataFrame()
    if frame.empty or not set(columns) <= set(frame):
        raise UserError(f"{file} is missing or damaged; run `make bench` before publishing it")
    return frame


def publish(folder: Path, name: str) -> None:
    if not name.isidentifier():
        raise UserError(f"--name is '{name}'; give letters, digits and underscores")
    steps, budget = _read(folder / "steps.csv", WORK_COLUMNS), _read(folder / "budget.csv", BUDGET_COLUMNS)
    if not set(WAYS) <= set(budget["way"]) or not (steps.groupby("work")["n"].nunique() > 1).any():
        raise UserError(f"{folder} is incomplete; run `make bench` before publishing it")
    text = f"Device {', '.join(steps['device'].unique())}.\n\n{table(steps)}"
    page = [f"# Measured: {name}", text]
    OUT.mkdir(parents=True, exist_ok=True)
    for part in ("steps", "budget"):
        shutil.copy(folder / f"{part}.csv", OUT / f"{name}_{part}.csv")
    cost_against_n(steps, OUT / f"{name}_cost_against_n.png")
    step_budget(budget, OUT / f"{name}_step_budget.png")
    page += [f"![{part}]({name}_{part}.png)" for part in ("cost_against_n", "step_budget")]
    for more in ("environment.json", "kernels.txt"):
        if (folder / more).exists():
            page.append(f"```\n{(folder / more).read_text(encoding='utf-8').strip()}\n```")
    write_text(OUT / f"{name}.md", "\n\n".join(page) + "\n")
    if MARK.format(name) in SPEED.read_text(encoding="utf-8"):
        show_in(SPEED, name, text)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path, default=Path("results/bench"))
    parser.add_argument("--name", default="bench", help="name of the page in docs/measured")
    arguments = parser.parse_args()
    publish(arguments.folder, arguments.name)


if __name__ == "__main__":
    with reported():
        main()
