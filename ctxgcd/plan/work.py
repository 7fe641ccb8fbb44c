"""The amount of computation of a run: numbers of views and distances."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from ctxgcd.benchmarks.places import place_of
from ctxgcd.benchmarks.readers.registry import reader_of
from ctxgcd.catalogue.entries import METHODS
from ctxgcd.config import Benchmark, Images, completed
from ctxgcd.pipeline.classes import k_of
from ctxgcd.pipeline.identity import ESTIMATED
from ctxgcd.pipeline.paths import Features
from ctxgcd.plan.outputs import keeps_tests

NOTHING: Mapping[str, Any] = {}


@dataclass(frozen=True)
class Work:
    """Number of views through the backbone (with a view bank: its tail); for k-means, of distances in all restarts.

    baseline and contextual: train views of the epochs without and with context terms; test: views of the evaluation,
    also before epochs if the trunk's outputs for the test views are too large to be kept.
    """

    baseline: int = 0
    contextual: int = 0
    test: int = 0
    distances: int = 0

    @property
    def views(self) -> int:
        return self.baseline + self.contextual + self.test


def images_in(entry: Benchmark) -> Images:
    """Return the number of images in params.yaml or, if it does not state it, in the user's folder."""
    if entry.images != "any":
        return entry.images
    section = entry.model_dump()
    counts = reader_of(section).manifest(place_of(section))["part"].value_counts()
    return Images(train=int(counts["train"]), test=int(counts.get("test", 0)))


def classes_of(entry: Benchmark, p: dict[str, Any]) -> int:
    """Return the K of a run; if K is to be estimated, the true K is used."""
    return k_of(entry) if p["K"] == ESTIMATED else int(p["K"])


def work_of(images: Images, classes: int, p: dict[str, Any], known: Mapping[str, Any] = NOTHING) -> Work:
    """Return the work of a run with parameters `p`: two views per image and step, and one test view per image.

    If the outputs for the test views are not kept, a method that looks at them before an epoch adds one per image.

    The train views that a method computes before an epoch are counted with the context terms. A stage, a teacher and
    gradients through the whole backbone are counted as the views that SimGCD computes in the same time.

    known: the last line of the history.csv of a finished run, if the steps of an epoch depend on the images.
    """
    entry = METHODS[p["method"]]
    if not entry.trains:
        return Work(distances=images.train * classes * p["restarts"])
    steps, batch = entry.steps(completed(p), images.train, known), p["batch_size"]
    around = [images_around(p, epoch) for epoch in range(p["epochs"])]
    more = entry.more_epochs(completed(p))
    looked_at = sum(entry.looked_at(completed(p), epoch) for epoch in range(p["epochs"]))
    swept = 0 if keeps_tests(images, p) else sum(entry.swept(completed(p), epoch) for epoch in range(p["epochs"]))
    return Work(
        baseline=round(2 * steps * batch * (around.count(0) + more)),
        contextual=2 * steps * sum(batch + more for more in around if more) + looked_at * images.train,
        test=images.train + images.test + swept * images.train,
    )


def images_around(p: Mapping[str, Any], epoch: int) -> int:
    """Return the number of images that a step of this epoch processes in addition to its batch."""
    return METHODS[p["method"]].around(completed(p), epoch)


def by_model(runs: Iterable[dict[str, Any]]) -> dict[str, list[dict[str, Any]]]:
    """Return runs by the model of their backbone; runs of different models share no cached features."""
    found: dict[str, list[dict[str, Any]]] = {}
    for p in runs:
        found.setdefault(p["model"], []).append(p)
    return found


def cached_views(images: Images, runs: list[dict[str, Any]]) -> dict[str, int]:
    """Return the number of views in each cached file that the runs of one benchmark and model read."""
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


def trunk_views(images: Images, runs: list[dict[str, Any]]) -> int:
    """Return the number of views that the trunk computes for the cached features of these runs.

    Features of the whole backbone are made from a tail's cached input, where there is one.
    """
    views = cached_views(images, runs)
    of = {name: Features.of(name) for name in views}
    tails = {one.precision for one in of.values() if one.tail and not one.views}
    made = [name for name, one in of.items() if not one.tail and not one.views and one.precision in tails]
    return sum(views.values()) - sum(views[name] for name in made)
