"""SimGCD (ICCV 2023), as its released code computes it: the baseline loss (method.md section 3)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import normalize

from ctxgcd.losses import cross_entropy, distill, entropy_gap, info_nce, sup_con
from ctxgcd.models.network import Network, Outputs


@dataclass(frozen=True)
class Batch:
    """One step's input.

    Attributes:
        sampled: the trunk's output for two views of the M sampled images, view 1's M rows then view 2's.
        labels: int64 [M], the class of a labelled image, -1 of an unlabelled one.
        neighbours: the same for the q * k images around the queries, or None while no context term acts.
        image_ids: int64 [M + q * k], which image each row of a view is; None where `neighbours` is.
        lists: int64 [N, k], each image's nearest others; None unless neighbours are sought over the dataset.
    """

    sampled: Tensor
    labels: Tensor
    neighbours: Tensor | None = None
    image_ids: Tensor | None = None
    lists: Tensor | None = None


class SimGCD:
    """Tail and heads trained with L_rep + L_cls."""

    def __init__(self, parameters: dict[str, Any]) -> None:
        self.p = parameters

    def active_from(self) -> dict[str, int]:
        """First epoch in which each term acts."""
        return dict.fromkeys(("info_nce", "sup_con", "distill", "entropy", "cls"), 0)

    def needs_neighbours(self, epoch: int) -> bool:
        """Whether the batches of this epoch hold queries and their neighbours."""
        return False

    def losses(self, network: Network, batch: Batch, teacher: float) -> dict[str, Tensor]:
        """Each term under its name in history.csv and their weighted sum under `loss`, all scalars.

        teacher: the teacher's temperature in this epoch.
        """
        return self.baseline(network(batch.sampled), batch.labels, teacher)

    def baseline(self, out: Outputs, labels: Tensor, teacher: float) -> dict[str, Tensor]:
        """The terms of L_baseline and their sum; out holds 2M rows, labels int64 [M], -1 where unlabelled."""
        p, labelled = self.p, labels >= 0
        projections = normalize(out.projections, dim=1)
        terms = {
            "info_nce": info_nce(projections, p["info_nce_temperature"]),
            "sup_con": sup_con(projections, labels, labelled, p["sup_con_temperature"]),
            "distill": distill(out.logits, teacher, p["student_temperature"]),
            "entropy": entropy_gap(out.logits, p["student_temperature"]),
            "cls": cross_entropy(out.logits, labels, labelled, p["student_temperature"]),
        }
        supervised = p["supervised_weight"]
        unsupervised = terms["info_nce"] + terms["distill"] + p["entropy_weight"] * terms["entropy"]
        loss = (1 - supervised) * unsupervised + supervised * (terms["sup_con"] + terms["cls"])
        return {"loss": loss, **terms}


def joined(*parts: Tensor) -> Tensor:
    """Join two-view row blocks [2a, ...], [2b, ...] into one: view 1's a + b rows, then view 2's."""
    halves = [part.chunk(2) for part in parts]
    return torch.cat([half[0] for half in halves] + [half[1] for half in halves])
