"""GCD (CVPR 2022): contrastive fine-tuning, then semi-supervised k-means (peers.md)."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn.functional import normalize

from ctxgcd.clustering.semi_kmeans import nearest_centre, semi_supervised_kmeans
from ctxgcd.methods.method import Batch, Discovery, Method
from ctxgcd.models.network import ContrastiveNetwork


class GCD(Method):
    """L_rep alone, on the output of a DINO head; no classifier. Last epoch: the published code picks one by
    Old accuracy on the test part, which is labelled data that this protocol scores on."""

    decays_all = True

    def network(self, tail: nn.Module, dim: int) -> ContrastiveNetwork:
        p = self.p
        return ContrastiveNetwork(tail, dim, p["projector_width"], p["projection_dim"], p["gcd_head_dim"], p["seed"])

    def weights(self) -> dict[str, float]:
        supervised = self.p["supervised_weight"]
        return {"info_nce": 1 - supervised, "sup_con": supervised}

    def losses(self, network: ContrastiveNetwork, batch: Batch, teacher: float | None) -> dict[str, Tensor]:
        return self.weighted(self.representation(network(batch.sampled), batch.labels))

    def discover(
        self,
        network: ContrastiveNetwork,
        features: Callable[[Tensor], Tensor],
        labels: Tensor,
        unlabelled: Tensor,
        test: Tensor,
    ) -> Discovery:
        p, training = self.p, torch.arange(len(labels), device=labels.device)
        assigned, centres = semi_supervised_kmeans(
            normalize(features(training), dim=1),
            labels,
            p["K"],
            restarts=p["semi_kmeans_restarts"],
            iterations=p["semi_kmeans_iterations"],
            seed=p["seed"],
        )
        of_test = nearest_centre(normalize(features(test), dim=1), centres)[0] if len(test) else test
        return Discovery(assigned[unlabelled], of_test, found={"centres": centres.cpu()})
