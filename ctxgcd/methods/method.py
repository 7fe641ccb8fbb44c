"""What every trained method is to the loop: its network, its loss terms and their weights, its predictions."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

from torch import Tensor, nn
from torch.nn.functional import normalize

from ctxgcd.losses import info_nce, sup_con
from ctxgcd.models.network import TailNetwork


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


@dataclass(frozen=True)
class Discovery:
    """Class ids int64 of D^u and of the test part, and the tensors beside the network that gave them."""

    unlabelled: Tensor
    test: Tensor
    found: dict[str, Tensor]


class Method(ABC):
    """A method that trains the tail and its heads; `p` holds the run's resolved parameters."""

    decays_all: ClassVar[bool] = False  # weight decay on biases and 1-d parameters too
    has_teacher: ClassVar[bool] = False  # whether a teacher's temperature is scheduled

    def __init__(self, parameters: dict[str, Any]) -> None:
        self.p = parameters

    @abstractmethod
    def network(self, tail: nn.Module, dim: int) -> TailNetwork:
        """The tail with this method's heads; dim: length of the tail's feature."""

    @abstractmethod
    def weights(self) -> dict[str, float]:
        """What multiplies each term in the loss."""

    @abstractmethod
    def losses(self, network: Any, batch: Batch, teacher: float | None) -> dict[str, Tensor]:
        """Each term under its name in history.csv and their weighted sum under `loss`, all scalars.

        teacher: the teacher's temperature in this epoch, None where the method has no teacher.
        """

    @abstractmethod
    def discover(
        self, network: Any, features: Callable[[Tensor], Tensor], labels: Tensor, unlabelled: Tensor, test: Tensor
    ) -> Discovery:
        """Give a class to each image of D^u and of the test part, after the last epoch.

        Args:
            features: backbone features float [n, d] of the test view of images given by id.
            labels: int64 [N], the class of each training image of D^l, -1 for D^u.
            unlabelled, test: image ids int64.
        """

    def active_from(self) -> dict[str, int]:
        """First epoch in which each term acts."""
        return dict.fromkeys(self.weights(), 0)

    def needs_neighbours(self, epoch: int) -> bool:
        """Whether the batches of this epoch hold queries and their neighbours."""
        return False

    def representation(self, projections: Tensor, labels: Tensor) -> dict[str, Tensor]:
        """The terms of L_rep on raw projections [2M, p]; labels int64 [M], -1 where unlabelled."""
        z = normalize(projections, dim=1)
        return {
            "info_nce": info_nce(z, self.p["info_nce_temperature"]),
            "sup_con": sup_con(z, labels, labels >= 0, self.p["sup_con_temperature"]),
        }

    def weighted(self, terms: dict[str, Tensor]) -> dict[str, Tensor]:
        """The terms with their weighted sum under `loss`."""
        weights = self.weights()
        loss = sum(weights[name] * value for name, value in terms.items())
        assert isinstance(loss, Tensor)
        return {"loss": loss, **terms}
