"""Data exchanged between the training loop and a method: inputs of a plan, the plan of an epoch, and batches."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from ctxgcd.images.sampler import draw_batches
from ctxgcd.utils.seeding import generator


@dataclass(frozen=True)
class Group:
    """Images of a step with a separate forward pass of the trunk.

    The views of the group `sampled` come one after another from a random stream; in any other group they depend on
    seed, epoch, step, the image and how often it has occurred in such groups of the step.

    Attributes:
        ids: int64 [n] on the host; an image may occur more than once.
        given: further integers passed to the batch, each int64 [n, ...] on the host.
    """

    ids: Tensor
    given: Mapping[str, Tensor] = field(default_factory=dict)


Step = Mapping[str, Group]  # groups by name, in the order of their forward passes


@dataclass(frozen=True)
class Plan:
    """The steps of an epoch.

    Attributes:
        steps: the groups of each step.
        logged: values of this epoch for history.csv that are known before it starts; keys of the method's `logged`.
        fresh_optimiser: whether the state of the optimisers, such as momentum, is reset.
    """

    steps: Sequence[Step]
    logged: Mapping[str, float] = field(default_factory=dict)
    fresh_optimiser: bool = False


@dataclass(frozen=True)
class Look:
    """The data that a method can use before an epoch, without gradients.

    Attributes:
        epoch: counted from 0.
        labels: int64 [N], the class of each training image of D^l, -1 for D^u; on the device.
        features: ids int64 [n] -> float32 [n, dim], the tail's feature of the test view of training or test images.
        train_features: (ids of training images, a stream) -> the same for one new train view.
        nearest: (L2-normalised features float [N, d], k) -> int64 [N, k], the nearest other rows by cosine; with the
            keyword euclidean=True, by the Euclidean distance of any features.
        stream: name -> a generator of this seed and epoch; raises ValueError for a name reserved by the training.
    """

    epoch: int
    labels: Tensor
    features: Callable[[Tensor], Tensor]
    train_features: Callable[[Tensor, torch.Generator], Tensor]
    nearest: Callable[..., Tensor]
    stream: Callable[[str], torch.Generator]

    def sampled(self, batch_size: int) -> list[Step]:
        """Return the default steps: one group `sampled`, about half of it labelled (images/sampler.py)."""
        drawn = draw_batches(self.labels.cpu() >= 0, batch_size, self.stream("sampler"))
        return [{"sampled": Group(ids)} for ids in drawn]


@dataclass(frozen=True)
class Rows:
    """A group in a batch, on the device.

    Attributes:
        views: the trunk's output for two train views of the n images [2n, ...], view 1's rows then view 2's.
        ids, labels: int64 [n]; the label is -1 for an unlabelled image.
        given: as in the plan.
    """

    views: Tensor
    ids: Tensor
    labels: Tensor
    given: Mapping[str, Tensor] = field(default_factory=dict)

    def parts(self, count: int) -> list[Rows]:
        """Divide the images into `count` equal parts in their order; part i has both views of its images."""
        size = len(self.ids) // count
        both = self.views.unflatten(0, (2, -1))
        return [
            Rows(
                both[:, part].flatten(0, 1),
                self.ids[part],
                self.labels[part],
                {name: value[part] for name, value in self.given.items()},
            )
            for part in (slice(i * size, (i + 1) * size) for i in range(count))
        ]


@dataclass(frozen=True)
class Batch:
    """The input of a step: groups by name, the numbers of step and epoch, and random streams.

    streams: prefix of the names of random streams, which differs between a stage and the training after it.
    """

    groups: Mapping[str, Rows]
    epoch: int = 0
    step: int = 0
    steps: int = 1
    seed: int = 0
    streams: str = ""

    @property
    def sampled(self) -> Rows:
        return self.groups["sampled"]

    def parts(self, count: int) -> list[Batch]:
        """Divide every group of images into `count` equal parts in their order; part i has both views of its images.

        Each part has its own random streams. A single part is the batch itself.
        """
        if count == 1:
            return [self]
        divided = {name: rows.parts(count) for name, rows in self.groups.items()}
        return [
            replace(self, groups={name: parts[i] for name, parts in divided.items()}, streams=f"{self.streams}part{i}/")
            for i in range(count)
        ]

    def stream(self, name: str) -> torch.Generator:
        """Return a generator of seed, name, epoch and step; a second evaluation draws the same numbers."""
        return generator(self.seed, f"{self.streams}{name}/{self.step}", self.epoch)


@dataclass(frozen=True)
class Losses:
    """The return value of `Method.losses`.

    Attributes:
        terms: scalars by name, in the order in which their weighted sum is formed.
        logged: further scalars for history.csv, averaged over the steps of an epoch.
        kept: detached tensors for `Method.after_step`.
    """

    terms: Mapping[str, Tensor]
    logged: Mapping[str, Tensor] = field(default_factory=dict)
    kept: Mapping[str, Any] = field(default_factory=dict)


def means(parts: Sequence[Mapping[str, Tensor]]) -> Mapping[str, Tensor]:
    """Return the mean over the parts of each scalar; with one part, its scalars themselves."""
    if len(parts) == 1:
        return parts[0]
    return {name: torch.stack([part[name] for part in parts]).mean() for name in parts[0]}


def weighted(terms: Mapping[str, Tensor], weights: Mapping[str, float]) -> Tensor:
    """Return the loss, the weighted sum of the terms."""
    loss = sum(weights[name] * value for name, value in terms.items())
    assert isinstance(loss, Tensor)
    return loss
