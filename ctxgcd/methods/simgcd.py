"""SimGCD (ICCV 2023), as its released code computes it: the baseline loss (method.md section 3)."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from ctxgcd.losses import cross_entropy, distill, entropy_gap
from ctxgcd.methods.method import Batch, Discovery, Method
from ctxgcd.models.network import Network, Outputs

CHUNK = 8192  # images whose features are held at a time


class SimGCD(Method):
    """Tail and heads trained with L_rep + L_cls; the classifier's argmax is the class."""

    has_teacher = True

    def network(self, tail: nn.Module, dim: int) -> Network:
        p = self.p
        return Network(tail, dim, p["K"], p["projector_width"], p["projection_dim"], p["seed"])

    def weights(self) -> dict[str, float]:
        supervised = self.p["supervised_weight"]
        unsupervised = dict.fromkeys(("info_nce", "distill", "entropy"), 1 - supervised)
        unsupervised["entropy"] *= self.p["entropy_weight"]
        return unsupervised | {"sup_con": supervised, "cls": supervised}

    def losses(self, network: Network, batch: Batch, teacher: float | None) -> dict[str, Tensor]:
        return self.weighted(self.baseline(network(batch.sampled), batch.labels, teacher))

    def discover(
        self, network: Network, features: Callable[[Tensor], Tensor], labels: Tensor, unlabelled: Tensor, test: Tensor
    ) -> Discovery:
        def classes(ids: Tensor) -> Tensor:
            found = [network.classifier(features(part)).argmax(dim=1) for part in ids.split(CHUNK) if len(part)]
            return torch.cat(found) if found else ids

        with torch.no_grad():
            return Discovery(classes(unlabelled), classes(test), found={})

    def baseline(self, out: Outputs, labels: Tensor, teacher: float | None) -> dict[str, Tensor]:
        """The terms of L_baseline; out holds 2M rows, labels int64 [M], -1 where unlabelled."""
        assert teacher is not None
        student = self.p["student_temperature"]
        return self.representation(out.projections, labels) | {
            "distill": distill(out.logits, teacher, student),
            "entropy": entropy_gap(out.logits, student),
            "cls": cross_entropy(out.logits, labels, labels >= 0, student),
        }


def joined(*parts: Tensor) -> Tensor:
    """Join two-view row blocks [2a, ...], [2b, ...] into one: view 1's a + b rows, then view 2's."""
    halves = [part.chunk(2) for part in parts]
    return torch.cat([half[0] for half in halves] + [half[1] for half in halves])
