"""Rates and memory of runs: from finished runs, else from `make bench`, else assumed."""

from __future__ import annotations

import math
import os
import sys
from collections import Counter
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ctxgcd.catalogue.entries import METHODS
from ctxgcd.config import Params
from ctxgcd.errors import UserError
from ctxgcd.pipeline.paths import BENCH, RUNS
from ctxgcd.plan.work import NOTHING, Work, classes_of, images_around, images_in, work_of
from ctxgcd.utils.files import read_object, read_rows, undamaged

ASSUMED = 1000.0  # assumed views per second of one device if nothing was measured
ASSUMED_ADAPTER = 5000.0  # the same for cached features that pass only an adapter, on two cores
LEAST = 1e-3  # smallest accepted rate
VARIABLE = "CTXGCD_VIEWS_PER_SECOND"
BENCHED = {"model": "vit_base_patch16_224.dino", "crop": 224, "tail_blocks": 1}  # the steps that `make bench` measures
BENCHED_STEP, BENCHED_MEMORY = 248, "memory of a step of 248 images, 2 of 12 blocks"
READ = ("training step, ", BENCHED_MEMORY)  # prefixes of the benchmarks used for plans
COLUMNS = ["work", "ours", "device"]


@dataclass(frozen=True)
class Rate:
    """Views (for k-means: distances) per second in the two phases; None if unknown.

    device: the device of the measurement; empty for a rate that is assumed, given or unknown.
    """

    baseline: float | None
    contextual: float | None
    source: str
    device: str = ""

    def hours(self, work: Work) -> float:
        """Return the device hours of a run; 0 if the rate is unknown."""
        if self.baseline is None or self.contextual is None:
            return 0.0
        rest = work.baseline + work.test + work.distances
        return (rest / self.baseline + work.contextual / self.contextual) / 3600

    def of(self, work: Work) -> float | None:
        """Return the views per second over a whole run."""
        hours = self.hours(work)
        return work.views / hours / 3600 if hours and work.views else None


@dataclass(frozen=True)
class Memory:
    """Peak memory in MiB of the process and the device; None if unknown."""

    host: float | None
    device: float | None
    source: str


@dataclass(frozen=True)
class Finished:
    """The measurement of a finished run: its work, device seconds and peak memory in MiB.

    known: the last line of its history.csv, if the steps of an epoch of its method depend on the images.
    """

    benchmark: str
    p: Mapping[str, Any]
    work: Work
    seconds: float
    device: str
    host: float
    of_device: float | None
    known: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Measured:
    """All measurements: finished runs, rows of results/bench/steps.csv by name, and the user's rate."""

    runs: list[Finished]
    bench: dict[str, dict[str, str]]
    given: float | None

    def rate(self, benchmark: str, p: Mapping[str, Any]) -> Rate:
        """Return the rate of a run: the user's rate, else that of similar finished runs, of `make bench` or assumed."""
        if self.given and METHODS[p["method"]].trains:
            return Rate(self.given, self.given, VARIABLE)
        if found := self._similar(benchmark, p):
            done = sum(run.work.views + run.work.distances for run in found)
            rate = done / sum(run.seconds for run in found)
            return Rate(rate, rate, _named(found), found[0].device)
        if not METHODS[p["method"]].trains:
            return Rate(None, None, "k-means: not measured here, counted as 0 hours")
        way = "view bank" if p["view_bank"] else "exact"
        for precision in (p["precision"], "float32"):  # bf16 is only measured if the device supports it
            contextual = self.bench.get(f"training step, contextual phase, {way}, {precision}")
            if contextual and _benched(p):  # with a view bank, both phases cost the same per view and one is measured
                baseline = self.bench.get(f"training step, baseline phase, {way}, {precision}", contextual)
                source = f"make bench, {way}, {precision}; {contextual['device']}"
                return Rate(float(baseline["ours"]), float(contextual["ours"]), source, contextual["device"])
        if p["view_bank"] and _adapted(p):
            source = "assumed, not measured; cached features, which only pass through an adapter"
            return Rate(ASSUMED_ADAPTER, ASSUMED_ADAPTER, source)
        whole = "; cached views, counted as full forward passes" if p["view_bank"] else ""
        return Rate(ASSUMED, ASSUMED, f"assumed, not measured{whole}")

    def in_float32(self, benchmark: str, p: Mapping[str, Any]) -> Rate | None:
        """Return the rate of a run in float32, or None unless both precisions were measured on one device."""
        own, other = self.rate(benchmark, p), self.rate(benchmark, {**p, "precision": "float32"})
        if p["precision"] == "float32":
            return own
        both = own.device and own.device == other.device and own.source != other.source
        return other if both else None

    def known(self, benchmark: str, p: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return what `work_of` reads of a finished run that differs from this one at most by its seed, or nothing."""
        same = (run for run in self.runs if run.benchmark == benchmark and {**run.p, "seed": p["seed"]} == p)
        return next((run.known for run in same if run.known), NOTHING)

    def memory(self, benchmark: str, p: Mapping[str, Any]) -> Memory:
        """Return the peak memory of a run, from similar finished runs or from the step that `make bench` measures."""
        if found := self._similar(benchmark, p):
            of_device = [run.of_device for run in found if run.of_device is not None]
            return Memory(max(run.host for run in found), max(of_device, default=None), _named(found))
        row = self.bench.get(BENCHED_MEMORY)
        entry = METHODS[p["method"]]
        exact = entry.trains and not entry.whole and not p["view_bank"] and _benched(p)
        if row and exact and p["batch_size"] + images_around(p, p["epochs"] - 1) <= BENCHED_STEP:
            peak, on_host = float(row["ours"]), row["device"].startswith("cpu:")
            source = f"make bench, a float32 step of {BENCHED_STEP} images; {row['device']}"
            return Memory(peak if on_host else None, None if on_host else peak, source)
        return Memory(None, None, "")

    def _similar(self, benchmark: str, p: Mapping[str, Any]) -> list[Finished]:
        """Return finished runs with the same backbone and views, on one device: of the same benchmark and method, else
        of the same method, else (except for k-means) of any trained method."""
        kind = [run for run in self.runs if _kind(run.p) == _kind(p)]
        same_method = [run for run in kind if run.p["method"] == p["method"]]
        same_benchmark = [run for run in same_method if run.benchmark == benchmark]
        found = same_benchmark or same_method or kind
        if not found:
            return []
        device = Counter(run.device for run in found).most_common(1)[0][0]
        return [run for run in found if run.device == device]


def measured(params: Params) -> Measured:
    """Read measurements from results/ and the environment. Raises UserError for a damaged file or an invalid rate."""
    return Measured(_finished(params), _bench(BENCH / "steps.csv"), _given())


def _given() -> float | None:
    text = os.environ.get(VARIABLE)
    if text is None:
        return None
    if (rate := _number(text)) is None:
        raise UserError(f"{VARIABLE} is '{text}'; give a positive number of views per second, at least {LEAST:g}")
    return rate


def _number(text: str) -> float | None:
    """Parse a rate; return None if it is invalid."""
    with suppress(ValueError):
        if "_" not in text and LEAST <= (number := float(text)) < math.inf:
            return number
    return None


def _bench(file: Path) -> dict[str, dict[str, str]]:
    """Return the rows of the benchmark results by name. Damaged rows are skipped with a warning."""
    if not file.is_file():
        return {}
    try:
        rows = read_rows(file, usecols=COLUMNS, dtype="str", keep_default_na=False)[COLUMNS]
    except UserError as error:
        print(f"warning: the bench is ignored: {error}", file=sys.stderr)
        return {}
    found = {}
    for work, ours, device in rows[rows["work"].str.startswith(READ)].to_numpy():
        if _number(ours) is None:
            print(
                f"warning: {file}: '{work}' is skipped, because ours is '{ours}' and not a positive number",
                file=sys.stderr,
            )
        else:
            found[work] = {"ours": ours, "device": device}
    return found


def _finished(params: Params) -> list[Finished]:
    found = []
    for file in sorted(RUNS.glob("*/*/seed*/metrics.json")):
        metrics = read_object(file)
        with undamaged(file):
            benchmark, p = metrics["benchmark"], metrics["parameters"]
            if benchmark not in params.benchmarks or ("together" in metrics and not p["view_bank"]):
                continue  # rows that share the trunk have computed fewer views than they would alone
            entry = params.benchmarks[benchmark]
            with suppress(UserError):  # the run is skipped if a user's own images are missing
                # A resumed run records the whole time only for its epochs.
                seconds = max(metrics["seconds"], metrics.get("training_seconds", 0.0)) * metrics.get("processes", 1)
                known = _last_line(file.with_name("history.csv")) if METHODS[p["method"]].least else NOTHING
                work = work_of(images_in(entry), classes_of(entry, p), p, known)
                device, host = metrics["environment"]["device"], metrics["peak_memory_mb"]
                of_device = metrics.get("peak_device_memory_mb")
                found.append(Finished(benchmark, p, work, max(seconds, 1e-9), device, host, of_device, known))
    return found


def _last_line(history: Path) -> Mapping[str, Any]:
    """Return the last line of a history.csv by its columns; nothing if the file is missing."""
    return {str(name): value for name, value in read_rows(history).iloc[-1].items()} if history.is_file() else NOTHING


def _kind(p: Mapping[str, Any]) -> tuple[Any, ...]:
    """Return what determines the time of a view: backbone, size, precision, trained part, whether the trunk runs."""
    seen = (p["model"], p.get("blocks", 0), p["crop"], p["precision"])
    if not METHODS[p["method"]].trains:
        return (*seen, None, False)
    return (*seen, "adapter" if _adapted(p) else p["tail_blocks"], bool(p["view_bank"]))


def _adapted(p: Mapping[str, Any]) -> bool:
    return p.get("tail") == "adapter"


def _benched(p: Mapping[str, Any]) -> bool:
    return not _adapted(p) and all(p[key] == value for key, value in BENCHED.items())


def _named(found: list[Finished]) -> str:
    methods = ", ".join(dict.fromkeys(run.p["method"] for run in found))
    benchmarks = ", ".join(dict.fromkeys(run.benchmark for run in found))
    return f"measured: {len(found)} run{'s' * (len(found) > 1)} of {methods} on {benchmarks}; {found[0].device}"
