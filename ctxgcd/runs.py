"""What a run is: benchmark, row, seed -> resolved parameters, identity, folder."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from ctxgcd.benchmarks.class_lists import load as load_class_list
from ctxgcd.benchmarks.fingerprint import data_fingerprint
from ctxgcd.benchmarks.weights import weights_fingerprint
from ctxgcd.catalogue import METHODS
from ctxgcd.config import SEEDS, Backbone, Benchmark, Official, Own, Params, Protocol, completed, validated
from ctxgcd.errors import UserError
from ctxgcd.pipeline.identity import ESTIMATED
from ctxgcd.pipeline.possible import check_possible
from ctxgcd.row_names import parse_row, refuse
from ctxgcd.sections import without_defaults

# What every run's identity holds, beside what its method reads and its seed.
SPLIT_FIELDS = ("benchmark", "class_list", "classes", "trial", "data", "split_seed", "labelled_share", "K", "K_source")
FEATURE_FIELDS = ("model", "weights", "mean", "std", "resize", "crop")


@dataclass(frozen=True, order=True)
class Run:
    """One training: the unit of work, of resuming and of averaging."""

    benchmark: str
    row: str
    seed: int

    @property
    def folder(self) -> str:
        return f"results/runs/{self.benchmark}/{self.row}/seed{self.seed}"

    def file(self, name: str) -> str:
        return f"{self.folder}/{name}"


def read_seed(text: str) -> int:
    """The seed in the name of a run's folder. Raises UserError for one that no run has, or another spelling of one."""
    if not re.fullmatch("0|[1-9][0-9]{0,9}", text) or int(text) >= SEEDS:
        raise UserError(
            f"seed{text} is no run's folder; write seed and a whole number from 0 to {SEEDS - 1}, as in seed1"
        )
    return int(text)


def resolve(params: Params, benchmark: str, row: str, seed: int) -> dict[str, Any]:
    """Every value that the run reads, flat, in a fixed order.

    Order of precedence: the protocol and the benchmark's `overrides` of it; the sections of the row's method, named
    settings, the benchmark's `methods` and `settings`; the row's own `+key=value`. A value that equals its field's
    default is left out. Raises UserError for an unknown or impossible row or value.
    """
    if benchmark not in params.benchmarks:
        refuse(benchmark, params.benchmarks, "params.yaml", "benchmark")
    entry, name = params.benchmarks[benchmark], parse_row(row)
    method, overrides, where = name.entry, dict(name.overrides), f"benchmark {benchmark}, row {row}"
    asked_k = overrides.pop("K", entry.K)
    k, k_source = assumed_k(entry, asked_k, where if "K" in name.overrides else f"benchmarks.{benchmark}.K")
    of_variant = method.variants.get(name.variant or "", "default")
    settings_name = str(overrides.pop("settings", of_variant))
    if settings_name not in params.settings:
        refuse(settings_name, params.settings, f"row '{row}'", "settings")
    own = protocol_of(params, benchmark)
    for key in overrides:
        if key not in method.reads:
            if owners := [of for of, entry in METHODS.items() if key in entry.reads]:
                raise UserError(
                    f"row '{row}': {name.method} does not read {key}, which is a value of {', '.join(owners)}; "
                    f"valid: {', '.join([*method.reads, 'K', 'settings'])}"
                )
            refuse(key, [*method.reads, "K", "settings"], f"row '{row}'", "parameter")
    overrides |= {method.weights[term]: 0.0 for term in name.zeroed}
    values = own.model_dump() | {key: value for key, value in overrides.items() if key in Protocol.model_fields}
    protocol = validated(Protocol, values, where)
    values = without_defaults(Protocol, protocol.model_dump())
    for of, section in method.sections.items():
        found = values_of(params, of, settings_name, benchmark)
        found |= {key: value for key, value in overrides.items() if key in section.model_fields}
        values |= without_defaults(section, validated(section, found, where).model_dump())

    values |= {
        **params.backbones[protocol.backbone].model_dump(),
        "weights": weights_of(params.backbones[protocol.backbone]),
        "benchmark": benchmark,
        **images_of(benchmark, entry),
        "split_seed": params.split.seed,
        "labelled_share": params.split.labelled_share,
        "K": k,
        "K_source": k_source,
        "variant": name.variant,
        "settings": settings_name,
        "context_terms": name.terms,
        "modifiers": name.modifiers,
    }
    # Values that this very run never reads take no part in its identity either.
    unread = {weight for term, weight in method.weights.items() if term not in name.terms}
    unread |= set() if values["view_bank"] else {"view_bank_seed"}
    unread |= {*SPLIT_FIELDS, *method.reads} - values.keys()  # of own or official images alone; the usual values
    of_name = ["variant", "settings"] * bool(method.variants) + ["context_terms"] * bool(method.ablated)
    of_name += ["modifiers"] * bool(name.modifiers)
    fields = [f for f in (*SPLIT_FIELDS, *FEATURE_FIELDS, *method.reads, *of_name) if f not in unread]
    resolved: dict[str, Any] = {"row": row, "method": name.method, "seed": seed} | {f: values[f] for f in fields}
    if fault := method.fault(completed(resolved)):
        raise UserError(f"{where}: {fault}")
    if entry.images != "any":
        check_possible(resolved, entry.images.train)
    return resolved


def values_of(params: Params, method: str, settings: str, benchmark: str | None) -> dict[str, Any]:
    """The section of a method with the values of named settings and, where one is given, of a benchmark.

    Raises UserError where params.yaml has no such section.
    """
    section = METHODS[method].values
    if method not in params.methods:
        fields = ", ".join(section.model_fields)
        raise UserError(f"params.yaml: methods.{method} is missing; add it, with {fields}")
    values = section.model_validate(params.methods[method]).model_dump() | params.settings[settings].get(method, {})
    if benchmark is None:
        return values
    entry = params.benchmarks[benchmark]
    return {**values, **entry.methods.get(method, {}), **entry.settings.get(settings, {}).get(method, {})}


def images_of(benchmark: str, entry: Benchmark) -> dict[str, Any]:
    """What says which images a benchmark has and how their classes are known, without the place where they lie."""
    if isinstance(entry, Own):
        return {"data": _own_data(benchmark, entry.model_dump_json()), "classes": entry.classes}
    return entry.model_dump(include={"class_list", "classes", "trial"})


def protocol_of(params: Params, benchmark: str) -> Protocol:
    """A benchmark's protocol with its `overrides`: what its images, features and runs share."""
    entry = params.benchmarks[benchmark]
    values = params.protocols[entry.protocol].model_dump() | entry.overrides
    return validated(Protocol, values, f"benchmark {benchmark}, overrides")


def backbone_of(params: Params, benchmark: str) -> Backbone:
    """The backbone that a benchmark's protocol names."""
    return params.backbones[protocol_of(params, benchmark).backbone]


def weights_of(backbone: Backbone) -> str:
    """What names a backbone's weights in a run's identity."""
    return weights_fingerprint(backbone.weights, backbone.sha256)


@lru_cache
def _own_data(benchmark: str, section: str) -> str:
    """The fingerprint of a user's own images, once a process: every run of theirs asks for it."""
    return data_fingerprint(benchmark, json.loads(section))


def assumed_k(entry: Benchmark, asked: Any, where: str) -> tuple[int | str, str]:
    """The K that a run assumes and its source: true, given or estimated; an estimated K is a file's, not known here."""
    if asked is True:
        return k_of(entry), "true"
    if asked == "estimated":
        return ESTIMATED, "estimated"
    old = 1 if isinstance(entry, Own) else len(old_classes(entry))
    if not isinstance(asked, int) or asked < max(2, old):
        raise UserError(f"{where}: K is {asked}; give true, estimated or a number of at least {max(2, old)} classes")
    return asked, "given"


def estimate_of(params: Params, benchmark: str) -> dict[str, int]:
    """How a benchmark's K is estimated: seed, restarts, most, threads."""
    return params.estimate.model_dump() | {"threads": protocol_of(params, benchmark).threads}


def old_classes(entry: Official) -> tuple[int, ...]:
    """The old classes of an official benchmark, known without any data."""
    old = load_class_list(entry.class_list, entry.classes).old
    return old[: (len(old) + 1) // 2] if entry.trial else old


def class_list_hash(entry: Benchmark) -> str:
    """The hash of an official benchmark's old and new classes; empty for own images, whose classes the folder tells."""
    return "" if isinstance(entry, Own) else load_class_list(entry.class_list, entry.classes).sha256


def k_of(entry: Benchmark) -> int:
    """Number of classes, old and new together, known without any data."""
    if isinstance(entry, Own):
        return entry.classes
    listed = load_class_list(entry.class_list, entry.classes)
    return len(listed.old) if entry.trial else listed.k  # a trial divides the old classes alone


def limits_of(params: Params, asked: Iterable[Run]) -> str:
    """What `check_asked` reads of the runs whose number of images only their split tells, as JSON."""
    own = {(run.benchmark, run.row) for run in asked if params.benchmarks[run.benchmark].images == "any"}
    return json.dumps([resolve(params, benchmark, row, 0) for benchmark, row in sorted(own)])
