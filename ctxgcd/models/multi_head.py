"""Several MLPs with batch norm and prototypes, side by side: the heads of UNO."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.functional import normalize, relu


class MultiHead(nn.Module):
    """H heads, each Linear d -> width, batch norm, ReLU, Linear width -> out, then cosines with P prototypes.

    Source: UNO (ICCV 2021). Layers start as torch's linear layers, and prototypes are then normalised. All heads are
    computed at once: the first layers and batch norms are one, because each unit is normalised by itself.
    """

    def __init__(
        self, dim: int, width: int, out: int, prototypes: int, heads: int, *, generator: torch.Generator
    ) -> None:
        super().__init__()

        def uniform(*shape: int, inputs: int) -> nn.Parameter:
            return nn.Parameter(torch.empty(shape).uniform_(-(inputs**-0.5), inputs**-0.5, generator=generator))

        self.heads = heads
        self.first, self.first_bias = uniform(heads * width, dim, inputs=dim), uniform(heads * width, inputs=dim)
        self.norm = nn.BatchNorm1d(heads * width)
        self.second = uniform(heads, width, out, inputs=width)
        self.second_bias = uniform(heads, 1, out, inputs=width)
        self.prototypes = uniform(heads, prototypes, out, inputs=out)
        self.normalise()

    def forward(self, features: Tensor) -> Tensor:
        """Return the products [H, n, P] of L2-normalised outputs and prototypes for features [n, d] of one view."""
        hidden = relu(self.norm(nn.functional.linear(features, self.first, self.first_bias)))
        rows = hidden.unflatten(1, (self.heads, -1)).transpose(0, 1) @ self.second + self.second_bias
        # In the parameter's precision even under autocast, because the products are divided by small temperatures.
        with torch.autocast(features.device.type, enabled=False):
            return normalize(rows.to(self.prototypes.dtype), dim=-1) @ self.prototypes.transpose(1, 2)

    @torch.no_grad()
    def normalise(self) -> None:
        """Give all prototypes length 1."""
        self.prototypes.copy_(normalize(self.prototypes, dim=-1))
