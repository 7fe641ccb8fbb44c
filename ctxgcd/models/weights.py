"""Loading of backbone weights; weights with missing or unexpected keys are refused."""

from __future__ import annotations

import argparse
import hashlib
import shlex
from collections.abc import Callable, Iterator
from contextlib import redirect_stdout, suppress
from io import StringIO
from math import isqrt
from pathlib import Path
from typing import Any

import timm
import torch
from safetensors.torch import load_file
from timm.models import eva, vision_transformer
from torch import Tensor, nn

from ctxgcd.errors import UserError, nearest
from ctxgcd.models.onnx_weights import read_onnx
from ctxgcd.models.packages import missing, package_file
from ctxgcd.models.pretrained import fetch_weights
from ctxgcd.utils.files import file_sha256, replacing

# timm's conversion of state dicts, by kind of model.
CONVERSIONS: dict[type[nn.Module], Callable[..., dict[str, Tensor]]] = {
    vision_transformer.VisionTransformer: vision_transformer.checkpoint_filter_fn,
    eva.Eva: eva.checkpoint_filter_fn,
}
TESTED = "install the tested version of its package (docs/installation.md)"


def build(model: str, crop: int) -> nn.Module:
    """Return a timm model without classifier and pretrained weights, for square images of `crop` pixels."""
    if not timm.is_model(model):
        raise UserError(
            f"backbone model '{model}' is not a timm model{nearest(model, timm.list_models())}; see timm.list_models()"
        )
    return _create(model, crop, pretrained=False)


def prepare(model: str, weights: str, crop: int, out: Path, sha256: str = "") -> str:
    """Load the weights, compare their keys with the model, and write them with timm's keys to `out`.

    An existing file with the same weights is not changed.

    Args:
        weights: `hub`, `package`, a URL, or the path of a .pth/.pt/.safetensors file.
        crop: pixels of the crop, which sets the size of a ViT's position embedding; that of a file for images of
            another size is resampled, with a note.
        sha256: SHA-256 of the file; empty if unknown.

    Returns:
        SHA-256 of names, shapes and values. Raises UserError if weights are missing or do not fit, or if the model
        reads only images of another size.
    """
    net = build(model, crop)
    _require_size(net, model, crop)
    what = f"weights '{weights}' for {model} on images of {crop} pixels"
    if weights in ("hub", "package"):
        state = _from_hub(model, crop) if weights == "hub" else _from_package(model, net, sha256)
        state = _without_classifier(model, state)
        check_fits(net, state, what)
    else:
        state = _from_users_file(model, net, fetch_weights(weights, sha256), what)
    digest = _digest(state)
    with suppress(UserError):  # a damaged file is overwritten
        if out.is_file() and _digest(_from_file(out)) == digest:
            return digest
    save(out, state)
    return digest


@torch.no_grad()
def _require_size(net: nn.Module, model: str, crop: int) -> None:
    try:
        net.eval()(torch.zeros(1, 3, crop, crop))
    except (AssertionError, RuntimeError, ValueError) as error:
        of, reason = timm.get_pretrained_cfg(model), " ".join(str(error).split())
        assert of is not None  # every timm model has one
        raise UserError(
            f"{model} cannot read images of {crop} x {crop} pixels ({reason}); give {of.input_size[-1]} pixels, or "
            "another model"
        ) from None


def _digest(state: dict[str, Tensor]) -> str:
    digest = hashlib.sha256()
    for name in sorted(state):
        digest.update(f"{name}{tuple(state[name].shape)}".encode() + state[name].contiguous().numpy().tobytes())
    return digest.hexdigest()


def save(path: Path, content: Any) -> None:
    """Write tensors and plain types atomically with torch.save. Raises UserError for errors of the file system."""
    with replacing(path) as temporary, temporary.open("wb") as file:
        try:
            torch.save(content, file)
        except RuntimeError as error:  # torch raises a second error for an incomplete file
            raise error.__context__ if isinstance(error.__context__, OSError | KeyboardInterrupt) else error from None


def load(model: str, crop: int, prepared: Path, blocks: int = 0) -> nn.Module:
    """Return the timm model with prepared weights, in evaluation mode, with frozen parameters.

    blocks: see `shortened`.
    """
    net = build(model, crop)
    state = _from_file(prepared)
    check_fits(net, state, f"weights {prepared.name} for {model}")
    net.load_state_dict(state, strict=True)
    return shortened(net, blocks).eval().requires_grad_(False)


def shortened(net: nn.Module, blocks: int) -> nn.Module:
    """Return a ViT with only its first `blocks` blocks, which its final norm then follows; 0: all of any model.

    Raises UserError if the model has fewer blocks, or no blocks of a ViT.
    """
    if blocks:
        every: Any = net.blocks if isinstance(net, tuple(CONVERSIONS)) else ()
        if blocks > len(every):
            known = f"a ViT with {len(every)} blocks" if every else "not a ViT"
            raise UserError(f"blocks is {blocks}, but the backbone is {known}; give at most its number, or 0 for all")
        net.blocks = every[:blocks]
    return net


def _create(model: str, crop: int, pretrained: bool) -> nn.Module:
    # A ViT is built for one image size, which sets the size of its position embedding.
    sized: dict[str, Any] = {"img_size": crop} if model.startswith(("vit_", "deit", "eva")) else {}
    return timm.create_model(model, pretrained=pretrained, num_classes=0, **sized)


def _from_hub(model: str, crop: int) -> dict[str, Tensor]:
    try:
        return dict(_create(model, crop, pretrained=True).state_dict())
    except Exception as error:  # the hub client raises many types of errors if a download fails
        raise UserError(
            f"the weights of {model} cannot be downloaded from timm's hub ({type(error).__name__}); without a network, "
            "download them on another machine and set backbones.NAME.weights in params.yaml to the path of the file"
        ) from None


def _from_package(model: str, net: nn.Module, sha256: str) -> dict[str, Tensor]:
    if fault := missing(model):
        raise UserError(fault)
    path = package_file(model)
    if sha256 and file_sha256(path) != sha256:
        raise UserError(f"weights file {path} does not have the expected sha256 {sha256}; {TESTED}")
    if path.suffix == ".onnx":
        return _noted(path, given := read_onnx(path), _as_in_timm(net, given))
    carried = _from_file(path)
    # The package has other layer names but the same order as timm, so layers are matched by position and shape.
    own = timm.create_model(model, pretrained=False).state_dict()
    shapes = [tuple(t.shape) for t in own.values()], [tuple(t.shape) for t in carried.values()]
    if shapes[0] != shapes[1]:
        raise UserError(f"weights file {path} does not have the layers of {model}; {TESTED}")
    return dict(zip(own, carried.values(), strict=True))


def _from_users_file(model: str, net: nn.Module, path: Path, what: str) -> dict[str, Tensor]:
    """Return the state dict of a file. The error for an invalid file shows where it contains a matching one."""
    content = _read(path)
    try:
        given = _without_classifier(model, _state_dict(path, content))
        state = _as_in_timm(net, given)
        check_fits(net, state, what)
    except UserError as error:
        raise UserError(f"{error}{_what_fits(model, net, path, content)}") from None
    return _noted(path, given, state)


def _noted(path: Path, given: dict[str, Tensor], state: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return the state dict made of a given one, with a note if its position embedding is resampled."""
    if (old := _grid(given)) != (new := _grid(state)):
        print(
            f"note: the position embedding of {path.name}, which has {old} x {old} patches, is resampled to "
            f"{new} x {new} patches",
            flush=True,
        )
    return state


def _as_in_timm(net: nn.Module, state: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return a ViT's state dict with timm's names and a position embedding of the model's size, as timm loads it.

    The files of DINOv2 and DINOv3 have other names. A state dict that fits is not changed. Neither is one that timm
    cannot convert without a loss: with patches of another size, or with biases that the model does not have.
    """
    own, patch = net.state_dict(), "patch_embed.proj.weight"
    convert = next((of for kind, of in CONVERSIONS.items() if isinstance(net, kind)), None)
    if (
        convert is None
        or patch not in state
        or state[patch].shape != own[patch].shape
        or _shapes(state) == _shapes(own)
    ):
        return state
    # timm's conversion prints what it leaves out, and raises many types of errors for other files.
    with suppress(Exception), redirect_stdout(StringIO()):
        found = {name: value.contiguous() for name, value in convert(dict(state), net).items()}
        biases = [value.chunk(3) for name, value in state.items() if name.endswith("qkv.bias")]
        if any(name.endswith(("qkv.bias", "q_bias")) for name in own) or not any(
            q.any() or v.any() for q, _, v in biases
        ):
            return found
    return state


def _grid(state: dict[str, Tensor]) -> int:
    """Return the number of patches in a row of the position embedding, which may contain prefix tokens; 0: none."""
    return isqrt(state["pos_embed"].shape[1]) if "pos_embed" in state else 0


def _shapes(state: dict[str, Tensor]) -> dict[str, torch.Size]:
    return {name: value.shape for name, value in state.items()}


def _from_file(path: Path) -> dict[str, Tensor]:
    return _state_dict(path, _read(path))


def _read(path: Path) -> Any:
    """Return the content of a file: tensors, plain types and argparse namespaces. No code in it is run."""
    if not path.is_file():
        raise UserError(f"weights file {path} does not exist; give an existing .pth, .pt or .safetensors file")
    try:
        if path.suffix == ".safetensors":
            return load_file(path)
        with torch.serialization.safe_globals([argparse.Namespace]):
            return torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # pickle and safetensors raise many types of errors for an invalid file
        raise UserError(
            f"weights file {path} cannot be read as plain tensors ({type(error).__name__}); give a state dict"
        ) from None


def _state_dict(path: Path, content: Any) -> dict[str, Tensor]:
    if not _is_state_dict(content):
        held = ", ".join(list(map(str, content))[:4]) if isinstance(content, dict) else type(content).__name__
        raise UserError(
            f"weights file {path} is not a backbone state dict (it contains {held}), but possibly a training "
            "checkpoint; give a file with only the names "
            "and tensors of the backbone"
        )
    state: dict[str, Tensor] = content
    return state


def _is_state_dict(content: Any) -> bool:
    return isinstance(content, dict) and all(isinstance(n, str) and isinstance(v, Tensor) for n, v in content.items())


def _what_fits(model: str, net: nn.Module, path: Path, content: Any) -> str:
    """Return where a file contains matching state dicts (up to two keys deep, with any prefix), and how to save one."""
    own = _shapes(net.state_dict())
    some = max(own, key=len)
    found = []
    for keys, held in _nested(content, 2):
        for prefix in sorted({name.removesuffix(some) for name in held if f".{name}".endswith(f".{some}")}):
            state = {name.removeprefix(prefix): v for name, v in held.items() if name.startswith(prefix)}
            if own == _shapes(_as_in_timm(net, _without_classifier(model, state))):
                found.append((keys, prefix))
    if not found:
        return ""
    places = [
        " ".join([f"under {'.'.join(keys)!r}"] * bool(keys) + [f"with the prefix '{prefix}'"] * bool(prefix))
        for keys, prefix in found
    ]
    keys, prefix = next((one for one in found if one[0][-1:] == ["teacher"]), found[0])  # as in DINO
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
        return f"; matching state dicts are stored {' and '.join(places)}; save one to a separate file: {command}"
    return f"; the matching state dict is stored {places[0]}; save it to a separate file: {command}"


def _nested(content: Any, depth: int) -> Iterator[tuple[list[str], dict[str, Tensor]]]:
    """Yield the state dicts in a file's content, each with its keys."""
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
