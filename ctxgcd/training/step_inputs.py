"""The inputs of training steps: image ids, their views and the trunk's outputs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from torch import Tensor

from ctxgcd.clustering.neighbours import nearest
from ctxgcd.methods.step import Batch, Group, Look, Plan, Rows
from ctxgcd.models.precision import computing
from ctxgcd.training.processes import ALONE, Processes
from ctxgcd.training.views import BATCH, Views, sent
from ctxgcd.utils.progress import Progress
from ctxgcd.utils.seeding import Counted, Draws, Stream, generator

RESERVED = ("views", "counted_views", "heads", "view_bank", "semi_kmeans")  # streams of the training itself
PATIENCE = 10.0  # seconds before the progress of a search is printed

R = TypeVar("R")


@dataclass
class StepInputs:
    """The training images as the steps of one or several rows see them.

    Attributes:
        labels: int64 [N] on the device, the class of each image of D^l, and -1 for D^u, whose labels are never used.
        streams: prefix of the names of random streams.
    """

    views: Views
    labels: Tensor
    precision: str
    seed: int
    processes: Processes = ALONE
    streams: str = ""

    @property
    def old_classes(self) -> int:
        return int(self.labels.max()) + 1

    def look(self, network: Any, epoch: int, known: Tensor | None = None) -> Look:
        """Return the data that a method can use before an epoch.

        known: the features of all training images, if they have been computed.
        """
        return Look(
            epoch,
            self.labels,
            features=lambda ids: self.features(network, ids) if known is None else known[ids],
            train_features=lambda ids, stream: self.train_features(network, ids, stream),
            nearest=self.nearest_lists,
            stream=lambda name: self._stream(name, epoch),
        )

    def batches(self, plans: Mapping[R, Plan], epoch: int) -> Iterator[tuple[R, Batch]]:
        """Yield the steps of the plans of rows: in each step, the batch of each row.

        The trunk runs once in a step, over all views of its groups. The views of `sampled` are drawn in order from the
        stream `views` of each row, those of other groups by counter. A row that is removed from `plans` has no further
        steps.
        """
        sampled = {row: Stream(generator(self.seed, f"{self.streams}views", epoch)) for row in plans}
        for number in range(max((len(plan.steps) for plan in plans.values()), default=0)):
            steps = {row: plan.steps[number] for row, plan in plans.items() if number < len(plan.steps)}
            asked: list[tuple[Tensor, Draws]] = []
            for row, step in steps.items():
                others = [name for name in step if name != "sampled"]
                ids = [step[name].ids for name in others]
                counted = Counted.of_step(ids, self.seed, f"{self.streams}counted_views", epoch, number)
                drawn: dict[str, Draws] = {"sampled": sampled[row], **dict(zip(others, counted, strict=True))}
                asked += [(group.ids, drawn[name]) for name, group in step.items()]
            pairs = self.views.pairs(asked, self.labels.device)
            for row, step in steps.items():
                groups = {name: self._rows(group, next(pairs)) for name, group in step.items()}
                yield row, Batch(groups, epoch, number, len(plans[row].steps), self.seed, self.streams)

    def features(self, network: Any, ids: Tensor) -> Tensor:
        """Return the tail's features of the test view of at least one image, float32 [n, dim]."""
        return self.features_of([network], ids)[0]

    @torch.no_grad()
    def features_of(self, networks: Sequence[Any], ids: Tensor) -> list[Tensor]:
        """Return the features of `features` for each network, with one forward pass of the trunk."""
        for network in networks:
            network.eval()
        own = ids[self.processes.share(len(ids))]
        parts: list[list[Tensor]] = [[] for _ in networks]
        for part in own.split(BATCH):
            views = self.views.test(part)
            with computing(self.precision, ids.device):
                for rows, network in zip(parts, networks, strict=True):
                    rows.append(network.tail(views).float())
        return [self.processes.gather(torch.cat(rows), len(ids)) for rows in parts]

    @torch.no_grad()
    def train_features(self, network: Any, ids: Tensor, stream: torch.Generator) -> Tensor:
        """Return the tail's features of one train view, drawn from a stream."""
        network.eval()
        drawn = Stream(stream)
        with computing(self.precision, ids.device):
            return torch.cat([network.tail(self.views.train(part, drawn)).float() for part in ids.split(BATCH)])

    def _stream(self, name: str, epoch: int) -> torch.Generator:
        if name in RESERVED or "/" in name:
            raise ValueError(f"{name!r} is a reserved stream; give a name without / other than {RESERVED}")
        return generator(self.seed, self.streams + name, epoch)

    def _rows(self, group: Group, views: Tensor) -> Rows:
        device = self.labels.device
        ids, given = sent(group.ids, device), {name: sent(value, device) for name, value in group.given.items()}
        return Rows(views, ids, self.labels[ids], given)

    def nearest_lists(self, features: Tensor, k: int, *, euclidean: bool = False) -> Tensor:
        """The k nearest other rows of every row of features, int64 [N, k]; the processes share the rows."""
        images = len(features)
        own = self.processes.share(images)
        progress = Progress("neighbours", own.stop - own.start, after=PATIENCE)
        return self.processes.gather(nearest(features, k, own, report=progress.add, euclidean=euclidean), images)
