"""The trainable network of a run: the backbone's tail and its heads, as one module."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Self

from torch import Tensor, nn

from ctxgcd.models.heads import CosineClassifier, DinoHead, Projector, regrouped
from ctxgcd.utils.seeding import generator


@dataclass(frozen=True)
class Outputs:
    """features [n, d], raw projections [n, p], logits [n, K] (cosines, before any temperature)."""

    features: Tensor
    projections: Tensor
    logits: Tensor

    def __getitem__(self, rows: Any) -> Outputs:
        return Outputs(self.features[rows], self.projections[rows], self.logits[rows])


class TailNetwork(nn.Module):
    """The backbone's tail, which stays in evaluation mode. Methods add heads, which follow the network's mode."""

    def __init__(self, tail: nn.Module) -> None:
        super().__init__()
        self.tail = tail

    def train(self, mode: bool = True) -> Self:
        super().train(mode)
        self.tail.eval()
        return self


class Network(TailNetwork):
    """Tail, projector and classifier. The heads are initialised from the random stream `heads` of the seed.

    `centres` [New classes, d] are set after a training whose New classes are those of a k-means of the trained
    features (heads.regrouped).
    """

    centres: Tensor | None

    def __init__(self, tail: nn.Module, dim: int, classes: int, width: int, projection_dim: int, seed: int) -> None:
        super().__init__(tail)
        stream = generator(seed, "heads")
        self.projector = Projector(dim, width, projection_dim, generator=stream)
        self.classifier = CosineClassifier(dim, classes, generator=stream)
        self.register_buffer("centres", None, persistent=False)

    def forward(self, kept: Tensor) -> Outputs:
        """Return the outputs for the trunk's output [n, ...]."""
        features = self.tail(kept)
        return Outputs(features, self.projector(features), self.classifier(features))

    def classify(self, features: Tensor) -> Tensor:
        """Return cosines [n, K] for the tail's features [n, d], with the New classes of `centres`."""
        cosines: Tensor = self.classifier(features)
        return cosines if self.centres is None else regrouped(cosines, features, self.centres)

    def predict(self, kept: Tensor) -> tuple[Tensor, Tensor]:
        """Return features [n, d] and the cosines of `classify` for the trunk's output [n, ...]."""
        features = self.tail(kept).float()
        return features, self.classify(features)


class ContrastiveNetwork(TailNetwork):
    """Tail and a DINO head with `output` outputs, without a classifier, initialised as the heads of Network."""

    def __init__(self, tail: nn.Module, dim: int, width: int, bottleneck: int, output: int, seed: int) -> None:
        super().__init__(tail)
        self.projector = DinoHead(dim, width, bottleneck, output, generator=generator(seed, "heads"))

    def forward(self, kept: Tensor) -> Tensor:
        """Return raw projections [n, output] for the trunk's output [n, ...]."""
        return self.projector(self.tail(kept))
