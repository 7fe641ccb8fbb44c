"""UNO+ (UNO, ICCV 2021, as GCD adapts it): swapped pseudo-labels (docs/methods.md, "Compared methods")."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import normalize

from ctxgcd.losses.swapped import swapped_prediction, targets
from ctxgcd.methods.by_classifier import ByClassifier
from ctxgcd.methods.step import Batch, Look, Losses, Plan
from ctxgcd.models.multi_head import MultiHead
from ctxgcd.models.network import TailNetwork
from ctxgcd.utils.seeding import generator

NEARLY_UNIFORM = 0.99  # relative entropy from which targets count as uniform


def warm_up_cosine(epoch: int, epochs: int, lr: float, ends: float, warmup_epochs: int) -> float:
    """Return the learning rate of an epoch: from `ends` to lr, and back along half a cosine.

    Epoch 0 has `ends`, epochs warmup_epochs - 1 and warmup_epochs have lr, and epoch `epochs` would have `ends`.
    """
    if epoch < warmup_epochs:
        return ends + epoch * (lr - ends) / max(warmup_epochs - 1, 1)
    return ends + (lr - ends) * (1 + math.cos(math.pi * (epoch - warmup_epochs) / (epochs - warmup_epochs))) / 2


class UNONetwork(TailNetwork):
    """Tail, prototypes of Old classes, heads with prototypes of New classes, and over-clustering heads.

    `sums` [H] are the losses of the heads in this epoch; `predicting` is the head whose New classes are predicted.
    """

    sums: Tensor

    def __init__(self, p: Mapping[str, Any], tail: nn.Module, dim: int, old_classes: int) -> None:
        super().__init__(tail)
        self.old_classes, self.first_head = old_classes, p["predicting_head"] == "first"
        stream, new = generator(p["seed"], "heads"), p["K"] - old_classes
        bound, sizes = dim**-0.5, (dim, p["projector_width"], p["projection_dim"])
        self.old = nn.Parameter(torch.empty(old_classes, dim).uniform_(-bound, bound, generator=stream))
        self.new = MultiHead(*sizes, new, p["heads"], generator=stream)
        self.over = MultiHead(*sizes, p["over_factor"] * new, p["heads"], generator=stream)
        self.register_buffer("sums", torch.zeros(p["heads"]))
        self.normalise()

    @property
    def predicting(self) -> int:
        return 0 if self.first_head else int(self.sums.argmin())

    def forward(self, kept: Tensor) -> tuple[Tensor, Tensor]:
        """Return the products with Old and New prototypes [2, H, B, K], and with Old and over-clustering prototypes.

        kept: the trunk's output [2B, ...] of two views, each of which passes the heads by itself.
        """
        views = self.tail(kept).chunk(2)
        old = torch.stack([self._old(view) for view in views])[:, None].expand(-1, len(self.sums), -1, -1)
        return tuple(  # type: ignore[return-value]
            torch.cat([old, torch.stack([heads(view) for view in views])], dim=-1) for heads in (self.new, self.over)
        )

    def classify(self, features: Tensor) -> Tensor:
        """Return products [n, K] with the Old prototypes and those of the predicting head for features [n, d]."""
        return torch.cat([self._old(features), self.new(features)[self.predicting]], dim=1)

    def _old(self, features: Tensor) -> Tensor:
        with torch.autocast(features.device.type, enabled=False):
            return normalize(features.to(self.old.dtype), dim=1) @ self.old.T

    @torch.no_grad()
    def normalise(self) -> None:
        """Give all prototypes length 1."""
        self.old.copy_(normalize(self.old, dim=1))
        self.new.normalise()
        self.over.normalise()


class UNOPlus(ByClassifier):
    """Each head predicts one view's pseudo-label from the other view.

    `targets_over`: pseudo-labels of unlabelled images over `all` K classes, or over the `new` ones, as in UNO.
    `scored_prototypes`: whether prototypes are normalised after the last step (`normalised`), or only before each step
    (`released`).
    """

    logged = ("target_entropy", "best_head")
    decays_all = True

    def network(self, tail: nn.Module, dim: int, old_classes: int) -> UNONetwork:
        return UNONetwork(self.p, tail, dim, old_classes)

    def learning_rate(self, epoch: int) -> float:
        p = self.p
        return warm_up_cosine(epoch, p["epochs"], p["lr"], p["lr_ends"], p["warmup_epochs"])

    def before_epoch(self, network: UNONetwork, look: Look) -> Plan:
        unlabelled = self.p["batch_size"] // self.loss_groups // 2  # about, by the sampler
        if look.epoch == 0 and self.p["K"] > unlabelled:
            print(
                f"note: about {unlabelled} unlabelled images in a step are divided among K = {self.p['K']} classes, so "
                "the targets of UNO+ are soft",
                flush=True,
            )
        network.normalise()
        network.sums.zero_()
        return super().before_epoch(network, look)

    def terms(self) -> dict[str, int]:
        return {"swapped": 0, "over": 0}

    def weights(self, batch: Batch) -> dict[str, float]:
        return {"swapped": 0.5, "over": 0.5}

    def losses(self, network: UNONetwork, batch: Batch) -> Losses:
        p, labels = self.p, batch.sampled.labels
        first = network.old_classes if p["targets_over"] == "new" else 0
        found, of_heads = {}, {}
        for name, cosines in zip(self.terms(), network(batch.sampled.views), strict=True):
            found[name] = targets(cosines, labels, p["epsilon"], p["iterations"], first)
            of_heads[name] = swapped_prediction(cosines, found[name], p["temperature"])
        unlabelled, classes = labels < 0, p["K"] - first
        entropies = torch.special.entr(found["swapped"]).sum(dim=-1).mean(dim=(0, 1)) / math.log(max(classes, 2))
        entropy = (entropies * unlabelled).sum() / unlabelled.sum().clamp(min=1)
        terms = {name: losses.mean() for name, losses in of_heads.items()}
        return Losses(terms, logged={"target_entropy": entropy}, kept={"of_heads": of_heads["swapped"].detach()})

    def after_step(self, network: UNONetwork, batch: Batch, kept: Mapping[str, Any]) -> None:
        network.sums += kept["of_heads"]
        if self.p["scored_prototypes"] == "normalised" or batch.step < batch.steps - 1:
            network.normalise()

    def after_epoch(self, network: UNONetwork) -> dict[str, float]:
        return {"best_head": int(network.sums.argmin())}

    def idle(self, history: Sequence[Mapping[str, Any]]) -> str:
        uniform = all(row["target_entropy"] >= NEARLY_UNIFORM for row in history)
        return "the targets of unlabelled images were uniform in every epoch" if uniform else ""
