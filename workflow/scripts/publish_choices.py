"""Write docs/measured/choices.md and trials.csv: the trials on labelled images with which values were chosen."""

from __future__ import annotations

import argparse
from pathlib import Path

import pandas as pd

from ctxgcd.errors import UserError
from ctxgcd.tables.display import benchmark_name
from ctxgcd.utils.files import write_text
from ctxgcd.utils.reporting import reported

OUT = Path("docs/measured")
HEAD = """# Trials inside D^l

Each setting was trained on a benchmark that contains only the labelled images D^l of another one, with half of its
Old classes as New classes ([how values were chosen](../choices.md)). All / Old / New: clustering accuracy (v2,
percent) on its unlabelled images, mean over seeds, by ending: the classifier; the classifier for Old classes and
k-means of the frozen or of the trained features for New ones (trained: `new_by: kmeans`); semi-supervised k-means of
the trained features. k-means and semi-supervised k-means of the frozen features are the baselines. Old classes: the
half of the labelled classes that stays Old. CPU seconds of one training were measured beside other jobs. Every ending
and seed: [trials.csv](trials.csv).
"""
ENDINGS = {
    "classifier": "Classifier",
    "classifier+frozen_kmeans": "Classifier, New by k-means, frozen",
    "classifier+adapted_kmeans": "Classifier, New by k-means, trained",
    "adapted_semi": "Semi-supervised k-means, trained",
    "frozen_kmeans": "k-means, frozen",
    "frozen_semi": "Semi-supervised k-means, frozen",
}
SETTING = ["half", "crop", "tail", "tail_lr_factor", "row"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("trials", type=Path, nargs="*", default=[Path("results/trials.csv")])
    arguments = parser.parse_args()
    if missing := [str(path) for path in arguments.trials if not path.exists()]:
        raise UserError(f"{missing[0]} does not exist; make it with workflow/scripts/run_trials.py")
    table = pd.concat(map(pd.read_csv, arguments.trials), ignore_index=True)
    table["half"] = table["half"].fillna("first")  # the first round had no other
    lines = [HEAD]
    for stage, of_stage in table.groupby("stage", sort=False):
        lines.append(f"## {str(stage).replace('_', ' ').capitalize()}\n")
        for benchmark, own in of_stage.groupby("benchmark", sort=False):
            lines += [f"{benchmark_name(str(benchmark))}:\n", *_table(own), ""]
    write_text(OUT / "choices.md", "\n".join(lines))
    table.to_csv(OUT / "trials.csv", index=False, lineterminator="\n")


def _table(own: pd.DataFrame) -> list[str]:
    """Return the lines of a Markdown table with a line for each setting."""
    endings = {name: head for name, head in ENDINGS.items() if (own["ending"] == name).any()}
    lines = [
        f"| Old classes | Pixels | Tail | Row | Seeds | {' | '.join(endings.values())} | CPU s |",
        "|---|--:|---|---|--:|" + "--:|" * (len(endings) + 1),
    ]
    for (half, crop, tail, factor, row), group in own.groupby(SETTING, sort=False):
        means = group.groupby("ending")[["all", "old", "new"]].mean()
        cells = [
            " / ".join(f"{value:.1f}" for value in means.loc[name]) if name in means.index else "" for name in endings
        ]
        seeds, seconds = group["seed"].nunique(), group["seconds"].mean()
        lines.append(f"| {half} | {crop} | {tail} x {factor} | {row} | {seeds} | {' | '.join(cells)} | {seconds:.0f} |")
    return lines


if __name__ == "__main__":
    with reported():
        main()
