"""A timm model cut into a frozen trunk and a trainable tail: its last blocks, or an adapter after the whole model."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, TypeGuard

import torch
from timm.layers.attention import Attention, AttentionRope
from timm.layers.pos_embed_sincos import apply_rot_embed_cat
from timm.models.efficientnet import EfficientNet
from timm.models.eva import Eva, EvaAttention, EvaBlock
from timm.models.vision_transformer import Block, VisionTransformer
from torch import Tensor, nn
from torch.nn.functional import linear

from ctxgcd.errors import UserError

# The blocks that `cls_row` supports, each with its kind of attention.
CLS_ROW_BLOCKS = {(Block, Attention), (EvaBlock, EvaAttention), (EvaBlock, AttentionRope)}


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
    """Embedding and the frozen blocks: images -> tokens [b, t, d]; the CLS token is first, then any registers."""

    def __init__(self, net: VisionTransformer | Eva, blocks: int) -> None:
        super().__init__()
        self.net, self.kept = net, blocks

    def forward(self, images: Tensor) -> Tensor:
        net, rope = self.net, None
        if isinstance(net, Eva):
            tokens, rope = net._pos_embed(net.patch_embed(images))
        else:
            tokens = net.patch_drop(net._pos_embed(net.patch_embed(images)))
        return _through(net.blocks[: self.kept], net.norm_pre(tokens), rope)


class VitTail(nn.Module):
    """The last blocks and the frozen final norm: tokens -> the CLS row [b, d].

    Only the CLS row of the last block is computed, forward and backward, unless `cls_row` does not support the block.
    """

    rope: Tensor | None

    def __init__(self, net: VisionTransformer | Eva, blocks: int) -> None:
        super().__init__()
        self.blocks, self.norm = net.blocks[blocks:], net.norm
        rotary: Any = getattr(net, "rope", None)
        positions = None if rotary is None else rotary.get_embed(shape=net.patch_embed.grid_size)
        self.register_buffer("rope", positions, persistent=False)
        self.cls_alone = _has_cls_row(net.blocks[-1])
        if not self.cls_alone:
            _note_whole_block(type(net.blocks[-1]).__name__)

    def forward(self, tokens: Tensor) -> Tensor:
        if not self.cls_alone:
            return self.norm(_through(self.blocks, tokens, self.rope))[:, 0]
        return self.norm(cls_row(self.blocks[-1], _through(self.blocks[:-1], tokens, self.rope), self.rope))


def _through(blocks: Iterable[nn.Module], tokens: Tensor, rope: Tensor | None) -> Tensor:
    for block in blocks:
        tokens = block(tokens) if rope is None else block(tokens, rope=rope)
    return tokens


@cache
def _note_whole_block(kind: str) -> None:
    """Print once that a kind of block takes the slow way."""
    print(f"note: the last block ({kind}) is computed for all tokens, so that training its tail is slower", flush=True)


def _has_cls_row(block: Any) -> bool:
    """Return whether `cls_row` supports a block: timm's usual blocks, without random operations."""
    attention = getattr(block, "attn", None)
    if (type(block), type(attention)) not in CLS_ROW_BLOCKS or getattr(attention, "num_kv_groups", 1) > 1:
        return False
    dropped = any(layer.p > 0 for layer in block.modules() if isinstance(layer, nn.Dropout))
    return not dropped and all(type(path) is nn.Identity for path in (block.drop_path1, block.drop_path2))


def cls_row(block: Any, tokens: Tensor, rope: Tensor | None = None) -> Tensor:
    """Return a block's CLS row [b, d] for tokens [b, t, d], equal to `block(tokens)[:, 0]` up to rounding.

    rope: rotary positions [patches, 2 e] of the tokens after the prefix (CLS and registers), for heads of size e.
    """
    rows = block.norm1(tokens)
    out = tokens[:, 0] + _scaled(block, 1, _cls_attention(block.attn, rows, rope))
    return out + _scaled(block, 2, block.mlp(block.norm2(out)))


def _cls_attention(attention: Any, rows: Tensor, rope: Tensor | None) -> Tensor:
    """Return the attention's CLS row [b, d] for normalised tokens [b, t, d].

    A single query attends to all tokens, so keys and values are not computed: with W_k of a head, q.(W_k x + b_k) is
    (W_k' q).x plus a constant, which softmax ignores; and the weighted sum of W_v x + b_v is W_v applied to the
    weighted sum of x, plus b_v. Two d x d products per token become two products of size d per token and head.
    Only keys that are normalised or rotated are computed, because these operations differ between tokens.
    """
    (w_q, b_q), (w_k, b_k), (w_v, b_v) = _projections(attention)
    queries = _plus(torch.einsum("bd,hed->bhe", rows[:, 0], w_q), b_q)
    queries = attention.q_norm(queries)
    if rope is None and type(attention.k_norm) is nn.Identity:
        scores = torch.einsum("bhe,hed->bhd", queries * attention.scale, w_k) @ rows.transpose(1, 2)
    else:
        keys = linear(rows, w_k.flatten(0, 1), None if b_k is None else b_k.flatten())
        keys = attention.k_norm(keys.unflatten(2, w_k.shape[:2]).transpose(1, 2))
        if rope is not None:  # the query is the first token of the prefix, which has no position
            before, patches = keys[:, :, : attention.num_prefix_tokens], keys[:, :, attention.num_prefix_tokens :]
            keys = torch.cat([before, apply_rot_embed_cat(patches, rope, half=attention.rotate_half)], dim=2)
        scores = torch.einsum("bhe,bhte->bht", queries * attention.scale, keys)
    mixed = scores.softmax(dim=-1) @ rows
    values = attention.norm(_plus(torch.einsum("bhd,hed->bhe", mixed, w_v), b_v).flatten(1))
    if attention.gate is not None:
        values = values * attention.gate(rows[:, 0]).sigmoid()
    return attention.proj(values)


def _projections(attention: Any) -> list[tuple[Tensor, Tensor | None]]:
    """Return weight [heads, e, d] and bias [heads, e] of queries, keys and values."""
    biases: Sequence[Tensor | None] = (None, None, None)
    if attention.qkv is None:
        layers = (attention.q_proj, attention.k_proj, attention.v_proj)
        weights, biases = [layer.weight for layer in layers], [layer.bias for layer in layers]
    else:
        weights = attention.qkv.weight.chunk(3)
        if attention.qkv.bias is not None:
            biases = attention.qkv.bias.chunk(3)
        elif getattr(attention, "q_bias", None) is not None:
            biases = (attention.q_bias, None, attention.v_bias)  # EVA's keys have none
    heads = (attention.num_heads, attention.head_dim)
    return [(w.unflatten(0, heads), None if b is None else b.view(heads)) for w, b in zip(weights, biases, strict=True)]


def _plus(values: Tensor, bias: Tensor | None) -> Tensor:
    return values if bias is None else values + bias


def _scaled(block: Any, branch: int, values: Tensor) -> Tensor:
    """Return the output of a block's branch (1: attention, 2: MLP) after its LayerScale, if it has one."""
    if isinstance(block, Block):
        return (block.ls1, block.ls2)[branch - 1](values)
    gamma = (block.gamma_1, block.gamma_2)[branch - 1]
    return values if gamma is None else gamma * values


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

    A ViT's block is a transformer block, and its feature the CLS row after the final norm, also for ViTs with
    registers or rotary positions (DINOv2, DINOv3). An EfficientNet's only block is its last convolution. With 0, any
    timm model can be used: all of it is trunk and only the heads are trained. Normalisation layers stay frozen. Raises
    UserError if the model cannot be cut like this.
    """
    # In some of timm's families, the last layer has more features than `num_features`.
    dim = int(getattr(net, "head_hidden_size", net.num_features))  # type: ignore[arg-type]
    if tail_blocks == 0:
        return Backbone(_Whole(net, dim), nn.Identity(), dim)
    if _is_vit(net) and not getattr(net, "rope_mixed", False) and tail_blocks <= len(net.blocks):
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


def _is_vit(net: nn.Module) -> TypeGuard[VisionTransformer | Eva]:
    """Return whether a model is a ViT whose feature is its CLS row: it has a CLS token that the final norm is for."""
    if isinstance(net, Eva):  # EVA's models without a final norm are trained with the mean of the patches
        return net.cls_token is not None and type(net.norm) is not nn.Identity
    return isinstance(net, VisionTransformer) and net.has_class_token


class _Whole(nn.Module):
    """The whole model as trunk: the CLS row of a ViT, else the pooled features."""

    def __init__(self, net: nn.Module, dim: int) -> None:
        super().__init__()
        self.net, self.dim = net, dim

    def forward(self, images: Tensor) -> Tensor:
        if _is_vit(self.net):
            return self.net.forward_features(images)[:, 0]
        features = self.net(images)
        if features.shape[1:] != (self.dim,):
            raise UserError(
                f"{type(self.net).__name__} returns features of shape {tuple(features.shape[1:])} per image, but "
                f"expected one vector of length {self.dim}; choose another model"
            )
        return features
