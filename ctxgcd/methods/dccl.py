"""DCCL (CVPR 2023): concepts found in a graph of the images (docs/methods.md, "Compared methods")."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import normalize

from ctxgcd.clustering.concepts import communities, draw_concepts, edge_weights, numbered, similarities
from ctxgcd.clustering.semi_kmeans import cluster_means
from ctxgcd.errors import UserError
from ctxgcd.losses.memory import concept_loss, updated_memory
from ctxgcd.methods.by_semi_kmeans import BySemiKMeans
from ctxgcd.methods.schedules import cosine_lr
from ctxgcd.methods.step import Batch, Group, Look, Losses, Plan
from ctxgcd.models.backbone import VitTail
from ctxgcd.models.network import ContrastiveNetwork


def late_cosine(epoch: int, epochs: int, lr: float, floor: float, warmup_epochs: int) -> float:
    """Return the learning rate of an epoch: from 0 to lr, then the cosine of a training without warm-up, but late.

    Epoch `warmup_epochs` has lr, and the cosine starts one epoch later.
    """
    if epoch < warmup_epochs:
        return lr * epoch / warmup_epochs
    return cosine_lr(max(epoch - warmup_epochs - 1, 0), epochs, lr, floor)


def ramp(epoch: int, start: float, end: float, epochs: int) -> float:
    """Return a weight that goes linearly from `start` in epoch 0 to `end` in epoch epochs - 1, and stays there."""
    return start + (end - start) * min(epoch / (epochs - 1), 1.0) if epochs > 1 else end


class ConceptNetwork(ContrastiveNetwork):
    """Tail and a DINO head; the final norm of a ViT whose blocks train is trained too.

    `memory` [C, d] are the centres of the concepts, found before each epoch.
    """

    memory: Tensor

    def __init__(self, p: Mapping[str, Any], tail: nn.Module, dim: int) -> None:
        super().__init__(tail, dim, p["projector_width"], p["projection_dim"], p["head_dim"], p["seed"])
        if isinstance(tail, VitTail):
            tail.norm.requires_grad_(True)
        self.register_buffer("memory", torch.empty(0, dim), persistent=False)


class DCCL(BySemiKMeans):
    """L_rep, and a cross-entropy of the features with the centres of concepts, which are found before every epoch."""

    logged = ("concepts", "share_in_concepts")
    decays_all = True

    def network(self, tail: nn.Module, dim: int, old_classes: int) -> ConceptNetwork:
        return ConceptNetwork(self.p, tail, dim)

    def learning_rate(self, epoch: int) -> float:
        p = self.p
        return late_cosine(epoch, p["epochs"], p["lr"], p["lr_floor"], p["warmup_epochs"])

    def before_epoch(self, network: ConceptNetwork, look: Look) -> Plan:
        p = self.p
        features = look.features(torch.arange(len(look.labels), device=look.labels.device))
        concepts = self.concepts(features, look)
        count = int(concepts.max()) + 1
        means = cluster_means(features, concepts.to(features.device), count)[0] if count else features[:0]
        network.memory = normalize(means, dim=1)
        logged = {"concepts": count, "share_in_concepts": float((concepts >= 0).double().mean())}
        steps = look.sampled(p["batch_size"])
        if not count:
            _warn_without_concepts(f"{p['benchmark']} {p['row']}")
            return Plan(steps, logged)
        sizes = p["concepts_per_batch"], p["images_per_concept"]
        drawn = draw_concepts(concepts, *sizes, len(steps), look.stream("concepts"))
        groups = [Group(ids, {"concept": concepts[ids]}) for ids in drawn]
        return Plan([{**step, "concepts": of} for step, of in zip(steps, groups, strict=True)], logged)

    def concepts(self, features: Tensor, look: Look) -> Tensor:
        """Return the concept int64 [N] of each image on the host, -1 for none, from features [N, d].

        Raises UserError if a feature is not finite.
        """
        p = self.p
        if not features.isfinite().all():
            raise UserError(
                f"{p['benchmark']} {p['row']}: some features are not finite before epoch {look.epoch}, because the "
                "training diverged; decrease lr"
            )
        rows = normalize(features, dim=1)
        lists = look.nearest(rows, min(p["k"], len(rows)) - 1)
        weights = edge_weights(similarities(rows, lists), lists, look.labels, p["min_similarity"], p["edges"])
        return numbered(communities(weights, lists, p["graph_seed"]), p["min_images"])

    def terms(self) -> dict[str, int]:
        return {"info_nce": 0, "sup_con": 0, "concept": 0}

    def weights(self, batch: Batch) -> dict[str, float]:
        p = self.p
        weight = ramp(batch.epoch, p["concept_weight_start"], p["concept_weight"], p["ramp_epochs"])
        return {**self.representation_weights(), "concept": weight}

    def losses(self, network: ConceptNetwork, batch: Batch) -> Losses:
        terms = self.representation(network(batch.sampled.views), batch.sampled.labels)
        if not (rows := batch.groups.get("concepts")):
            return Losses({**terms, "concept": terms["info_nce"].new_zeros(())})
        features, concepts = network.tail(rows.views), rows.given["concept"].repeat(2)
        terms["concept"] = concept_loss(features, network.memory, concepts, self.p["concept_temperature"])
        return Losses(terms, kept={"features": features.detach(), "concepts": concepts})

    def after_step(self, network: ConceptNetwork, batch: Batch, kept: Mapping[str, Any]) -> None:
        if kept:
            momentum = self.p["memory_momentum"]
            network.memory = updated_memory(network.memory, kept["features"], kept["concepts"], momentum)

    def idle(self, history: Sequence[Mapping[str, Any]]) -> str:
        return "no epoch had two concepts" if all(row["concepts"] < 2 for row in history) else ""


@cache
def _warn_without_concepts(row: str) -> None:
    """Print a warning, once per row and process."""
    print(f"warning: {row}: no concept was found before an epoch, whose concept loss is therefore 0", flush=True)
