"""How trained methods give classes to D^u and the test part: by their network's classifier, or by clustering."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import normalize

from ctxgcd.clustering.semi_kmeans import nearest_centre, semi_supervised_kmeans
from ctxgcd.methods.method import Discovery, Method

CHUNK = 8192  # images whose features are held at a time


class ByClassifier(Method):
    """The class is the argmax of what the network's `classify` gives for a feature."""

    def discover(
        self, network: Any, features: Callable[[Tensor], Tensor], labels: Tensor, unlabelled: Tensor, test: Tensor
    ) -> Discovery:
        def classes(ids: Tensor) -> Tensor:
            found = [network.classify(features(part)).argmax(dim=1) for part in ids.split(CHUNK) if len(part)]
            return torch.cat(found) if found else ids

        with torch.no_grad():
            return Discovery(classes(unlabelled), classes(test), found={})


class BySemiKMeans(Method):
    """Semi-supervised k-means on the features of all training images; a test image goes to the nearest centre."""

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
