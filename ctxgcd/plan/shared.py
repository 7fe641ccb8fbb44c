"""The cost of runs that share the forward passes of the trunk (`snakemake together`)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from ctxgcd.catalogue.entries import METHODS
from ctxgcd.config import Images, Params, completed
from ctxgcd.pipeline.resolve import resolve
from ctxgcd.pipeline.trunk import grouped, trunk_of
from ctxgcd.plan.lines import TO_TRAIN, Line
from ctxgcd.plan.outputs import keeps_tests
from ctxgcd.plan.work import Work, images_around, images_in


@dataclass(frozen=True)
class Sum:
    """Views and device hours."""

    views: int = 0
    hours: float = 0.0

    def __add__(self, other: Sum) -> Sum:
        return Sum(self.views + other.views, self.hours + other.hours)


@dataclass(frozen=True)
class Together:
    """The runs of a benchmark that are to be trained: those that share a trunk, and the cost of all.

    least, most: with shared trunks; neighbours of the rows may all be the same, or all different.
    """

    benchmark: str
    sharing: int
    alone: Sum
    least: Sum
    most: Sum


def trained_together(params: Params, lines: Sequence[Line]) -> list[Together]:
    """Return the cost of the benchmarks of which runs share a trunk."""
    found = []
    for benchmark in dict.fromkeys(line.benchmark for line in lines):
        own = [line for line in lines if line.benchmark == benchmark and line.costs]
        to_train = [line for line in own if line.state == TO_TRAIN]
        values = [resolve(params, benchmark, line.row, line.seed or 0) for line in to_train]
        alone = _sum(Sum(line.views, line.hours) for line in own)
        least, most, sharing = alone, alone, 0
        for places in grouped(values, trunk_of):
            if len(places) == 1:
                continue
            of = [to_train[place] for place in places]
            without = _sum(Sum(-line.views, -line.hours) for line in of)
            # The rate of a row with context terms, if there is one.
            rate = max(of, key=lambda line: line.work.contextual).rate
            images = images_in(params.benchmarks[benchmark])
            low, high = (
                Sum(work.views, rate.hours(work)) for work in bounds(images, [values[place] for place in places])
            )
            least, most, sharing = least + without + low, most + without + high, sharing + len(places)
        if sharing:
            found.append(Together(benchmark, sharing, alone, least, most))
    return found


def total(found: Sequence[Together]) -> Together:
    """Return the sum over the benchmarks."""
    alone, least, most = (_sum(getattr(one, name) for one in found) for name in ("alone", "least", "most"))
    return Together("all", sum(one.sharing for one in found), alone, least, most)


def bounds(images: Images, runs: Sequence[dict[str, Any]]) -> tuple[Work, Work]:
    """Return the least and the most work of the trunk for runs that share it.

    The sampled views of a step are computed once. Of the other images of its rows, at least as many are computed as the
    row with the most has, and at most those of all rows. Test views are computed once, or, if they are not kept, once
    before an epoch and once for the predictions of each row.
    """
    everything, baseline, least, most, looked_at, swept = images.train + images.test, 0, 0, 0, 0, 0
    for epoch in range(max(p["epochs"] for p in runs)):
        due = [completed(p) for p in runs if epoch < p["epochs"]]
        entries = [METHODS[p["method"]] for p in due]
        steps = [entry.steps(p, images.train, {}) for entry, p in zip(entries, due, strict=True)]
        around = [2 * n * images_around(p, epoch) for n, p in zip(steps, due, strict=True)]
        sampled = 2 * max(steps) * due[0]["batch_size"]
        baseline += 0 if any(around) else sampled
        least += sampled + max(around) if any(around) else 0
        most += sampled + sum(around) if any(around) else 0
        looked_at += images.train * sum(entry.looked_at(p, epoch) for entry, p in zip(entries, due, strict=True))
        swept += images.train * any(entry.swept(p, epoch) for entry, p in zip(entries, due, strict=True))
    test = everything if keeps_tests(images, runs[0]) else everything * len(runs) + swept
    low, high = (Work(baseline=baseline, contextual=views + looked_at, test=test) for views in (least, most))
    return low, high


def _sum(sums: Iterable[Sum]) -> Sum:
    return sum(sums, Sum())
