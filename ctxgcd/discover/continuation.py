"""Continuation of a discovery: the order of its classes, starting weights, and the division of its New classes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import normalize

from ctxgcd.clustering.semi_kmeans import lloyd, nearest_centre
from ctxgcd.discover.model import Model
from ctxgcd.methods.by_classifier import CHUNK, ByClassifier
from ctxgcd.methods.method import Discovery
from ctxgcd.methods.simgcd import SimGCD
from ctxgcd.methods.step import Look
from ctxgcd.models.network import Network

ITERATIONS = 200  # of the division of New classes


@dataclass(frozen=True)
class Start:
    """Where a continued training starts.

    Attributes:
        model: the earlier model.
        rows: for each class, the classes of the earlier model that it continues; none for one made by hand or added.
        known: number of classes of the labels, which are the first ones.
        before: int64 [N], the class that each training image had, -1 if it had none.
    """

    model: Model
    rows: Sequence[Sequence[int]]
    known: int
    before: Tensor

    @torch.no_grad()
    def load_into(self, network: Network, look: Look) -> None:
        """Set the weights of the network to those of the earlier model, and its classes to those that they continue.

        A New class starts at its centre, if k-means divided the New classes; several that were merged at their mean; a
        class made by hand at the mean feature of its images.
        """
        earlier, own = self.model.network.state_dict(), network.state_dict()
        directions = earlier["classifier.direction"].to(look.labels.device)
        length = directions.norm(dim=1).mean()
        units = normalize(directions, dim=1)
        if (centres := self.model.network.centres) is not None:
            units = torch.cat([units[: -len(centres)], centres.to(units.device)])
        network.load_state_dict(earlier | {"classifier.direction": own["classifier.direction"]})
        rows = network.classifier.direction
        for number, of in enumerate(self.rows):
            ids = (look.labels == number).nonzero()[:, 0]
            if of:
                rows[number] = length * normalize(units[list(of)].mean(dim=0), dim=0)
            elif len(ids):
                rows[number] = length * normalize(normalize(look.features(ids), dim=1).mean(dim=0), dim=0)

    @torch.no_grad()
    def divided(self, features: Callable[[Tensor], Tensor], labels: Tensor, unlabelled: Tensor) -> Tensor:
        """Return the L2-normalised centres of the New classes, which continue the earlier ones.

        Lloyd's algorithm from the mean features of the images that each class had; labelled images keep their class,
        and a class without images starts at the image farthest from all centres.

        Args:
            features: ids int64 [n] -> float32 [n, d].
            labels: int64 [N], -1 for unlabelled images.
            unlabelled: the ids of the images that the classifier assigns to New classes.
        """
        pinned = (labels >= self.known).nonzero()[:, 0]
        every = torch.arange(len(labels), device=labels.device)
        rows = torch.cat([normalize(features(part), dim=1) for part in every.split(CHUNK)])
        had = torch.where(labels >= 0, labels, self.before.to(labels.device))
        centres = rows.new_zeros(len(self.rows) - self.known, rows.shape[1])
        absent = []
        for number in range(len(centres)):
            members = rows[had == self.known + number]
            if len(members):
                centres[number] = members.mean(dim=0)
            else:
                absent.append(number)
        there = [number for number in range(len(centres)) if number not in absent]
        for number in absent:
            apart = nearest_centre(rows[unlabelled], centres[there])[1] if there else rows.new_ones(len(unlabelled))
            centres[number] = rows[unlabelled[apart.argmax()]]
            there.append(number)
        ids = torch.cat([unlabelled, pinned])
        own = torch.cat([torch.full_like(unlabelled, -1), labels[pinned] - self.known])
        return normalize(lloyd(rows[ids], own, centres, ITERATIONS)[2], dim=1)


def continued(method: SimGCD, start: Start) -> SimGCD:
    """Return the method with other starting weights, and New classes that continue the earlier ones."""

    class Continued(type(method)):  # type: ignore[misc]
        def prepare(self, network: Any, look: Look) -> None:
            super().prepare(network, look)
            start.load_into(network, look)

        def discover(
            self,
            network: Network,
            features: Callable[[Tensor], Tensor],
            labels: Tensor,
            unlabelled: Tensor,
            test: Tensor,
        ) -> Discovery:
            found = ByClassifier.discover(self, network, features, labels, unlabelled, test)
            new = unlabelled[found.unlabelled >= start.known]
            classes = self.p["K"] - start.known
            if self.p["new_by"] == "classifier" or not classes or len(new) < classes:
                return found
            network.centres = start.divided(features, labels, new)
            found = ByClassifier.discover(self, network, features, labels, unlabelled, test)
            return replace(found, found={"centres": network.centres.cpu()})

    return Continued(method.p)


def order_of(alive: Sequence[str], of_labels: Sequence[str], corrected: Mapping[str, str]) -> list[str]:
    """Return the classes (keys) of a continued discovery by index.

    First those of the file of labels, then others with a corrected image, because labelled classes have the first
    indices, then all others.

    Args:
        alive: the classes in their order so far; of_labels: those of the file of labels, in the order of their names.
        corrected: path -> class of the moved and confirmed images.
    """
    labelled = set(corrected.values())
    others = [key for key in alive if key not in of_labels]
    return [*of_labels, *sorted(others, key=lambda key: key not in labelled)]


def moved(before: Mapping[str, str], after: Mapping[str, str], by_hand: Collection[str]) -> Counter[tuple[str, str]]:
    """Return the number of images that moved from one class to another, by both classes.

    before, after: path -> class; images of by_hand and images that are only in one of them do not count.
    """
    pairs = ((before[path], key) for path, key in after.items() if path in before and path not in by_hand)
    return Counter(pair for pair in pairs if pair[0] != pair[1])
