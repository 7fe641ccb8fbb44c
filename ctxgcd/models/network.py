"""What a run trains: the backbone's tail, the projector and the classifier, as one module."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from ctxgcd.images.streams import generator
from ctxgcd.models.heads import CosineClassifier, Projector


@dataclass(frozen=True)
class Outputs:
    """features [n, d], raw projections [n, p], logits [n, K] (cosines, before any temperature)."""

    features: Tensor
    projections: Tensor
    logits: Tensor

    def __getitem__(self, rows: Any) -> Outputs:
        return Outputs(self.features[rows], self.projections[rows], self.logits[rows])


class Network(nn.Module):
    """Tail and heads on the trunk's kept output. The heads start from the seed's own stream `heads`."""

    def __init__(self, tail: nn.Module, dim: int, classes: int, width: int, projection_dim: int, seed: int) -> None:
        super().__init__()
        stream = generator(seed, "heads")
        self.tail = tail
        self.projector = Projector(dim, width, projection_dim, generator=stream)
        self.classifier = CosineClassifier(dim, classes, generator=stream)

    def forward(self, kept: Tensor) -> Outputs:
        features = self.tail(kept)
        return Outputs(features, self.projector(features), self.classifier(features))

    @torch.no_grad()
    def classify(self, kept: Tensor) -> Tensor:
        """Class ids int64 [n]; the projector is not needed."""
        return self.classifier(self.tail(kept)).argmax(dim=1)
