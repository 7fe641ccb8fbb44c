"""The interface of methods: network, plan of an epoch, loss terms and predictions."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.functional import normalize

from ctxgcd.losses.info_nce import info_nce
from ctxgcd.losses.sup_con import sup_con
from ctxgcd.methods.optimiser import parameter_groups
from ctxgcd.methods.schedules import cosine_lr
from ctxgcd.methods.step import Batch, Look, Losses, Plan
from ctxgcd.models import backbone
from ctxgcd.models.backbone import Backbone
from ctxgcd.models.network import TailNetwork


@dataclass(frozen=True)
class Discovery:
    """Predicted class ids int64 of D^u and the test part, and tensors used for them that are not in the network."""

    unlabelled: Tensor
    test: Tensor
    found: dict[str, Tensor]


class Clustering(Protocol):
    """A method without training that clusters frozen features."""

    def cluster(
        self,
        unlabelled: NDArray[np.floating],
        test: NDArray[np.floating],
        labelled: NDArray[np.floating],
        labels: NDArray[np.int64],
    ) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.floating]]:
        """Return clusters of D^u and the test part from their frozen features [n, d], and the centres [K, d].

        labelled, labels: frozen features [n, d] and classes of D^l, for methods that use them.
        """
        ...


class Method(ABC):
    """A method that trains the tail and its heads; `p` holds the run's resolved parameters.

    State that outlives an epoch is stored in the network, as buffers or frozen submodules that exist from the start, so
    that the checkpoint, a resumed run and final.pt contain it; what `before_epoch` recomputes may be a
    non-persistent buffer. `losses` and the backward pass change no state except running statistics of heads, because
    the sizes of the terms are measured by additional backward passes.
    """

    logged: ClassVar[tuple[str, ...]] = ()  # further columns of history.csv
    decays_all: ClassVar[bool] = False  # whether biases and 1-d parameters have weight decay

    def __init__(self, parameters: dict[str, Any]) -> None:
        self.p = parameters

    # -- before the training ---------------------------------------------------------------------------------

    def cut(self, net: nn.Module) -> Backbone:
        """Return the frozen trunk and the tail (last blocks or an adapter), whose parameters have requires_grad set.

        net: the timm model, frozen. A method that overrides `cut` cannot use cached views, which depend on this cut.
        """
        return backbone.adapted(net) if self.p["tail"] == "adapter" else backbone.cut(net, self.p["tail_blocks"])

    @abstractmethod
    def network(self, tail: nn.Module, dim: int, old_classes: int) -> TailNetwork:
        """Return the tail with this method's heads; dim: dimension of the tail's features."""

    def stage(self) -> Method | None:
        """Return a method that trains the same network before epoch 0, with its own epochs and checkpoint."""
        return None

    def prepare(self, network: Any, look: Look) -> None:
        """Change values of parameters and buffers once, after the stage and before epoch 0, not when a run resumes.

        It must not add, remove or freeze parameters; these are defined by `cut` and `network`. A buffer whose size
        depends on the number of training images is made empty by `network` and gets its size here.
        """

    def optimisers(self, network: TailNetwork) -> list[torch.optim.Optimizer]:
        """Return the optimisers, which all take every step; also called when a run resumes, with the saved network."""
        named = list(network.named_parameters())
        tail = [(name, parameter) for name, parameter in named if name.startswith("tail.")]
        heads = [(name, parameter) for name, parameter in named if not name.startswith("tail.")]
        groups = [
            {**group, "factor": factor}
            for part, factor in ((tail, self.p["tail_lr_factor"]), (heads, 1.0))
            for group in parameter_groups(part, self.p["weight_decay"], self.decays_all)
        ]
        return [torch.optim.SGD(groups, lr=self.p["lr"], momentum=self.p["momentum"], fused=True)]

    # -- an epoch --------------------------------------------------------------------------------------------

    def learning_rate(self, epoch: int) -> float:
        """Return the learning rate of an epoch, a column of history.csv."""
        return cosine_lr(epoch, self.p["epochs"], self.p["lr"], self.p["lr_floor"])

    def schedule(self, optimisers: Sequence[torch.optim.Optimizer], epoch: int) -> None:
        """Update the parameter groups before an epoch: set `lr` to `learning_rate` times the group's `factor`.

        Groups without a `factor` are not changed.
        """
        for group in (group for optimiser in optimisers for group in optimiser.param_groups):
            if "factor" in group:
                group["lr"] = self.learning_rate(epoch) * group["factor"]

    def before_epoch(self, network: Any, look: Look) -> Plan:
        """Return the steps of an epoch; may change buffers of the network."""
        return Plan(look.sampled(self.p["batch_size"]))

    # -- a step ----------------------------------------------------------------------------------------------

    @abstractmethod
    def terms(self) -> dict[str, int]:
        """Return the loss terms by their names in history.csv, each with its first epoch."""

    @abstractmethod
    def weights(self, batch: Batch) -> dict[str, float]:
        """Return the weight of each term in the loss of a step."""

    @abstractmethod
    def losses(self, network: Any, batch: Batch) -> Losses:
        """Return the unweighted terms of a step, in the order of their sum."""

    def after_step(self, network: Any, batch: Batch, kept: Mapping[str, Any]) -> None:
        """Change buffers of the network after the optimiser steps; called without gradient."""

    def after_epoch(self, network: Any) -> Mapping[str, float]:
        """Return numbers of the epoch for history.csv that are known after its last step; keys of `logged`."""
        return {}

    # -- after the training ----------------------------------------------------------------------------------

    @abstractmethod
    def discover(
        self, network: Any, features: Callable[[Tensor], Tensor], labels: Tensor, unlabelled: Tensor, test: Tensor
    ) -> Discovery:
        """Predict the class of each image of D^u and the test part, after the last epoch.

        Args:
            features: ids int64 [n] -> float32 [n, dim], the tail's feature of the test view.
            labels: int64 [N], the class of each training image of D^l, -1 for D^u.
            unlabelled, test: image ids int64.
        """

    def collapsed(self, last: Mapping[str, Any]) -> bool:
        """Return whether the projections have collapsed in the last epoch, given its row of history.csv.

        InfoNCE is then at chance level, log(2B - 1) for the B images of a loss, and the contrastive terms have almost
        no gradient.
        """
        images = self.p["batch_size"] // self.loss_groups
        return "info_nce" in last and abs(last["info_nce"] - math.log(2 * images - 1)) < 1e-3

    def idle(self, history: Sequence[Mapping[str, Any]]) -> str:
        """Return why the method's mechanism had no effect in any epoch, given history.csv, or an empty string."""
        return ""

    # -- shared ----------------------------------------------------------------------------------------------

    @property
    def loss_groups(self) -> int:
        """Return the number of groups of a batch; `losses` is called for each, and the terms are averaged."""
        size = self.p.get("loss_group", 0)
        return self.p["batch_size"] // size if size else 1

    def columns(self) -> Sequence[str]:
        """Return the columns of history.csv."""
        return ("epoch", "lr", *self.logged, "loss", *self.terms())

    def representation_weights(self) -> dict[str, float]:
        """Return the weights of the terms of L_rep."""
        supervised_weight = self.p["supervised_weight"]
        info_nce_weight, sup_con_weight = self.p["info_nce_weight"], self.p["sup_con_weight"]
        return {"info_nce": info_nce_weight * (1 - supervised_weight), "sup_con": sup_con_weight * supervised_weight}

    def representation(self, projections: Tensor, labels: Tensor) -> dict[str, Tensor]:
        """Return the terms of L_rep on raw projections [2M, p]; labels int64 [M], -1 for unlabelled images."""
        z = normalize(projections, dim=1)
        return {
            "info_nce": info_nce(z, self.p["info_nce_temperature"]),
            "sup_con": sup_con(z, labels, labels >= 0, self.p["sup_con_temperature"]),
        }
