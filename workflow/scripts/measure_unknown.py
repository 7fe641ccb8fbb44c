"""Measure how well scores tell photographs of unseen classes from new photographs of a discovery's own classes.

    python workflow/scripts/measure_unknown.py data/raw/cub50/CUB_200_2011/images work/unknown

The photographs lie in one folder per class. The first four fifths of the classes are discovered from two thirds of
their photographs, with labels for half of those of every second class. The other third, and all photographs of the
other classes, are new. Prints tables of docs/discover.md. An interrupted call resumes.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from scipy.stats import rankdata
from torch import Tensor
from torch.nn.functional import normalize

from ctxgcd import api
from ctxgcd.benchmarks.readers.own_images import images_below
from ctxgcd.discover import model as models
from ctxgcd.images.pack import pack
from ctxgcd.models.backbone import Backbone
from ctxgcd.models.features import extract_test_view, load_kept
from ctxgcd.training.load import open_cropper
from ctxgcd.utils.files import write_text
from ctxgcd.utils.reporting import reported

RATES = (0.01, 0.02, 0.05, 0.1)  # shares of false alarms
Scores = NDArray[np.float64]


def groups_of(photos: Path, most: int | None) -> tuple[pd.DataFrame, int]:
    """Return path, class, group (train, held_out, unseen), labelled of all photographs, and the number of classes."""
    table = pd.DataFrame({"path": images_below(photos)})
    table["class"] = table.path.map(lambda path: Path(path).parts[0])
    classes = sorted(table["class"].unique())[:most]
    table = table[table["class"].isin(classes)].reset_index(drop=True)
    own = classes[: round(0.8 * len(classes))]
    table = table.iloc[np.random.RandomState(0).permutation(len(table))].reset_index(drop=True)
    number = table.groupby("class").cumcount()
    table["group"] = np.where(number % 3 < 2, "train", "held_out")
    table.loc[~table["class"].isin(own), "group"] = "unseen"
    table["labelled"] = table.group.eq("train") & table["class"].isin(own[::2]) & (number % 6 < 2)
    return table, len(own)


def linked(photos: Path, paths: Sequence[str], folder: Path) -> None:
    """Make a folder of links to photographs."""
    for path in paths:
        link = folder / path
        link.parent.mkdir(parents=True, exist_ok=True)
        if not link.is_symlink():
            link.symlink_to((photos / path).resolve())


def features_of(made: models.Model, folder: Path, work: Path) -> tuple[Tensor, Sequence[str]]:
    """Return the trunk's output for all photographs of a folder, and their paths."""
    paths, p = images_below(folder), made.parameters
    store, out = work / "images.npz", work / "test_view.npy"
    work.mkdir(exist_ok=True)
    pack("folder", folder, paths, p["resize"], store, 1)
    if not out.exists():
        backbone = Backbone(made.backbone.trunk, made.network.tail, made.features.shape[1])
        extract_test_view(backbone, open_cropper(p, store, torch.device("cpu")), p["precision"], out)
    return load_kept(out, (len(paths),)), paths


@torch.no_grad()
def scores_of(made: models.Model, kept: Tensor, train: Tensor, own: bool) -> dict[str, Scores]:
    """Return the scores of photographs by name; own: the training photographs, so none is its own neighbour."""

    def nearest(rows: Tensor, others: Tensor, k: int = 1) -> Scores:
        cosines = rows @ others.T
        if own:
            cosines.fill_diagonal_(-1)
        return cosines.topk(k, dim=1).values[:, -1].double().numpy()

    network = made.network
    (tail, cosines), tail_of_train = network.predict(kept), network.tail(train)
    best = (cosines / made.parameters["student_temperature"]).softmax(dim=1).topk(2, dim=1).values
    trained, frozen = (normalize(rows, dim=1) for rows in (tail, kept))
    trained_of_train, frozen_of_train = (normalize(rows, dim=1) for rows in (tail_of_train, train))
    return {
        "cosine to the class": cosines.amax(dim=1).double().numpy(),
        "largest confidence": best[:, 0].double().numpy(),
        "margin": (best[:, 0] - best[:, 1]).double().numpy(),
        "nearest photograph, features before training": nearest(frozen, frozen_of_train),
        "nearest photograph, features after training": nearest(trained, trained_of_train),
        "fifth nearest, features before training": nearest(frozen, frozen_of_train, 5),
        "fifth nearest, features after training": nearest(trained, trained_of_train, 5),
    }


def auroc(inside: Scores, outside: Scores) -> float:
    """Return the chance that a photograph inside has a higher score than one outside; ties count half."""
    ranks = rankdata(np.concatenate([inside, outside]))[: len(inside)]
    return float((ranks.sum() - len(inside) * (len(inside) + 1) / 2) / (len(inside) * len(outside)))


def shares(marked: Scores, thresholds: Sequence[float]) -> list[str]:
    return [f"{100 * float((marked < threshold).mean()):.1f}" for threshold in thresholds]


def table_of(head: Sequence[str], line: Callable[[str], Sequence[str]], names: Sequence[str]) -> str:
    lines = [head, ["---", *["--:"] * (len(head) - 1)], *([name, *line(name)] for name in names)]
    return "".join("| " + " | ".join(cells) + " |\n" for cells in lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("photos", type=Path, help="a folder with one folder of photographs for each class")
    parser.add_argument("out", type=Path, help="a new folder, or the folder of the call to resume")
    parser.add_argument("--classes", type=int, help="use only the first classes; default: all")
    parser.add_argument("--size", type=int, help="side of the views in pixels; default: that of the preset")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    out = arguments.out
    table, classes = groups_of(arguments.photos, arguments.classes)
    for group, of in table.groupby("group"):
        linked(arguments.photos, list(of.path), out / str(group))
    labels = table.loc[table.labelled, ["path", "class"]].sort_values("path")
    write_text(out / "labels.csv", labels.to_csv(index=False))
    api.discover(out / "train", out / "labels.csv", out / "found", classes=classes, size=arguments.size)
    made = models.load(out / "found" / "model")
    kept = {g: features_of(made, out / g, out / f"{g}_features")[0] for g in ("train", "held_out", "unseen")}
    found = {group: scores_of(made, rows, kept["train"], group == "train") for group, rows in kept.items()}
    numbers = ", ".join(f"{len(rows):,} {group.replace('_', ' ')}" for group, rows in kept.items())
    print(f"\n{classes} classes; photographs: {numbers}; labels: {len(labels):,}\n")
    held_out, unseen, train = (found[group] for group in ("held_out", "unseen", "train"))
    rates, names = [f"{rate:.0%}" for rate in RATES], list(held_out)
    print("Photographs of unseen classes that are marked (%), by the share of false alarms:\n")
    print(
        table_of(
            ["score", "AUROC", *rates],
            lambda n: [
                f"{auroc(held_out[n], unseen[n]):.3f}",
                *shares(unseen[n], [float(np.quantile(held_out[n], rate)) for rate in RATES]),
            ],
            names,
        )
    )
    print("False alarms among the held-out photographs (%) with thresholds from the training photographs:\n")
    print(
        table_of(
            ["score", *rates],
            lambda n: shares(held_out[n], [float(np.quantile(train[n], rate)) for rate in RATES]),
            names,
        )
    )


if __name__ == "__main__":
    with reported():
        main()
