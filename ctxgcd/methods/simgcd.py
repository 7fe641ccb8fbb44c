"""SimGCD (ICCV 2023), as its released code computes it: the baseline loss (docs/methods.md)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor, nn
from torch.nn.functional import normalize

from ctxgcd.clustering.kmeans import kmeans
from ctxgcd.losses.cross_entropy import cross_entropy
from ctxgcd.losses.distill import distill
from ctxgcd.losses.entropy import entropy_gap
from ctxgcd.methods.by_classifier import CHUNK, ByClassifier
from ctxgcd.methods.method import Discovery
from ctxgcd.methods.schedules import teacher_temperature
from ctxgcd.methods.step import Batch, Look, Losses, Plan
from ctxgcd.models.network import Network, Outputs

RESTARTS = 10  # of the k-means that divides New classes


class SimGCD(ByClassifier):
    """Tail and heads trained with L_rep + L_cls; the classifier's argmax is the class.

    With `new_by: kmeans`, the images that it assigns to New classes are divided by k-means of their trained features.
    """

    logged = ("teacher_temperature",)

    def network(self, tail: nn.Module, dim: int, old_classes: int) -> Network:
        p = self.p
        return Network(tail, dim, p["K"], p["projector_width"], p["projection_dim"], p["seed"])

    def before_epoch(self, network: Network, look: Look) -> Plan:
        logged = {"teacher_temperature": self.teacher_temperature(look.epoch)}
        return replace(super().before_epoch(network, look), logged=logged)

    def terms(self) -> dict[str, int]:
        return dict.fromkeys(("info_nce", "sup_con", "distill", "entropy", "cls"), 0)

    def weights(self, batch: Batch) -> dict[str, float]:
        supervised_weight, entropy_weight = self.p["supervised_weight"], self.p["entropy_weight"]
        return {
            **self.representation_weights(),
            "distill": 1 - supervised_weight,
            "entropy": (1 - supervised_weight) * entropy_weight,
            "cls": supervised_weight,
        }

    def losses(self, network: Network, batch: Batch) -> Losses:
        return Losses(self.baseline(network(batch.sampled.views), batch))

    def baseline(self, out: Outputs, batch: Batch) -> dict[str, Tensor]:
        """Return the terms of L_baseline; out: outputs for the two views of the sampled images, 2M rows."""
        labels, student = batch.sampled.labels, self.p["student_temperature"]
        return self.representation(out.projections, labels) | {
            "distill": distill(out.logits, self.teacher_temperature(batch.epoch), student),
            "entropy": entropy_gap(out.logits, student),
            "cls": cross_entropy(out.logits, labels, labels >= 0, student),
        }

    def discover(
        self, network: Network, features: Callable[[Tensor], Tensor], labels: Tensor, unlabelled: Tensor, test: Tensor
    ) -> Discovery:
        found = super().discover(network, features, labels, unlabelled, test)
        if self.p["new_by"] == "classifier":
            return found
        old = int(labels.max()) + 1
        new = unlabelled[found.unlabelled >= old]
        if len(new) < (classes := self.p["K"] - old):
            print(f"note: the classifier divides the New classes, because it assigns only {len(new)} images to them")
            return found
        rows = torch.cat([normalize(features(part), dim=1) for part in new.split(CHUNK)]).cpu().numpy()
        _, centres = kmeans(rows, classes, restarts=RESTARTS, seed=self.p["seed"], threads=self.p["threads"])
        network.centres = normalize(torch.from_numpy(centres).to(labels.device), dim=1)
        found = super().discover(network, features, labels, unlabelled, test)
        return replace(found, found={"centres": network.centres.cpu()})

    def teacher_temperature(self, epoch: int) -> float:
        p = self.p
        start, end = p["teacher_temperature_start"], p["teacher_temperature_end"]
        return teacher_temperature(epoch, p["teacher_warmup_epochs"], start, end, p["teacher_schedule"])


def joined(*parts: Tensor) -> Tensor:
    """Join two-view row blocks [2a, ...], [2b, ...] into one: view 1's a + b rows, then view 2's."""
    halves = [part.chunk(2) for part in parts]
    return torch.cat([half[0] for half in halves] + [half[1] for half in halves])
