"""PromptCAL (CVPR 2023): prompts in all blocks, then a teacher, memories and affine pairs (docs/methods.md)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import deepcopy
from typing import Any, Self

import torch
from torch import Tensor, nn
from torch.nn.functional import normalize

from ctxgcd.losses.affinity import affine_pairs, affinity, drawn_negatives, with_labels
from ctxgcd.losses.info_nce import info_nce
from ctxgcd.losses.sup_con import sup_con
from ctxgcd.methods.by_semi_kmeans import BySemiKMeans
from ctxgcd.methods.method import Method
from ctxgcd.methods.step import Batch, Look, Losses
from ctxgcd.models.backbone import Backbone
from ctxgcd.models.heads import DinoHead
from ctxgcd.models.network import TailNetwork
from ctxgcd.models.prompts import prompted
from ctxgcd.utils.seeding import generator

PARTS = ("", "prompt_")  # prefixes of the terms on the CLS row and on the mean of the prompt rows


def affinity_share(step: int, steps: int, share: float, epochs: int) -> float:
    """Return the affinity's share of the unsupervised terms: from 0 to `share` over these epochs, then `share`."""
    return share * min(1.0, step / max(1, epochs * steps))


def remember(ring: Tensor, rows: Tensor, added: Tensor) -> None:
    """Write rows [n, ...] into a ring [size, ...], n <= size, to which `added` rows have been added before."""
    ring.index_copy_(0, (added + torch.arange(len(rows), device=rows.device)) % len(ring), rows)


class PromptNetwork(TailNetwork):
    """Prompted tail, a DINO head for each part, a teacher of what trains, and memories of the teacher's features.

    The memories are rings with one row for each view: features of both parts, and labels (-1 for unlabelled images).
    """

    memory: Tensor
    prompt_memory: Tensor
    labels: Tensor
    added: Tensor

    def __init__(self, p: Mapping[str, Any], tail: nn.Module, dim: int) -> None:
        super().__init__(tail)
        self.sizes = (dim, p["projector_width"], p["projection_dim"], p["head_dim"])
        self.projector = DinoHead(*self.sizes, generator=generator(p["seed"], "heads"))
        self.prompt_projector = DinoHead(*self.sizes, generator=generator(p["seed"], "prompt_heads"))
        self.teacher = deepcopy(self.student).requires_grad_(False)
        for name in ("memory", "prompt_memory"):
            self.register_buffer(name, torch.zeros(p["memory_size"], dim))
        self.register_buffer("labels", torch.full((p["memory_size"],), -1))
        self.register_buffer("added", torch.zeros((), dtype=torch.int64))

    @property
    def student(self) -> nn.ModuleList:
        """Return what trains, in the order of the teacher."""
        tail: Any = self.tail
        return nn.ModuleList([tail.trained, self.projector, self.prompt_projector])

    def forward(self, kept: Tensor, of: nn.ModuleList | None = None) -> list[tuple[Tensor, Tensor]]:
        """Return features [n, d] and raw projections [n, p] of each part, for the trunk's output [n, t, d].

        of: the teacher, in place of the student.
        """
        tail: Any = self.tail
        trained, *heads = self.student if of is None else of
        return [(rows, head(rows)) for rows, head in zip(tail.both(kept, trained), heads, strict=True)]

    @torch.no_grad()
    def begin_second_stage(self, drawn: torch.Generator) -> None:
        """Draw the head of the prompts again, and copy the student to the teacher."""
        self.prompt_projector.load_state_dict(DinoHead(*self.sizes, generator=drawn).state_dict())
        self.teacher.load_state_dict(self.student.state_dict())

    @torch.no_grad()
    def follow(self, share: float) -> None:
        """Move the teacher by this share of the way to the student."""
        for of_teacher, own in zip(self.teacher.parameters(), self.student.parameters(), strict=True):
            of_teacher.lerp_(own, share)

    def train(self, mode: bool = True) -> Self:
        super().train(mode)
        self.teacher.eval()
        return self


class FirstStage(BySemiKMeans):
    """L_rep on the CLS row and, weighted, on the mean of the first prompt rows."""

    decays_all = True

    def cut(self, net: nn.Module) -> Backbone:
        p = self.p
        stream = generator(p["seed"], "prompts")
        return prompted(net, p["tail_blocks"], p["prompts"], p["used_prompts"], generator=stream)

    def network(self, tail: nn.Module, dim: int, old_classes: int) -> PromptNetwork:
        return PromptNetwork(self.p, tail, dim)

    def terms(self) -> dict[str, int]:
        return dict.fromkeys((f"{part}{term}" for part in PARTS for term in ("info_nce", "sup_con")), 0)

    def weights(self, batch: Batch) -> dict[str, float]:
        of_part = dict(zip(PARTS, (1.0, self.p["prompt_weight"]), strict=True))
        usual = self.representation_weights()
        return {f"{part}{term}": usual[term] * weight for part, weight in of_part.items() for term in usual}

    def losses(self, network: PromptNetwork, batch: Batch) -> Losses:
        labels = batch.sampled.labels
        terms: dict[str, Tensor] = {}
        for part, (_, projections) in zip(PARTS, network(batch.sampled.views), strict=True):
            terms |= {f"{part}{term}": value for term, value in self.representation(projections, labels).items()}
        return Losses(terms)


class PromptCAL(FirstStage):
    """The second stage: L_rep against a teacher's rows, and affine pairs of rows and a memory as positives.

    `positive`: the teacher's row that is each row's first positive: of the `other_view`, or for the CLS row of the same
    view, as in the `released` code.
    """

    logged = tuple(f"{part}affine_pairs" for part in PARTS)

    def stage(self) -> Method:
        return FirstStage(self.p | {"epochs": self.p["stage_epochs"]})

    def prepare(self, network: PromptNetwork, look: Look) -> None:
        network.begin_second_stage(generator(self.p["seed"], "prompt_heads", 1))

    def terms(self) -> dict[str, int]:
        return dict.fromkeys((f"{part}{term}" for part in PARTS for term in ("info_nce", "sup_con", "affinity")), 0)

    def weights(self, batch: Batch) -> dict[str, float]:
        step = batch.epoch * batch.steps + batch.step
        share = affinity_share(step, batch.steps, self.p["affinity_share"], self.p["ramp_epochs"])
        found = {}
        for name, weight in super().weights(batch).items():
            unsupervised = name.endswith("info_nce")
            found[name] = weight * (1 - share) if unsupervised else weight
            found |= {name.replace("info_nce", "affinity"): weight * share} if unsupervised else {}
        return found

    def losses(self, network: PromptNetwork, batch: Batch) -> Losses:
        p, labels, views = self.p, batch.sampled.labels.repeat(2), batch.sampled.views
        own = network(views)
        with torch.no_grad():
            teacher = network(views, network.teacher)
        terms: dict[str, Tensor] = {}
        logged: dict[str, Tensor] = {}
        kept: dict[str, Tensor] = {"labels": labels}
        images, added = len(batch.sampled.ids), 2 * p["batch_size"] * (batch.epoch * batch.steps + batch.step)
        of_memory = network.labels[: (filled := min(added, len(network.labels)))]
        memories = (network.memory[:filled], network.prompt_memory[:filled])
        for part, (rows, projections), (of_teacher, candidates), memory in zip(
            PARTS, own, teacher, memories, strict=True
        ):
            z = normalize(of_teacher.float(), dim=1)
            other = z.roll(images, dims=0)
            affine = affine_pairs(other, memory, p["neighbours"], p["quantile"])
            drawn = torch.rand(affine.shape, generator=batch.stream(f"{part}negatives"))
            negatives = drawn_negatives(affine, p["negatives"], drawn.to(z.device, non_blocking=True))
            pairs = with_labels(affine, negatives, labels, of_memory)
            first = z if part == "" and p["positive"] == "released" else other
            terms |= {
                f"{part}info_nce": info_nce(projections, p["info_nce_temperature"], candidates),
                f"{part}sup_con": sup_con(
                    projections, batch.sampled.labels, batch.sampled.labels >= 0, p["sup_con_temperature"], candidates
                ),
                f"{part}affinity": affinity(rows, first, memory, *pairs, p["affinity_temperature"]),
            }
            logged[f"{part}affine_pairs"] = affine.sum() / len(z)
            kept[f"{part}memory"] = z
        return Losses(terms, logged, kept)

    def after_step(self, network: PromptNetwork, batch: Batch, kept: Mapping[str, Any]) -> None:
        """Move the teacher, which takes as many moves a step as there are loss groups, and fill the memories."""
        network.follow(1 - self.p["ema"] ** (1 / self.loss_groups))
        for name, rows in kept.items():
            remember(getattr(network, name), rows, network.added)
        network.added += len(kept["labels"])

    def idle(self, history: Sequence[Mapping[str, Any]]) -> str:
        empty = all(row[name] == 0 for row in history for name in self.logged)
        return "no pair of an image and the memory was affine in any epoch" if empty else ""
