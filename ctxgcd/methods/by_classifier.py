"""Methods that predict classes with their network's classifier."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from ctxgcd.methods.method import Discovery, Method

CHUNK = 8192  # maximum number of images whose features are in memory


class ByClassifier(Method):
    """Predicts the argmax of the network's `classify`."""

    def discover(
        self, network: Any, features: Callable[[Tensor], Tensor], labels: Tensor, unlabelled: Tensor, test: Tensor
    ) -> Discovery:
        def classes(ids: Tensor) -> Tensor:
            found = [network.classify(features(part)).argmax(dim=1) for part in ids.split(CHUNK) if len(part)]
            return torch.cat(found) if found else ids

        with torch.no_grad():
            return Discovery(classes(unlabelled), classes(test), found={})
