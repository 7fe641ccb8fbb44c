"""XCon (BMVC 2022): contrast inside subsets of similar images (docs/methods.md, "Compared methods")."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import normalize

from ctxgcd.clustering.kmeans import kmeans
from ctxgcd.errors import UserError
from ctxgcd.images.sampler import draw_steps
from ctxgcd.methods.by_semi_kmeans import BySemiKMeans
from ctxgcd.methods.step import Batch, Group, Look, Losses, Plan, means
from ctxgcd.models.heads import DinoHead
from ctxgcd.models.network import TailNetwork
from ctxgcd.utils.seeding import generator


class XConNetwork(TailNetwork):
    """Tail, a DINO head for all images, which starts as GCD's, and one for each subset.

    `partition` int64 [N] is the subset of each training image, empty until it is known.
    """

    partition: Tensor

    def __init__(self, p: Mapping[str, Any], tail: nn.Module, dim: int) -> None:
        super().__init__(tail)
        stream, sizes = generator(p["seed"], "heads"), (p["projector_width"], p["projection_dim"], p["head_dim"])
        self.projector = DinoHead(dim, *sizes, generator=stream)
        self.experts = nn.ModuleList(DinoHead(dim, *sizes, generator=stream) for _ in range(p["experts"]))
        self.register_buffer("partition", torch.empty(0, dtype=torch.int64))


class XCon(BySemiKMeans):
    """L_rep on all images and, with a head of its own, inside each subset of a k-means of the frozen features.

    The images are divided once, before epoch 0. A step has a batch of all images and one of each subset.
    """

    logged = ("smallest_subset", "median_subset", "largest_subset")
    decays_all = True

    def network(self, tail: nn.Module, dim: int, old_classes: int) -> XConNetwork:
        return XConNetwork(self.p, tail, dim)

    def prepare(self, network: XConNetwork, look: Look) -> None:
        p = self.p
        every = torch.arange(len(look.labels), device=look.labels.device)
        rows = normalize(look.features(every), dim=1).cpu().numpy()  # the tail has not been trained yet
        # One thread: the same subsets in every process.
        found, _ = kmeans(rows, p["experts"], restarts=p["partition_restarts"], seed=p["partition_seed"], threads=1)
        network.partition = torch.from_numpy(found).to(every.device)
        if empty := int((self._sizes(network) == 0).sum()):
            raise UserError(
                f"benchmark {p['benchmark']}, row {p['row']}: {empty} of the {p['experts']} subsets are empty, because "
                "too few images have different features; give fewer experts"
            )

    def before_epoch(self, network: XConNetwork, look: Look) -> Plan:
        p, labelled, partition = self.p, look.labels.cpu() >= 0, network.partition.cpu()
        sizes = self._sizes(network)
        steps = len(labelled) // p["batch_size"]
        if p["steps"] == "released":
            steps = max(steps, int(sizes.max()) // p["expert_batch"])
        sampled, stream = draw_steps(labelled, p["batch_size"], steps, look.stream("sampler")), look.stream("experts")
        subsets = [(partition == subset).nonzero()[:, 0] for subset in range(p["experts"])]
        drawn = [ids[draw_steps(labelled[ids], p["expert_batch"], steps, stream)] for ids in subsets]
        # [steps, groups of losses, subsets, images], so that each group has images of every subset.
        experts = torch.stack(drawn, dim=1).unflatten(2, (self.loss_groups, -1)).transpose(1, 2).flatten(1)
        plan = [{"sampled": Group(own), "experts": Group(of)} for own, of in zip(sampled, experts, strict=True)]
        numbers = (int(sizes.min()), int(sizes.median()), int(sizes.max()))
        return Plan(plan, logged=dict(zip(self.logged, numbers, strict=True)))

    def terms(self) -> dict[str, int]:
        return {"info_nce": 0, "sup_con": 0, "expert_info_nce": 0, "expert_sup_con": 0}

    def weights(self, batch: Batch) -> dict[str, float]:
        own = self.representation_weights()
        return own | {f"expert_{name}": self.p["expert_weight"] * weight for name, weight in own.items()}

    def losses(self, network: XConNetwork, batch: Batch) -> Losses:
        of_all, rows = batch.sampled, batch.groups["experts"]
        terms = self.representation(network.projector(network.tail(of_all.views)), of_all.labels)
        # [subsets, views * images, d] and [subsets, images]
        views = network.tail(rows.views).unflatten(0, (2, self.p["experts"], -1)).transpose(0, 1).flatten(1, 2)
        labels = rows.labels.unflatten(0, (self.p["experts"], -1))
        of_experts = [
            self.representation(head(features), own)
            for head, features, own in zip(network.experts, views, labels, strict=True)
        ]
        return Losses({**terms, **{f"expert_{name}": value for name, value in means(of_experts).items()}})

    def idle(self, history: Sequence[Mapping[str, Any]]) -> str:
        alone = all(row["median_subset"] < 2 for row in history)
        return "most of the subsets had a single image, which has nothing to be contrasted with" if alone else ""

    def _sizes(self, network: XConNetwork) -> Tensor:
        return network.partition.cpu().bincount(minlength=self.p["experts"])
