"""Weights of a DINOv2 in an ONNX file that was exported from Hugging Face's implementation, with timm's names.

An export keeps the names of most parameters, but neither those of the matrices of linear layers, which are transposed
inputs of MatMul nodes, nor those of the position embedding, which is divided into the CLS token's and the patches'.
Both are found by the nodes that read them.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ctxgcd.errors import UserError

OWN = "backbone"  # the module whose parameters are read; those of a decoder after it are not
QKV = ("query", "key", "value")
TO_TIMM = {  # part of Hugging Face's name -> part of timm's
    "embeddings.patch_embeddings.projection.": "patch_embed.proj.",
    "embeddings.cls_token": "cls_token",
    "encoder.layer.": "blocks.",
    "attention.output.dense.": "attn.proj.",
    "attention.attention.": "attn.",
    "lambda1": "gamma",
    "layer_scale": "ls",
    "layernorm.": "norm.",
}


def read_onnx(path: Path) -> dict[str, Tensor]:
    """Return the state dict of the backbone with timm's names, and a position embedding [1, 1 + patches, dim].

    A tensor of the backbone whose place in timm's model is unknown keeps its name, so that loading refuses it. Raises
    UserError if the file is not a readable ONNX file.
    """
    import onnx  # here, because only the extra `focus` needs it

    try:
        graph = onnx.load(path).graph
        values = {one.name: torch.tensor(onnx.numpy_helper.to_array(one)) for one in graph.initializer}
    except Exception as error:  # protobuf and onnx raise many types of errors for an invalid file
        raise UserError(
            f"weights file {path} cannot be read as ONNX ({type(error).__name__}); install its package again"
        ) from None
    state = {name.removeprefix(f"{OWN}."): value for name, value in values.items() if name.startswith(f"{OWN}.")}
    positions: list[Tensor] = []
    for node in graph.node:
        for name in node.input:
            if not node.name.startswith(f"/{OWN}/") or name not in values or name.startswith(f"{OWN}."):
                continue
            if node.op_type == "MatMul" and name == node.input[1]:
                state[_layer(node) + ".weight"] = values[name].T.contiguous()
            elif node.name.startswith(f"/{OWN}/embeddings/") and values[name].ndim == 3:
                positions.append(values[name])
            else:
                state[name] = values[name]
    if positions:  # that of the CLS token is the shorter one
        state["pos_embed"] = torch.cat(sorted(positions, key=lambda part: part.shape[1]), dim=1)
    return _joined({_in_timm(name): value for name, value in state.items()})


def _layer(node: Any) -> str:
    """Return the name of the linear layer of a MatMul node: /backbone/encoder/layer.0/mlp/fc1/MatMul."""
    return str(node.name.removeprefix(f"/{OWN}/").rpartition("/")[0].replace("/", "."))


def _in_timm(name: str) -> str:
    for own, timms in TO_TIMM.items():
        name = name.replace(own, timms)
    return name


def _joined(state: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return the state dict with query, key and value of each block joined to qkv, where all three are present."""
    for name in [name for name in state if re.search(r"\.attn\.query\.\w+$", name)]:
        parts = [name.replace(".query.", f".{part}.") for part in QKV]
        if all(part in state for part in parts):
            state[name.replace(".query.", ".qkv.")] = torch.cat([state.pop(part) for part in parts])
    return state
