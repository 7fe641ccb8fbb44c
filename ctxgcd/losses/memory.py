"""The loss of DCCL (CVPR 2023) on concepts, and the memory of their centres."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from ctxgcd.losses.full_precision import full_precision


@full_precision
def concept_loss(features: Tensor, memory: Tensor, concepts: Tensor, temperature: float) -> Tensor:
    """Return the mean cross-entropy of the similarities to the centres, over the rows.

    features: float [n, d], any scale (L2-normalised here). memory: float [C, d], L2-normalised, without a gradient.
    concepts: int64 [n], the concept of each row. Returns a scalar in nats; 0 with one concept.
    """
    return F.cross_entropy(F.normalize(features, dim=1) @ memory.detach().T / temperature, concepts)


@torch.no_grad()
@full_precision
def updated_memory(memory: Tensor, features: Tensor, concepts: Tensor, momentum: float) -> Tensor:
    """Return the memory after each row in turn has replaced its concept's centre by a mixture with itself.

    The centre keeps the share `momentum` and is L2-normalised after every row, so a concept's last row counts most.

    memory: float [C, d]. features: float [n, d], any scale (L2-normalised here). concepts: int64 [n].
    """
    memory = memory.clone()
    for row, concept in zip(F.normalize(features, dim=1).split(1), concepts.split(1), strict=True):
        memory[concept] = F.normalize(momentum * memory[concept] + (1 - momentum) * row, dim=1)
    return memory
