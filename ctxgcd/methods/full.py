"""The full method: SimGCD with the context losses L_n and L_c, in three variants (docs/methods.md)."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import normalize

from ctxgcd.images.query_batches import query_batch
from ctxgcd.losses import cluster, neighbourhood, pairs
from ctxgcd.methods.simgcd import SimGCD, joined
from ctxgcd.methods.step import Batch, Group, Look, Losses, Plan, Rows
from ctxgcd.models.network import Network, Outputs


class Full(SimGCD):
    """L_baseline + lambda_n * L_n + lambda_c * L_c, the last two from epoch T_warm + context_delay on.

    `paper` follows the equations, `released` the released code (its L_n trains nothing), and `mended` is the
    released form without its defects. `context_terms` are the computed terms: an ablated term is not computed, a term
    of weight 0 is computed and logged but has no effect.
    """

    def __init__(self, parameters: dict[str, Any]) -> None:
        super().__init__(parameters)
        self.start = parameters["T_warm"] + parameters["context_delay"]
        self.variant = {"paper": self.paper, "released": self.released, "mended": self.mended}[parameters["variant"]]

    def terms(self) -> dict[str, int]:
        return super().terms() | dict.fromkeys(self.p["context_terms"], self.start)

    def weights(self, batch: Batch) -> dict[str, float]:
        lambda_n, lambda_c = (self.p.get(name, 0.0) for name in ("lambda_n", "lambda_c"))  # missing if ablated
        context = {"L_n": lambda_n, "L_c": lambda_c}
        return super().weights(batch) | {term: context[term] for term in self.p["context_terms"]}

    def before_epoch(self, network: Network, look: Look) -> Plan:
        """Return the steps; from epoch `start` on, each has a second group with the neighbours of random queries.

        With `loss_group`, each group has its own queries, which are distinct within the group.
        """
        plan = super().before_epoch(network, look)
        if look.epoch < self.start:
            return plan
        k, over_dataset = self.p["k"], self.p["reciprocal"] == "dataset"
        lists = self.neighbour_lists(look).cpu()
        queries, drawn = self.p["neighbour_images"] // k, look.stream("queries")
        steps = []
        for step in plan.steps:
            batches = [query_batch(lists[:, : k - 1], queries, drawn) for _ in range(self.loss_groups)]
            around = Group(torch.cat(batches))
            groups = {"sampled": step["sampled"], "neighbours": around}
            if over_dataset:
                groups = {name: Group(group.ids, {"nearest": lists[group.ids]}) for name, group in groups.items()}
            steps.append(groups)
        return replace(plan, steps=steps)

    def neighbour_lists(self, look: Look) -> Tensor:
        """Return each training image's nearest other images, int64 [N, k - 1], or [N, k] for N_k over the dataset.

        `paper`: by cosine of the test view's features. `released`: by Euclidean distance of the raw features of one
        train view; the image itself is one of the k, so there are k - 1 others.
        """
        k, images = self.p["k"], torch.arange(len(look.labels), device=look.labels.device)
        if self.p["neighbour_lists"] == "released":
            features = look.train_features(images, look.stream("neighbour_lists"))
            return look.nearest(features, k - 1, euclidean=True)
        features = normalize(look.features(images), dim=1)
        return look.nearest(features, k if self.p["reciprocal"] == "dataset" else k - 1)

    def losses(self, network: Network, batch: Batch) -> Losses:
        if "neighbours" not in batch.groups:
            return super().losses(network, batch)
        sampled, context = self.variant(network, batch)
        return Losses(self.baseline(sampled, batch) | context)

    def paper(self, network: Network, batch: Batch) -> tuple[Outputs, dict[str, Tensor]]:
        """Return both terms on both views of all q * k + M images, with L2-normalised projections."""
        p, around = self.p, batch.groups["neighbours"]
        sampled, images = len(batch.sampled.ids), len(batch.sampled.ids) + len(around.ids)
        out = network(joined(batch.sampled.views, around.views))
        z, pseudo = normalize(out.projections, dim=1), out.logits.detach().argmax(dim=1)
        terms = {}
        if "L_n" in p["context_terms"]:
            same = self.same_context(pairs.mutual_same_label, z, pseudo, batch.sampled, around)
            terms["L_n"] = neighbourhood.paper(z, same, p["delta"])
        if "L_c" in p["context_terms"]:
            terms["L_c"] = cluster.paper(z[:images], z[images:], pseudo[:images], pseudo[images:], p["K"], p["tau"])
        of_sampler = torch.arange(sampled, device=z.device)
        return out[torch.cat([of_sampler, of_sampler + images])], terms

    def released(self, network: Network, batch: Batch) -> tuple[Outputs, dict[str, Tensor]]:
        """Return L_n on the neighbour images, without gradient, and L_c on the sampled images."""
        p, out, terms = self.p, network(batch.sampled.views), {}
        if "L_n" in p["context_terms"]:
            with torch.no_grad():
                around = network(batch.groups["neighbours"].views)
                same = pairs.released_pairs(around.projections, around.logits.argmax(dim=1), p["k"])
                terms["L_n"] = neighbourhood.released(around.projections, same, p["delta"])
        return out, terms | self.released_cluster(out)

    def mended(self, network: Network, batch: Batch) -> tuple[Outputs, dict[str, Tensor]]:
        """Return the released terms, but L_n with gradient, nearest rows, both directions and the labels of i and j."""
        p, sampled, neighbours = self.p, len(batch.sampled.views), batch.groups["neighbours"]
        out = network(torch.cat([batch.sampled.views, neighbours.views]))
        own, around, terms = out[:sampled], out[sampled:], {}
        if "L_n" in p["context_terms"]:
            pseudo = around.logits.detach().argmax(dim=1)
            same = self.same_context(pairs.mended_pairs, around.projections, pseudo, neighbours)
            terms["L_n"] = neighbourhood.mended(around.projections, same, p["delta"])
        return own, terms | self.released_cluster(own)

    def released_cluster(self, out: Outputs) -> dict[str, Tensor]:
        """Return L_c as released: raw projections of the sampled images, view 1's pseudo labels for both views."""
        if "L_c" not in self.p["context_terms"]:
            return {}
        images = len(out.logits) // 2
        pseudo = out.logits[:images].detach().argmax(dim=1)
        view_1, view_2 = out.projections[:images], out.projections[images:]
        return {"L_c": cluster.released(view_1, view_2, pseudo, self.p["K"], self.p["tau"])}

    def same_context(self, over_batch: Any, rows: Tensor, pseudo: Tensor, *groups: Rows) -> Tensor:
        """Return s_ij for the rows of both views of these groups, with neighbours from the batch or the dataset."""
        if self.p["reciprocal"] == "batch":
            return over_batch(rows, pseudo, self.p["k"])
        ids, nearest = (torch.cat(parts) for parts in zip(*((g.ids, g.given["nearest"]) for g in groups), strict=True))
        return pairs.mutual_over_dataset(nearest.repeat(2, 1), ids.repeat(2), pseudo)
