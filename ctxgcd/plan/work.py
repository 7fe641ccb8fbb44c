"""The amount of computation of a run: numbers of views and distances."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from ctxgcd.benchmarks.places import place_of
from ctxgcd.benchmarks.readers.registry import reader_of
from ctxgcd.catalogue.entries import METHODS
from ctxgcd.config import Benchmark, Images, completed
from ctxgcd.pipeline.classes import k_of
from ctxgcd.pipeline.identity import ESTIMATED
from ctxgcd.pipeline.paths import Features


@dataclass(frozen=True)
class Work:
    """Views that pass the backbone (with a view bank: its tail), and for k-means the distances of all restarts.

    baseline and contextual: train views of the epochs without and with context terms; test: views of the evaluation.
    """

    baseline: int = 0
    contextual: int = 0
    test: int = 0
    distances: int = 0

    @property
    def views(self) -> int:
        return self.baseline + self.contextual + self.test


def images_in(entry: Benchmark) -> Images:
    """The counts that params.yaml states; where it leaves them to a user's own folder, what lies there now."""
    if entry.images != "any":
        return entry.images
    section = entry.model_dump()
    counts = reader_of(section).manifest(place_of(section))["part"].value_counts()
    return Images(train=int(counts["train"]), test=int(counts.get("test", 0)))


def classes_of(entry: Benchmark, p: dict[str, Any]) -> int:
    """K of a run; while it is to be estimated, the true one stands for it."""
    return k_of(entry) if p["K"] == ESTIMATED else int(p["K"])


def work_of(images: Images, classes: int, p: dict[str, Any]) -> Work:
    """The work of a run with the parameters `p`: two views an image a step, and each image's test view at the end."""
    if not METHODS[p["method"]].trains:
        return Work(distances=images.train * classes * p["restarts"])
    steps, batch = images.train // p["batch_size"], p["batch_size"]
    around = [images_around(p, epoch) for epoch in range(p["epochs"])]
    return Work(
        baseline=2 * steps * batch * around.count(0),
        contextual=2 * steps * sum(batch + more for more in around if more),
        test=images.train + images.test,
    )


def images_around(p: Mapping[str, Any], epoch: int) -> int:
    """Images that a step of this epoch sees beside its batch."""
    return METHODS[p["method"]].around(completed(p), epoch)


def kept_views(images: Images, runs: list[dict[str, Any]]) -> dict[str, int]:
    """Views of each kept file that the runs of one benchmark read, made once for all of them."""
    every = images.train + images.test
    views: dict[str, int] = {}
    for p in runs:
        if not METHODS[p["method"]].trains or p["K"] == ESTIMATED:
            views[Features(0, p["precision"]).name] = every
        if bank := p.get("view_bank"):
            of_tail = Features(p.get("tail_blocks", 0), p["precision"])
            views[of_tail.name] = every
            views[replace(of_tail, views=bank, seed=p["view_bank_seed"]).name] = bank * images.train
    return views
