"""The full method: SimGCD with the context losses L_n and L_c, in three variants (method.md section 4)."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import normalize

from ctxgcd.context import pairs
from ctxgcd.losses import cluster, neighbourhood
from ctxgcd.methods.method import Batch
from ctxgcd.methods.simgcd import SimGCD, joined
from ctxgcd.models.network import Network, Outputs


class Full(SimGCD):
    """L_baseline + lambda_n * L_n + lambda_c * L_c, the last two from epoch T_warm + context_delay on.

    `paper` follows the equations, `released` the released code (its L_n trains nothing), `mended` is the
    released form with its defects mended. `context_terms` names the terms that are computed at all: an
    ablated one is not, while a term of weight 0 is computed, logged and adds nothing.
    """

    def __init__(self, parameters: dict[str, Any]) -> None:
        super().__init__(parameters)
        self.start = parameters["T_warm"] + parameters["context_delay"]
        self.variant = {"paper": self.paper, "released": self.released, "mended": self.mended}[parameters["variant"]]

    def weights(self) -> dict[str, float]:
        return super().weights() | {term: self.p[f"lambda_{term[-1]}"] for term in self.p["context_terms"]}

    def active_from(self) -> dict[str, int]:
        return super().active_from() | dict.fromkeys(self.p["context_terms"], self.start)

    def needs_neighbours(self, epoch: int) -> bool:
        return epoch >= self.start

    def losses(self, network: Network, batch: Batch, teacher: float | None) -> dict[str, Tensor]:
        if batch.neighbours is None:
            return super().losses(network, batch, teacher)
        sampled, context = self.variant(network, batch)
        return self.weighted(self.baseline(sampled, batch.labels, teacher) | context)

    def paper(self, network: Network, batch: Batch) -> tuple[Outputs, dict[str, Tensor]]:
        """Both terms on both views of all q * k + M images, on L2-normalised projections."""
        assert batch.neighbours is not None
        p, sampled, images = self.p, len(batch.sampled) // 2, len(batch.sampled) // 2 + len(batch.neighbours) // 2
        out = network(joined(batch.sampled, batch.neighbours))
        z, pseudo = normalize(out.projections, dim=1), out.logits.detach().argmax(dim=1)
        terms = {}
        if "L_n" in p["context_terms"]:
            terms["L_n"] = neighbourhood.paper(
                z, self.same_context(pairs.mutual_same_label, z, pseudo, batch), p["delta"]
            )
        if "L_c" in p["context_terms"]:
            terms["L_c"] = cluster.paper(z[:images], z[images:], pseudo[:images], pseudo[images:], p["K"], p["tau"])
        of_sampler = torch.arange(sampled, device=z.device)
        return out[torch.cat([of_sampler, of_sampler + images])], terms

    def released(self, network: Network, batch: Batch) -> tuple[Outputs, dict[str, Tensor]]:
        """L_n on the neighbour images, which takes no part in the backward pass; L_c on the sampled images."""
        assert batch.neighbours is not None
        p, out, terms = self.p, network(batch.sampled), {}
        if "L_n" in p["context_terms"]:
            with torch.no_grad():
                around = network(batch.neighbours)
                same = pairs.released_pairs(around.projections, around.logits.argmax(dim=1), p["k"])
                terms["L_n"] = neighbourhood.released(around.projections, same, p["delta"])
        return out, terms | self.released_cluster(out)

    def mended(self, network: Network, batch: Batch) -> tuple[Outputs, dict[str, Tensor]]:
        """As released, with L_n's gradient, nearest rows, both directions and the label of i and j."""
        assert batch.neighbours is not None
        p, sampled = self.p, len(batch.sampled)
        out = network(torch.cat([batch.sampled, batch.neighbours]))
        own, around, terms = out[:sampled], out[sampled:], {}
        if "L_n" in p["context_terms"]:
            pseudo = around.logits.detach().argmax(dim=1)
            same = self.same_context(pairs.mended_pairs, around.projections, pseudo, batch)
            terms["L_n"] = neighbourhood.mended(around.projections, same, p["delta"])
        return own, terms | self.released_cluster(own)

    def released_cluster(self, out: Outputs) -> dict[str, Tensor]:
        """L_c as released: raw projections of the sampled images, view 1's pseudo labels for both views."""
        if "L_c" not in self.p["context_terms"]:
            return {}
        images = len(out.logits) // 2
        pseudo = out.logits[:images].detach().argmax(dim=1)
        view_1, view_2 = out.projections[:images], out.projections[images:]
        return {"L_c": cluster.released(view_1, view_2, pseudo, self.p["K"], self.p["tau"])}

    def same_context(self, over_batch: Any, rows: Tensor, pseudo: Tensor, batch: Batch) -> Tensor:
        """s_ij, with neighbours sought in the batch or over the dataset, for rows of two views."""
        if self.p["reciprocal"] == "batch":
            return over_batch(rows, pseudo, self.p["k"])
        assert batch.image_ids is not None
        assert batch.lists is not None
        return pairs.mutual_over_dataset(batch.lists, batch.image_ids[-(len(rows) // 2) :].repeat(2), pseudo)
