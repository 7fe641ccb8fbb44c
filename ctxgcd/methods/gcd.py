"""GCD (CVPR 2022): contrastive fine-tuning, then semi-supervised k-means (docs/methods.md, "kmeans, gcd, simgcd")."""

from __future__ import annotations

from torch import nn

from ctxgcd.methods.by_semi_kmeans import BySemiKMeans
from ctxgcd.methods.step import Batch, Losses
from ctxgcd.models.network import ContrastiveNetwork


class GCD(BySemiKMeans):
    """L_rep only, on the output of a DINO head, without a classifier.

    It is scored at the last epoch. The published code selects an epoch by Old accuracy on the test part, whose labels
    this protocol uses only for scores.
    """

    decays_all = True

    def network(self, tail: nn.Module, dim: int, old_classes: int) -> ContrastiveNetwork:
        p = self.p
        return ContrastiveNetwork(tail, dim, p["projector_width"], p["projection_dim"], p["head_dim"], p["seed"])

    def terms(self) -> dict[str, int]:
        return {"info_nce": 0, "sup_con": 0}

    def weights(self, batch: Batch) -> dict[str, float]:
        return self.representation_weights()

    def losses(self, network: ContrastiveNetwork, batch: Batch) -> Losses:
        return Losses(self.representation(network(batch.sampled.views), batch.sampled.labels))
