"""RS+ (AutoNovel, ICLR 2020, as GCD adapts it): pairs by ranking statistics (docs/methods.md, "Compared methods")."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import linear

from ctxgcd.losses.labelled_cross_entropy import labelled_cross_entropy
from ctxgcd.losses.ranking import consistency, pair_bce, same_top, with_truth
from ctxgcd.methods.by_classifier import ByClassifier
from ctxgcd.methods.step import Batch, Losses
from ctxgcd.models.network import TailNetwork
from ctxgcd.utils.seeding import generator

FEWEST = 1.0  # fewer positive pairs of different images in a step are none


def step_lr(epoch: int, lr: float, factor: float, drops: Sequence[int]) -> float:
    """Return lr, times `factor` for each epoch in `drops` that has been reached."""
    return lr * factor ** sum(epoch >= drop for drop in drops)


def ramp_up(epoch: int, weight: float, epochs: int) -> float:
    """Return weight * exp(-5 (1 - t)^2), where t goes from 0 to 1 over these epochs and stays there."""
    return weight * math.exp(-5 * (1 - min(epoch, epochs) / epochs) ** 2)


class LinearNetwork(TailNetwork):
    """Tail and a linear classifier of its feature, which starts as torch's linear layers."""

    def __init__(self, tail: nn.Module, dim: int, classes: int, old_classes: int, seed: int) -> None:
        super().__init__(tail)
        self.old_classes, bound, stream = old_classes, dim**-0.5, generator(seed, "heads")
        self.weight = nn.Parameter(torch.empty(classes, dim).uniform_(-bound, bound, generator=stream))
        self.bias = nn.Parameter(torch.empty(classes).uniform_(-bound, bound, generator=stream))

    def forward(self, kept: Tensor) -> tuple[Tensor, Tensor]:
        """Return features [n, d] and logits [n, K] for the trunk's output [n, ...]."""
        features = self.tail(kept)
        return features, self.classify(features)

    def classify(self, features: Tensor) -> Tensor:
        """Return logits [n, K] for the tail's features [n, d], in the precision of the parameters."""
        with torch.autocast(features.device.type, enabled=False):
            return linear(features.to(self.weight.dtype), self.weight, self.bias)


class RSPlus(ByClassifier):
    """Cross-entropy on D^l, binary cross-entropy on pairs with the same largest features, and consistency of views.

    `labelled_pairs`: pairs of two labelled images by `ranking`, as the GCD authors' script computes them, or by
    `truth`, as its comment says.
    """

    logged = ("positive_pairs",)
    decays_all = True

    def network(self, tail: nn.Module, dim: int, old_classes: int) -> LinearNetwork:
        return LinearNetwork(tail, dim, self.p["K"], old_classes, self.p["seed"])

    def learning_rate(self, epoch: int) -> float:
        return step_lr(epoch, self.p["lr"], self.p["lr_factor"], (self.p["first_drop"], self.p["second_drop"]))

    def terms(self) -> dict[str, int]:
        return {"cls": 0, "pair_bce": 0, "consistency": 0}

    def weights(self, batch: Batch) -> dict[str, float]:
        p = self.p
        ramped = ramp_up(batch.epoch, p["consistency_weight"], p["ramp_epochs"])
        return {"cls": p["ce_weight"], "pair_bce": 1.0, "consistency": ramped}

    def losses(self, network: LinearNetwork, batch: Batch) -> Losses:
        p, labels, ids = self.p, batch.sampled.labels, batch.sampled.ids
        features, logits = network(batch.sampled.views)
        view_1, view_2 = logits.chunk(2)
        same = same_top(features.detach()[: len(ids)], p["top_k"], absolute=p["ranked"] == "absolute")
        pairs = with_truth(same, labels) if p["labelled_pairs"] == "truth" else same
        of_labelled = view_1[:, : network.old_classes] if p["ce_over"] == "old" else view_1
        terms = {
            "cls": labelled_cross_entropy(of_labelled, labels),
            "pair_bce": pair_bce(view_1, view_2, pairs),
            "consistency": consistency(view_1, view_2),
        }
        return Losses(terms, logged={"positive_pairs": (same & (ids[:, None] != ids)).sum().float()})

    def idle(self, history: Sequence[Mapping[str, Any]]) -> str:
        empty = all(row["positive_pairs"] < FEWEST for row in history)
        return "almost no two images of a step had the same largest features in any epoch" if empty else ""
