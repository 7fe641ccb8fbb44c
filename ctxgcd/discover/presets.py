"""Named presets of training values for discoveries."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import yaml
from pydantic import Field

from ctxgcd.catalogue.entries import METHODS
from ctxgcd.catalogue.sections import Closed, without_defaults
from ctxgcd.config import Backbone, Estimate, MethodValues, Protocol, validated
from ctxgcd.errors import UserError, nearest
from ctxgcd.models.pretrained import size_fault
from ctxgcd.pipeline.rows import parse_row, refuse

FILE = Path(__file__).parent / "presets.yaml"
SIZES = (8, 1024)  # allowed sides of the square views, in pixels
IMAGES_A_CLASS = 4  # images per class at the largest K of an estimate


class Preset(Closed):
    """Training values.

    variant: empty for a method without variants.
    steps: length of the training, which becomes epochs when the number of images is known; None: the given epochs.
    overrides: values of the protocol for backbones other than the default one.
    """

    method: str
    variant: str = ""
    steps: int | None = Field(None, ge=1)
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
    """Return the values of a preset with its backbone, in the same format as pipeline.resolve.

    Args:
        name: name of a preset.
        backbone: a name of presets.yaml or, with `weights`, any timm model; None: the backbone of the preset.
        weights: file with the backbone's weights; None: the source in presets.yaml.
        size: side of the square views in pixels; None: the size of the preset.

    Raises:
        UserError: an unknown name, or an impossible value.
    """
    presets = read_presets()
    if name not in presets.presets:
        refuse(name, presets.presets, "--preset", "preset")
    preset = presets.presets[name]
    wanted = backbone or preset.protocol.backbone
    entry, sizes = _backbone(wanted, weights, presets.backbones)
    protocol = preset.protocol.model_dump() | sizes | preset.overrides.get(wanted, {}) | {"backbone": wanted}
    if size is not None:
        if not SIZES[0] <= size <= SIZES[1]:
            raise UserError(f"--size is {size}; give {SIZES[0]} to {SIZES[1]:,} pixels")
        protocol |= {"resize": round(size * protocol["resize"] / protocol["crop"]), "crop": size}
        if fault := size_fault(entry.model, size, SIZES[1]):
            raise UserError(f"--size is {size}, but {fault}")
    read = without_defaults(Protocol, validated(Protocol, protocol, f"--preset {name}").model_dump())
    if read.get("tail") == "adapter":
        del read["tail_blocks"]
    row = "-".join(filter(None, [preset.method, preset.variant]))
    return {
        "row": row,
        "method": preset.method,
        **({"variant": preset.variant} if preset.variant else {}),
        "preset": name,
        **({"steps": preset.steps} if preset.steps else {}),
        "context_terms": parse_row(row).terms,
        **read,
        **_values(preset),
        **without_defaults(Backbone, entry.model_dump()),
    }


def _values(preset: Preset) -> dict[str, Any]:
    """Return the values of the sections that the preset's method reads, flat."""
    values: dict[str, Any] = {}
    for method, section in METHODS[preset.method].sections.items():
        made = validated(section, preset.methods.get(method, {}), f"{FILE.name}: methods.{method}")
        values |= without_defaults(section, made.model_dump())
    return values


def _backbone(name: str, weights: str | None, known: dict[str, Backbone]) -> tuple[Backbone, dict[str, Any]]:
    """Return the backbone and the values of the protocol that depend on it."""
    if name in known:
        return known[name].model_copy(update={"weights": weights, "sha256": ""} if weights else {}), {}
    import timm  # here, because its import is slow

    if not timm.is_model(name):
        meant = nearest(name, known) or nearest(name, timm.list_models())
        raise UserError(
            f"--backbone: unknown backbone '{name}'{meant}; valid: {', '.join(known)}, or any timm model with --weights"
        )
    if weights is None:
        raise UserError(f"--backbone {name} requires weights; give their file with --weights")
    of = timm.get_pretrained_cfg(name)
    assert of is not None  # every timm model has one
    side = of.input_size[-1]
    note = f"The training data of the weights of {name} is unknown; it may contain the new classes."
    made = {"model": name, "weights": weights, "sha256": "", "mean": list(of.mean), "std": list(of.std), "note": note}
    return validated(Backbone, made, "--backbone"), {"resize": round(side * 8 / 7), "crop": side}


def cores() -> int:
    """Return the number of CPU cores available to this process."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def estimate_of(images: int, known: int, threads: int) -> dict[str, int]:
    """Return the parameters of the estimate of K: seed, restarts, most, threads."""
    how = read_presets().estimate.model_dump()
    most = max(min(how["most"], images // IMAGES_A_CLASS), 2 * known)
    return how | {"most": min(most, images), "threads": threads}
