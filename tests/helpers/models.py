"""Models with random weights."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from ctxgcd.models import weights

torch.set_num_threads(1)


VIT, LITE = "vit_tiny_patch16_224", "tf_efficientnet_lite0"
DIM = {VIT: 192, LITE: 1280}


def randomised(net: nn.Module, seed: int = 0) -> nn.Module:
    """Set all weights and statistics to random values, because initial zeros and ones could hide an error."""
    stream = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, value in net.state_dict().items():
            if not value.is_floating_point():
                continue
            noise = torch.randn(value.shape, generator=stream)
            # Matrices keep the size of their input, scales and variances are around 1: the signal stays alive.
            if value.ndim > 1:
                value.copy_(noise * (2 / value[0].numel()) ** 0.5)
            else:
                value.copy_(noise * 0.05 + float("weight" in name or "var" in name))
    return net


def frozen_copy(net: nn.Module, model: str) -> nn.Module:
    own = weights.build(model, 32)
    own.load_state_dict(net.state_dict())
    return own.eval().requires_grad_(False)


def images(n: int = 5) -> Tensor:
    return torch.randn(n, 3, 32, 32, generator=torch.Generator().manual_seed(1))


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def trainable(module: nn.Module) -> dict[str, int]:
    return {name: parameter.numel() for name, parameter in module.named_parameters() if parameter.requires_grad}
