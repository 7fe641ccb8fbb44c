"""A timm model cut into a frozen trunk and a trainable tail."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from timm.models.efficientnet import EfficientNet
from timm.models.vision_transformer import VisionTransformer
from torch import Tensor, nn
from torch.nn.functional import linear

from ctxgcd.errors import UserError


@dataclass(frozen=True)
class Backbone:
    """trunk: images [b, 3, s, s] -> kept output; tail: kept output -> features [b, dim].

    Both stay in evaluation mode: neither dropout nor batch statistics take part (method.md section 2).
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
    """The last blocks and the frozen final norm: tokens -> the CLS row [b, d]."""

    def __init__(self, net: VisionTransformer, blocks: int) -> None:
        super().__init__()
        self.blocks, self.norm = net.blocks[blocks:], net.norm

    def forward(self, tokens: Tensor) -> Tensor:
        return self.norm(self.blocks(tokens))[:, 0]


class EfficientNetTrunk(nn.Module):
    """All but the last convolution: images -> tokens [b, places, channels], one a place of the last map."""

    def __init__(self, net: EfficientNet) -> None:
        super().__init__()
        # Channels last: a quarter faster on a CPU.
        self.layers = nn.Sequential(net.conv_stem, net.bn1, net.blocks).to(memory_format=torch.channels_last)

    def forward(self, images: Tensor) -> Tensor:
        return self.layers(images).flatten(2).transpose(1, 2)


class EfficientNetTail(nn.Module):
    """The last convolution, frozen batch norm, activation and mean over places: tokens -> features [b, d].

    A 1x1 convolution is a matrix product and a frozen batch norm a scale and a shift: so written, a training
    step of the tail takes half the time of timm's layers on a CPU, with the same result up to rounding.
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


def cut(net: nn.Module, tail_blocks: int) -> Backbone:
    """Cut a frozen model so that its last `tail_blocks` blocks train.

    A ViT's block is a transformer block, its feature the CLS row after the final norm. An EfficientNet's
    one block is its last convolution. With 0 any timm model serves: all of it is trunk and the heads alone
    train. Normalisation layers stay frozen. Raises UserError where the model cannot be cut so.
    """
    dim = int(net.num_features)  # type: ignore[arg-type]
    if tail_blocks == 0:
        return Backbone(_Whole(net), nn.Identity(), dim)
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
        "number of blocks, an EfficientNet takes 1, and any timm model takes 0 (heads alone)"
    )


class _Whole(nn.Module):
    """The whole model as trunk: for a ViT the CLS row, else the pooled features."""

    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net = net

    def forward(self, images: Tensor) -> Tensor:
        if isinstance(self.net, VisionTransformer) and self.net.has_class_token:
            return self.net.forward_features(images)[:, 0]
        return self.net(images)
