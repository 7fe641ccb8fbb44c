"""Resolves params.yaml to the values of one run: the values that it reads, in their order of precedence."""

from __future__ import annotations

import json
from functools import lru_cache
from typing import Any

from ctxgcd.catalogue.entries import METHODS, MODIFIERS, Entry, Modifier
from ctxgcd.catalogue.sections import without_defaults
from ctxgcd.config import Backbone, Benchmark, Own, Params, Protocol, completed, validated
from ctxgcd.errors import UserError
from ctxgcd.models.pretrained import has_learned_tokens, size_fault, weights_fingerprint
from ctxgcd.models.shapes import SHAPES
from ctxgcd.names import counted
from ctxgcd.pipeline.classes import assumed_k
from ctxgcd.pipeline.data_fingerprint import data_fingerprint
from ctxgcd.pipeline.identity import ESTIMATED
from ctxgcd.pipeline.possible import check_possible
from ctxgcd.pipeline.rows import ROW_KEYS, parse_row, refuse

# Fields of every run's identity, in addition to the values of its method and its seed.
SPLIT_FIELDS = ("benchmark", "class_list", "classes", "trial", "data", "split_seed", "labelled_share", "K", "K_source")
FEATURE_FIELDS = ("model", "blocks", "weights", "mean", "std", "resize", "crop")


def resolve(params: Params, benchmark: str, row: str, seed: int) -> dict[str, Any]:
    """Return every value that the run reads, in a flat dict with a fixed order.

    Order of precedence: the protocol and the benchmark's `overrides` of it; the sections of the row's method, named
    settings, the benchmark's `methods` and `settings`; the row's own `+key=value`. A value that equals its field's
    default is left out. Raises UserError for an unknown or impossible row or value.
    """
    if benchmark not in params.benchmarks:
        refuse(benchmark, params.benchmarks, "params.yaml", "benchmark")
    entry, name = params.benchmarks[benchmark], parse_row(row)
    method, overrides, where = name.entry, dict(name.overrides), f"benchmark {benchmark}, row {row}"
    requested = overrides.pop("K", entry.K)
    of_k = where if "K" in name.overrides else f"benchmarks.{benchmark}.K"
    classes, k_source = assumed_k(entry, requested, of_k, method.needs_new)
    of_variant = method.variants.get(name.variant or "", "default")
    settings_name = str(overrides.pop("settings", of_variant))
    if settings_name not in params.settings:
        refuse(settings_name, params.settings, f"row '{row}'", "settings")
    own = protocol_of(params, benchmark)
    backbone = backbone_name(params, benchmark, row)
    if backbone != own.backbone and classes == ESTIMATED:
        raise UserError(
            f"{where}: K is estimated with the backbone {own.backbone} of the benchmark; give K in the row too, or set "
            f"backbone in benchmarks.{benchmark}.overrides"
        )
    for key in overrides:
        if key not in (*method.reads, "backbone"):
            if owners := [of for of, entry in METHODS.items() if key in entry.reads]:
                raise UserError(
                    f"row '{row}': {name.method} does not read {key}, which is a value of {', '.join(owners)}; "
                    f"valid: {', '.join([*method.reads, *ROW_KEYS])}"
                )
            if key in (*Protocol.model_fields, *Backbone.model_fields, "seed"):
                of_protocol = f"benchmarks.{benchmark}.overrides" if key in Protocol.model_fields else "backbones"
                place = f"seeds_of.{benchmark}" if key == "seed" else of_protocol
                raise UserError(f"row '{row}': {key} cannot be set in a row; set it in {place} of params.yaml")
            refuse(key, [*method.reads, *ROW_KEYS], f"row '{row}'", "parameter")
    overrides |= {method.weights[term]: 0.0 for term in name.zeroed}
    values = own.model_dump() | {key: value for key, value in overrides.items() if key in Protocol.model_fields}
    protocol = validated(Protocol, values, where)
    if protocol.tail == "adapter" and "tail_blocks" in overrides:
        raise UserError(
            f"row '{row}': the tail is an adapter after the whole backbone, so tail_blocks is not read; leave it "
            "out, or add tail=blocks"
        )
    if fault := size_fault(params.backbones[backbone].model, protocol.crop, protocol.resize):
        raise UserError(f"{where}: crop is {protocol.crop}, but {fault}")
    if method.whole and (fault := _whole_fault(name.method, protocol, params.backbones[backbone].model)):
        raise UserError(f"{where}: {fault}")
    shape = SHAPES.get(params.backbones[backbone].model)
    most = params.backbones[backbone].blocks or (shape and shape.blocks)
    if protocol.tail == "blocks" and most and protocol.tail_blocks > most:
        raise UserError(
            f"{where}: tail_blocks is {protocol.tail_blocks}, but only {counted(most, 'block')} of {backbone} can "
            f"be trained; give at most {most}"
        )
    values = without_defaults(Protocol, protocol.model_dump())
    for of, section in method.sections.items():
        found = values_of(params, of, settings_name, benchmark)
        found |= {key: value for key, value in overrides.items() if key in section.model_fields}
        values |= without_defaults(section, validated(section, found, where).model_dump())

    values |= {
        **backbone_values(params.backbones[backbone]),
        "weights": weights_of(params.backbones[backbone]),
        "benchmark": benchmark,
        **images_of(benchmark, entry),
        "split_seed": params.split.seed,
        "labelled_share": params.split.labelled_share,
        "K": classes,
        "K_source": k_source,
        "variant": name.variant,
        "settings": settings_name,
        "context_terms": name.terms,
        "modifiers": name.modifiers,
    }
    # Values that this run does not read are not part of its identity.
    unread = {weight for term, weight in method.weights.items() if term not in name.terms}
    unread |= set() if values["view_bank"] else {"view_bank_seed"}
    unread |= {"tail_blocks"} if protocol.tail == "adapter" else set()
    # Fields of the other kind of images, and default values.
    unread |= {*SPLIT_FIELDS, *FEATURE_FIELDS, *method.reads} - values.keys()
    of_name = ["variant", "settings"] * bool(method.variants) + ["context_terms"] * bool(method.ablated)
    of_name += ["modifiers"] * bool(name.modifiers)
    fields = [f for f in (*SPLIT_FIELDS, *FEATURE_FIELDS, *method.reads, *of_name) if f not in unread]
    resolved: dict[str, Any] = {"row": row, "method": name.method, "seed": seed} | {f: values[f] for f in fields}
    parts: dict[str, Entry | Modifier] = {name.method: method, **{word: MODIFIERS[word] for word in name.modifiers}}
    if method.trains and protocol.loss_group and (alone := [of for of, one in parts.items() if not one.in_groups]):
        raise UserError(
            f"{where}: loss_group is {protocol.loss_group}, but {alone[0]} computes its losses over the whole batch, "
            "because its entry in ctxgcd/catalogue/entries.py does not set in_groups; set loss_group to 0"
        )
    whole = completed(resolved)
    if fault := method.fault(whole) or (method.too_narrow(whole, shape.dim) if shape else ""):
        raise UserError(f"{where}: {fault}")
    if entry.images != "any":
        check_possible(resolved, entry.images.train)
    return resolved


def _whole_fault(method: str, protocol: Protocol, model: str) -> str:
    """Return why prompts in all blocks cannot be trained with these values, or an empty string."""
    why = f"{method} trains prompts in all blocks of the backbone"
    if protocol.view_bank:
        return f"view_bank is {protocol.view_bank}, but {why}, so no output can be cached; set view_bank to 0"
    if protocol.tail == "adapter":
        return f"tail is an adapter after the frozen backbone, but {why}; set tail to blocks"
    if not has_learned_tokens(model):
        return f"{why}, but {model} is not a ViT with a CLS token and learned positions; choose another backbone"
    return ""


def values_of(params: Params, method: str, settings: str, benchmark: str | None) -> dict[str, Any]:
    """Return the section of a method with the values of named settings and, if given, of a benchmark.

    Raises UserError if params.yaml has no such section.
    """
    section = METHODS[method].values
    if method not in params.methods:
        fields = ", ".join(section.model_fields)
        raise UserError(f"params.yaml: methods.{method} is missing; add it with the keys {fields}")
    values = section.model_validate(params.methods[method]).model_dump() | params.settings[settings].get(method, {})
    if benchmark is None:
        return values
    entry = params.benchmarks[benchmark]
    return {**values, **entry.methods.get(method, {}), **entry.settings.get(settings, {}).get(method, {})}


def images_of(benchmark: str, entry: Benchmark) -> dict[str, Any]:
    """Return the values that define a benchmark's images and classes, without their location."""
    if isinstance(entry, Own):
        return {"data": _own_data(benchmark, entry.model_dump_json()), "classes": entry.classes}
    return entry.model_dump(include={"class_list", "classes", "trial"})


def protocol_of(params: Params, benchmark: str) -> Protocol:
    """Return a benchmark's protocol with its `overrides`, shared by its images, features and runs."""
    entry = params.benchmarks[benchmark]
    values = params.protocols[entry.protocol].model_dump() | entry.overrides
    return validated(Protocol, values, f"benchmark {benchmark}, overrides")


def backbone_name(params: Params, benchmark: str, row: str) -> str:
    """Return the name of a row's backbone: that of its `+backbone=NAME`, else that of the benchmark's protocol.

    Raises UserError if the row names an unknown backbone.
    """
    name = parse_row(row).overrides.get("backbone", protocol_of(params, benchmark).backbone)
    if name not in params.backbones:
        refuse(str(name), params.backbones, f"row '{row}'", "backbone")
    return str(name)


def backbone_values(backbone: Backbone) -> dict[str, Any]:
    """Return the values of a backbone without those that equal their field's default."""
    return without_defaults(Backbone, backbone.model_dump())


def weights_of(backbone: Backbone) -> str:
    """Return the fingerprint of a backbone's weights in a run's identity."""
    return weights_fingerprint(backbone.weights, backbone.sha256)


@lru_cache
def _own_data(benchmark: str, section: str) -> str:
    """Return the fingerprint of a user's own images, cached because every run of the benchmark needs it."""
    return data_fingerprint(benchmark, json.loads(section))


def estimate_of(params: Params, benchmark: str) -> dict[str, int]:
    """Return the parameters of a benchmark's estimate of K: seed, restarts, most, threads."""
    return params.estimate.model_dump() | {"threads": protocol_of(params, benchmark).threads}
