"""What a discovery trains with: a named preset, fitted to the images at hand; every value is kept with the result."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import yaml

from ctxgcd.catalogue.entries import METHODS
from ctxgcd.catalogue.sections import Closed, without_defaults
from ctxgcd.config import Backbone, Estimate, MethodValues, Protocol, validated
from ctxgcd.errors import UserError, nearest
from ctxgcd.pipeline.rows import parse_row, refuse

FILE = Path(__file__).parent / "presets.yaml"
STEPS = 8  # an epoch should have so many, where the images allow it
LEAST_BATCH = 16
SIZES = (8, 1024)  # of the square views, in pixels
IMAGES_A_CLASS = 4  # of the largest K that an estimate tries


class Preset(Closed):
    """How to train; `overrides` are values of the protocol that differ for another backbone than its own."""

    method: str
    variant: str
    protocol: Protocol
    methods: MethodValues
    overrides: dict[str, dict[str, Any]]


class Presets(Closed):
    """The whole of presets.yaml."""

    backbones: dict[str, Backbone]
    estimate: Estimate
    presets: dict[str, Preset]


def read_presets() -> Presets:
    """Read and validate presets.yaml."""
    return validated(Presets, yaml.safe_load(FILE.read_text(encoding="utf-8")), FILE.name)


def chosen(name: str, backbone: str | None, weights: str | None, size: int | None) -> dict[str, Any]:
    """Return the values of a preset with its backbone, flat, as runs.resolve gives those of a run.

    Args:
        name: a preset.
        backbone: a name of presets.yaml or, with `weights`, any timm model; None: the preset's own.
        weights: file of the backbone's weights; None: from where presets.yaml says.
        size: pixels of the square views; None: the preset's.

    Raises:
        UserError: an unknown name, or an impossible value.
    """
    presets = read_presets()
    if name not in presets.presets:
        refuse(name, presets.presets, "--settings", "preset")
    preset = presets.presets[name]
    wanted = backbone or preset.protocol.backbone
    entry, sizes = _backbone(wanted, weights, presets.backbones)
    protocol = preset.protocol.model_dump() | sizes | preset.overrides.get(wanted, {}) | {"backbone": wanted}
    if size is not None:
        if not SIZES[0] <= size <= SIZES[1]:
            raise UserError(f"--size is {size}; give {SIZES[0]} to {SIZES[1]:,} pixels")
        protocol |= {"resize": round(size * protocol["resize"] / protocol["crop"]), "crop": size}
    protocol["threads"] = cores()
    read = without_defaults(Protocol, validated(Protocol, protocol, f"--settings {name}").model_dump())
    if read.get("tail") == "adapter":
        del read["tail_blocks"]
    row = f"{preset.method}-{preset.variant}"
    return {
        "row": row,
        "method": preset.method,
        "variant": preset.variant,
        "preset": name,
        "context_terms": parse_row(row).terms,
        **read,
        **_values(preset),
        **entry.model_dump(),
    }


def _values(preset: Preset) -> dict[str, Any]:
    """The sections that the preset's method reads, flat."""
    values: dict[str, Any] = {}
    for method, section in METHODS[preset.method].sections.items():
        made = validated(section, preset.methods.get(method, {}), f"{FILE.name}: methods.{method}")
        values |= without_defaults(section, made.model_dump())
    return values


def _backbone(name: str, weights: str | None, known: dict[str, Backbone]) -> tuple[Backbone, dict[str, Any]]:
    """The backbone, and the values of the protocol that follow from it."""
    if name in known:
        return known[name].model_copy(update={"weights": weights, "sha256": ""} if weights else {}), {}
    import timm  # here, because it takes seconds

    if not timm.is_model(name):
        meant = nearest(name, known) or nearest(name, timm.list_models())
        raise UserError(
            f"--backbone: unknown '{name}'{meant}; valid: {', '.join(known)}, or with --weights any timm model"
        )
    if weights is None:
        raise UserError(f"--backbone {name} needs its weights; name their file with --weights")
    of = timm.get_pretrained_cfg(name)
    assert of is not None  # every model of timm's has one
    side = of.input_size[-1]
    note = f"What the weights of {name} were trained on is not known here; classes called new may be known to them."
    made = {"model": name, "weights": weights, "sha256": "", "mean": list(of.mean), "std": list(of.std), "note": note}
    return validated(Backbone, made, "--backbone"), {"resize": round(side * 8 / 7), "crop": side}


def cores() -> int:
    """Return how many processor cores there are for this process."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def fitted(values: dict[str, Any], images: int) -> tuple[dict[str, Any], list[str]]:
    """Return the values for so many images, and a sentence for each that had to be smaller."""
    batch = min(values["batch_size"], max(LEAST_BATCH, images // STEPS), images)
    around = min(values["neighbour_images"], batch)
    changes = {"batch_size": batch, "neighbour_images": around, "k": max(2, min(values["k"], around // 2))}
    said = [
        f"{key} is {value}, not {values[key]}: there are only {images:,} images"
        for key, value in changes.items()
        if value != values[key]
    ]
    return values | changes, said


def estimate_of(images: int, known: int, threads: int) -> dict[str, int]:
    """Return how K is estimated: seed, restarts, most, threads."""
    how = read_presets().estimate.model_dump()
    most = max(min(how["most"], images // IMAGES_A_CLASS), 2 * known)
    return how | {"most": min(most, images), "threads": threads}
