"""A timm model cut into a frozen trunk and a trainable tail: its last blocks, or an adapter after the whole model."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
from timm.layers.attention import Attention
from timm.models.efficientnet import EfficientNet
from timm.models.vision_transformer import Block, VisionTransformer
from torch import Tensor, nn
from torch.nn.functional import linear

from ctxgcd.errors import UserError


@dataclass(frozen=True)
class Backbone:
    """trunk: images [b, 3, s, s] -> output that can be cached; tail: this output -> features [b, dim].

    Both stay in evaluation mode, without dropout and batch statistics (docs/methods.md).
    """

    trunk: nn.Module
    tail: nn.Module
    dim: int

    def features(self, images: Tensor) -> Tensor:
        return self.tail(self.trunk(images))

    def to(self, device: torch.device) -> Backbone:
        return Backbone(self.trunk.to(device), self.tail.to(device), self.dim)


class VitTrunk(nn.Module):
    """Embedding and the frozen blocks: images -> tokens [b, t, d]."""

    def __init__(self, net: VisionTransformer, blocks: int) -> None:
        super().__init__()
        self.net, self.kept = net, blocks

    def forward(self, images: Tensor) -> Tensor:
        net = self.net
        tokens = net.norm_pre(net.patch_drop(net._pos_embed(net.patch_embed(images))))
        for block in net.blocks[: self.kept]:
            tokens = block(tokens)
        return tokens


class VitTail(nn.Module):
    """The last blocks and the frozen final norm: tokens -> the CLS row [b, d].

    Only the CLS row of the last block is computed, forward and backward.
    """

    def __init__(self, net: VisionTransformer, blocks: int) -> None:
        super().__init__()
        self.blocks, self.norm = net.blocks[blocks:], net.norm
        self.cls_alone = _is_plain(net.blocks[-1])

    def forward(self, tokens: Tensor) -> Tensor:
        if not self.cls_alone:
            return self.norm(self.blocks(tokens))[:, 0]
        return self.norm(cls_row(self.blocks[-1], self.blocks[:-1](tokens)))


def _is_plain(block: Any) -> bool:
    """Return whether `cls_row` supports a block: the structure of DINO's blocks, without random operations."""
    if type(block) is not Block or type(block.attn) is not Attention or block.attn.qkv.bias is None:
        return False
    attention = block.attn
    plain = (
        attention.q_norm,
        attention.k_norm,
        attention.norm,
        block.ls1,
        block.ls2,
        block.drop_path1,
        block.drop_path2,
    )
    dropped = any(layer.p > 0 for layer in block.modules() if isinstance(layer, nn.Dropout))
    return all(type(part) is nn.Identity for part in plain) and attention.gate is None and not dropped


def cls_row(block: Any, tokens: Tensor) -> Tensor:
    """Return a block's CLS row [b, d] for tokens [b, t, d], equal to `block(tokens)[:, 0]` up to rounding.

    A single query attends to all tokens, so keys and values are not computed: with W_k of a head, q.(W_k x + b_k) is
    (W_k' q).x plus a constant, which softmax ignores; and the weighted sum of W_v x + b_v is W_v applied to the
    weighted sum of x, plus b_v. Two d x d products per token become two products of size d per token and head.
    """
    attention, heads = block.attn, block.attn.num_heads
    dim = attention.qkv.in_features
    w_q, w_k, w_v = attention.qkv.weight.view(3, heads, attention.head_dim, dim)
    b_q, _, b_v = attention.qkv.bias.view(3, heads, attention.head_dim)
    rows = block.norm1(tokens)
    queries = torch.einsum("bd,hed->bhe", rows[:, 0], w_q) + b_q
    scores = torch.einsum("bhe,hed->bhd", queries * attention.scale, w_k) @ rows.transpose(1, 2)
    mixed = scores.softmax(dim=-1) @ rows
    values = torch.einsum("bhd,hed->bhe", mixed, w_v) + b_v
    out = tokens[:, 0] + attention.proj(values.flatten(1))
    return out + block.mlp(block.norm2(out))


class EfficientNetTrunk(nn.Module):
    """All but the last convolution: images -> tokens [b, positions, channels], one per position of the last map."""

    def __init__(self, net: EfficientNet) -> None:
        super().__init__()
        # Channels last is a quarter faster on a CPU.
        self.layers = nn.Sequential(net.conv_stem, net.bn1, net.blocks).to(memory_format=torch.channels_last)

    def forward(self, images: Tensor) -> Tensor:
        return self.layers(images).flatten(2).transpose(1, 2)


class EfficientNetTail(nn.Module):
    """The last convolution, frozen batch norm, activation and mean over positions: tokens -> features [b, d].

    A 1x1 convolution is computed as a matrix product and a frozen batch norm as a scale and a shift: on a CPU, a
    training step of the tail takes half the time of timm's layers, with the same result up to rounding.
    """

    scale: Tensor
    shift: Tensor

    def __init__(self, net: EfficientNet) -> None:
        super().__init__()
        norm = net.bn2
        self.conv, self.act = net.conv_head, norm.act
        scale = norm.weight * (norm.running_var + norm.eps).rsqrt()
        self.register_buffer("scale", scale.detach())
        self.register_buffer("shift", (norm.bias - norm.running_mean * scale).detach())

    def forward(self, tokens: Tensor) -> Tensor:
        rows = linear(tokens, self.conv.weight.flatten(1))
        return self.act(torch.addcmul(self.shift, rows, self.scale)).mean(dim=1)


class Adapter(nn.Module):
    """A residual linear layer: features f [n, d] -> f + W f + b, initialised with W = b = 0.

    Training therefore starts from exactly the frozen features. The sum is computed in the parameters' precision.
    """

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(dim, dim))
        self.bias = nn.Parameter(torch.zeros(dim))

    def forward(self, features: Tensor) -> Tensor:
        features = features.to(self.weight.dtype)
        return features + linear(features, self.weight, self.bias)


def adapted(net: nn.Module) -> Backbone:
    """Return the whole of any timm model as frozen trunk, and an adapter as tail."""
    whole = cut(net, 0)
    return replace(whole, tail=Adapter(whole.dim))


def cut(net: nn.Module, tail_blocks: int) -> Backbone:
    """Cut a frozen model so that its last `tail_blocks` blocks train.

    A ViT's block is a transformer block, and its feature the CLS row after the final norm. An EfficientNet's only
    block is its last convolution. With 0, any timm model can be used: all of it is trunk and only the heads are
    trained. Normalisation layers stay frozen. Raises UserError if the model cannot be cut like this.
    """
    # In some of timm's families, the last layer has more features than `num_features`.
    dim = int(getattr(net, "head_hidden_size", net.num_features))  # type: ignore[arg-type]
    if tail_blocks == 0:
        return Backbone(_Whole(net, dim), nn.Identity(), dim)
    if isinstance(net, VisionTransformer) and net.has_class_token and tail_blocks <= len(net.blocks):
        kept = len(net.blocks) - tail_blocks
        backbone = Backbone(VitTrunk(net, kept), VitTail(net, kept), dim)
        net.blocks[kept:].requires_grad_(True)
        return backbone
    if isinstance(net, EfficientNet) and tail_blocks == 1:
        net.conv_head.requires_grad_(True)
        return Backbone(EfficientNetTrunk(net), EfficientNetTail(net), dim)
    raise UserError(
        f"{type(net).__name__} cannot be cut with tail_blocks {tail_blocks}: a ViT with a CLS token takes up to its "
        "number of blocks, an EfficientNet takes 1, and any timm model takes 0 (only the heads are trained)"
    )


class _Whole(nn.Module):
    """The whole model as trunk: the CLS row of a ViT, else the pooled features."""

    def __init__(self, net: nn.Module, dim: int) -> None:
        super().__init__()
        self.net, self.dim = net, dim

    def forward(self, images: Tensor) -> Tensor:
        if isinstance(self.net, VisionTransformer) and self.net.has_class_token:
            return self.net.forward_features(images)[:, 0]
        features = self.net(images)
        if features.shape[1:] != (self.dim,):
            raise UserError(
                f"{type(self.net).__name__} returns features of shape {tuple(features.shape[1:])} per image, but "
                f"expected one vector of length {self.dim}; choose another model"
            )
        return features
