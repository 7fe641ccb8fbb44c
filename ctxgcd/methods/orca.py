"""ORCA (ICLR 2022), as its released code computes it, on the common backbone (docs/methods.md, "Compared methods")."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import normalize

from ctxgcd.losses.labelled_cross_entropy import labelled_cross_entropy
from ctxgcd.losses.partners import negative_entropy, pair_similarity, partners
from ctxgcd.methods.by_classifier import CHUNK, ByClassifier
from ctxgcd.methods.step import Batch, Look, Losses, Plan
from ctxgcd.models.heads import CosineClassifier
from ctxgcd.models.network import TailNetwork
from ctxgcd.utils.seeding import generator

LEAST_MARGIN = 1e-3  # a smaller margin is no margin


class CosineNetwork(TailNetwork):
    """Tail and a classifier of cosines times a scale, whose directions start with length 1.

    `margin` is set before each epoch.
    """

    margin: Tensor

    def __init__(self, tail: nn.Module, dim: int, classes: int, scale: float, seed: int) -> None:
        super().__init__(tail)
        self.scale, self.classifier = scale, CosineClassifier(dim, classes, generator=generator(seed, "heads"))
        with torch.no_grad():
            self.classifier.direction.copy_(normalize(self.classifier.direction, dim=1))
        self.register_buffer("margin", torch.zeros(()), persistent=False)

    def forward(self, kept: Tensor) -> tuple[Tensor, Tensor]:
        """Return features [n, d] and logits [n, K] for the trunk's output [n, ...]."""
        features = self.tail(kept)
        return features, self.classify(features)

    def classify(self, features: Tensor) -> Tensor:
        """Return logits [n, K], cosines times the scale, for the tail's features [n, d]."""
        logits: Tensor = self.scale * self.classifier(features)
        return logits


class ORCA(ByClassifier):
    """Cross-entropy with a margin that depends on the uncertainty on D^u, similar pairs, and the entropy of the mean.

    Before each epoch, the margin is the mean over D^u of 1 minus the largest probability, at most `margin_limit`.
    """

    logged = ("margin", "partners_by_label")
    decays_all = True

    def network(self, tail: nn.Module, dim: int, old_classes: int) -> CosineNetwork:
        return CosineNetwork(tail, dim, self.p["K"], self.p["scale"], self.p["seed"])

    def before_epoch(self, network: CosineNetwork, look: Look) -> Plan:
        plan = super().before_epoch(network, look)
        unlabelled = (look.labels < 0).nonzero()[:, 0]
        with torch.no_grad():
            parts = [network.classify(look.features(ids)).softmax(dim=1).amax(dim=1) for ids in unlabelled.split(CHUNK)]
            network.margin.copy_((1 - torch.cat(parts).mean()).clamp(max=self.p["margin_limit"]))
        return replace(plan, logged={"margin": float(network.margin)})

    def terms(self) -> dict[str, int]:
        return {"cls": 0, "pair": 0, "neg_entropy": 0}

    def weights(self, batch: Batch) -> dict[str, float]:
        return {"cls": 1.0, "pair": self.p["pair_weight"], "neg_entropy": self.p["entropy_weight"]}

    def losses(self, network: CosineNetwork, batch: Batch) -> Losses:
        labels, images = batch.sampled.labels, len(batch.sampled.labels)
        features, logits = network(batch.sampled.views)
        view_1, view_2 = logits.chunk(2)
        drawn = torch.rand(images, images, generator=batch.stream("partners")).to(labels.device, non_blocking=True)
        partner = partners(features[:images].detach(), labels, drawn)
        terms = {
            "cls": labelled_cross_entropy(view_1, labels, self.p["scale"] * network.margin),
            "pair": pair_similarity(view_1, view_2, partner),
            "neg_entropy": negative_entropy(view_1),
        }
        by_label = (labels >= 0) & (partner != torch.arange(images, device=labels.device))
        return Losses(terms, logged={"partners_by_label": by_label.float().mean()})

    def idle(self, history: Sequence[Mapping[str, Any]]) -> str:
        if all(row["margin"] < LEAST_MARGIN for row in history):
            return "the margin was 0 in every epoch"
        return "no partner was chosen by label" if all(row["partners_by_label"] == 0 for row in history) else ""
