"""The lines of a plan: runs with their costs, and features shared by the runs of a benchmark."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ctxgcd.catalogue.entries import METHODS
from ctxgcd.config import Params
from ctxgcd.pipeline import code
from ctxgcd.pipeline.identity import ESTIMATED, read_estimate
from ctxgcd.pipeline.paths import RUN_CACHE, estimate_file, split_file
from ctxgcd.pipeline.resolve import protocol_of, resolve
from ctxgcd.pipeline.rows import parse_row
from ctxgcd.pipeline.run_cache import kept
from ctxgcd.pipeline.runs import Run
from ctxgcd.pipeline.tables import BASELINE, existing_metrics
from ctxgcd.plan.rates import Measured, Memory, Rate
from ctxgcd.plan.work import Work, by_model, classes_of, images_in, trunk_views, work_of

DONE, FOUND, TO_TRAIN, TO_MAKE = "done", "in work/runs", "to train", "to make"
KEPT = "(cached features)"  # in place of a row: features shared by the runs of a benchmark


@dataclass(frozen=True)
class Line:
    """A run, or features shared by runs (seed None), with its cost. Finished and cached runs cost nothing.

    float32: the rate of the same work in float32; None if unknown.
    least: why the work is a lower bound, or an empty string.
    """

    benchmark: str
    row: str
    seed: int | None
    state: str
    work: Work
    rate: Rate
    memory: Memory
    precision: str
    float32: Rate | None
    least: str = ""

    @property
    def costs(self) -> bool:
        return self.state in (TO_TRAIN, TO_MAKE)

    @property
    def hours(self) -> float:
        return self.rate.hours(self.work) if self.costs else 0.0

    @property
    def views(self) -> int:
        return self.work.views if self.costs else 0


def plan(params: Params, runs: list[Run], past: Measured) -> list[Line]:
    """Return one line per run, by benchmark, and one for the benchmark's shared features if a run is to be trained."""
    planned = [{"benchmark": run.benchmark, "row": run.row, "seeds": [run.seed]} for run in runs]
    done = {Run(one["benchmark"], one["row"], one["seed"]) for one in existing_metrics(params, planned)}
    lines = []
    for benchmark in dict.fromkeys(run.benchmark for run in runs):
        entry = params.benchmarks[benchmark]
        images, to_train = images_in(entry), []
        for run in (run for run in runs if run.benchmark == benchmark):
            p = resolve(params, benchmark, run.row, run.seed)
            state = DONE if run in done else FOUND if _is_found(run, p, entry.reader) else TO_TRAIN
            known = past.known(benchmark, p)
            least = METHODS[p["method"]].least if state == TO_TRAIN and not known else ""
            work = work_of(images, classes_of(entry, p), p, known)
            rate, memory = past.rate(benchmark, p), past.memory(benchmark, p)
            precision, float32 = p["precision"], past.in_float32(benchmark, p)
            lines.append(Line(benchmark, run.row, run.seed, state, work, rate, memory, precision, float32, least))
            to_train += [p] * (state == TO_TRAIN)
        for model, of_model in by_model(to_train).items():
            if shared := trunk_views(images, of_model):
                # As for a training with fresh views, which pass through the whole trunk.
                whole = protocol_of(params, benchmark).model_dump() | {"model": model}
                whole |= {"method": parse_row(BASELINE).method, "view_bank": 0}
                rate, memory = past.rate(benchmark, whole), Memory(None, None, "")
                precision, float32 = whole["precision"], past.in_float32(benchmark, whole)
                lines.append(Line(benchmark, KEPT, None, TO_MAKE, Work(test=shared), rate, memory, precision, float32))
    return lines


def _is_found(run: Run, parameters: dict[str, Any], reader: str) -> bool:
    """Return whether a finished run with these parameters, split and code is cached in work/runs."""
    split, estimate = Path(split_file(run.benchmark, "sha256")), Path(estimate_file(run.benchmark))
    if parameters["K"] == ESTIMATED and estimate.is_file():
        parameters = parameters | {"K": read_estimate(estimate)}
    if not split.is_file() or parameters["K"] == ESTIMATED:
        return False
    made_by = code.of_row(reader, parse_row(run.row)).hash
    return kept(RUN_CACHE, parameters, split.read_text(encoding="utf-8").strip(), made_by) is not None
