"""Methods that predict classes with semi-supervised k-means on the trained features."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import normalize

from ctxgcd.clustering.semi_kmeans import nearest_centre, semi_supervised_kmeans
from ctxgcd.methods.method import Discovery, Method


class BySemiKMeans(Method):
    """Runs semi-supervised k-means on the features of all training images; test images get the nearest centre."""

    def discover(
        self, network: Any, features: Callable[[Tensor], Tensor], labels: Tensor, unlabelled: Tensor, test: Tensor
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
