"""Write docs/measured/choices.md: the trials on labelled images with which values were chosen."""

from __future__ import annotations

import argparse
from pathlib import Path

import pandas as pd

from ctxgcd.errors import UserError
from ctxgcd.utils.files import read_object, write_text
from ctxgcd.utils.reporting import reported

HEAD = """# How the demo's and cub50's values were chosen

Each row was trained on a benchmark that lies inside the labelled images D^l of another one: half of its old
classes play the new ones, so no label of D^u was read. Clustering accuracy (v2, percent) on its own unlabelled
images. Epochs are scaled so that a trial makes about as many steps as the benchmark itself.
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("benchmarks", nargs="+", help="trial benchmarks whose runs are in results/runs/")
    parser.add_argument("--out", type=Path, default=Path("docs/measured/choices.md"))
    arguments = parser.parse_args()
    lines = [HEAD]
    for benchmark in arguments.benchmarks:
        paths = sorted(Path("results/runs", benchmark).glob("*/seed*/metrics.json"))
        if not paths:
            raise UserError(f"no run of {benchmark} in results/runs/; docs/choices.md says how to train one")
        runs = [read_object(path) for path in paths]
        scores = [next(s for s in run["scores"] if (s["set"], s["metric"]) == ("unlabelled", "v2")) for run in runs]
        table = pd.DataFrame(scores).assign(row=[run["row"] for run in runs])
        lines += [f"## {benchmark} ({scores[0]['n']} images, K = {scores[0]['K']})\n"]
        lines += ["| row | All, each seed | All | Old | New |", "|---|---|---|---|---|"]
        for row, group in table.groupby("row"):
            means = " | ".join(f"{group[part].mean():.1f}" for part in ("all", "old", "new"))
            lines.append(f"| {row} | {', '.join(f'{value:.1f}' for value in group['all'])} | {means} |")
        lines.append("")
    write_text(arguments.out, "\n".join(lines))


if __name__ == "__main__":
    with reported():
        main()
