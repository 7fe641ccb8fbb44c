"""The model of a discovery: backbone, heads, class names and labelled examples, in one file."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.functional import normalize

from ctxgcd.clustering.neighbours import nearest
from ctxgcd.discover.classes import Shown, is_number
from ctxgcd.discover.found import Found
from ctxgcd.discover.output import MODEL
from ctxgcd.errors import UserError
from ctxgcd.methods.build import method_of
from ctxgcd.models import weights
from ctxgcd.models.backbone import Backbone
from ctxgcd.models.network import Network
from ctxgcd.models.precision import computing
from ctxgcd.training import checkpoint
from ctxgcd.training.devices import compiled

KIND = "ctxgcd-discovery"
FALSE_ALARMS = 0.01  # usual share of images of the model's classes that are marked as none of these
QUANTILES = 1001  # of the training images' similarities
MOST_REFERENCES = 10_000  # training images with which new ones are compared


@dataclass(frozen=True)
class Model:
    """Attributes:
    parameters: all values of the training.
    names: class names by id, the `known` classes first; those made by hand after the training are the last ones.
    threshold: images with a lower similarity are none of these classes; None until it is set.
    reference: L2-normalised features before training of (at most MOST_REFERENCES) training images, float32 [n, d];
        None in models of earlier versions, whose threshold is one of scores.
    quantiles: float64 [QUANTILES], of the similarity of each of these images with the most similar other one; or None.
    backbone: the backbone with its frozen weights; `state`: these weights as stored.
    before: the tail before training.
    network: the trained tail, projector and classifier.
    examples: paths of the labelled images, one empty path if there are none; `features`: their L2-normalised features,
        float32 [n, d].
    numbers: public numbers of the classes by id, empty for a class that was never discovered.
    into: for each class the id of the class that it was merged into, else its own; empty: none was merged.
    """

    parameters: dict[str, Any]
    names: Sequence[str]
    known: int
    threshold: float | None
    reference: Tensor | None
    quantiles: Tensor | None
    backbone: Backbone
    before: nn.Module
    state: dict[str, Tensor]
    network: Network
    examples: Sequence[str]
    features: Tensor
    numbers: Sequence[str] = ()
    into: Sequence[int] = ()

    @property
    def alive(self) -> list[int]:
        """Return the id of the class for which each output of the network stands; merged classes stand for another."""
        classes = self.parameters["K"]
        return list(self.into[:classes]) or list(range(classes))

    def with_shown(self, shown: Shown) -> Model:
        """Return the model with other names of its classes."""
        return replace(self, names=shown.names, numbers=shown.numbers, into=shown.into)

    def with_reference(self, features: Tensor) -> Model:
        """Return the model with the features before training [n, d] of its training images, and the threshold."""
        drawn = (
            torch.randperm(len(features), generator=torch.Generator().manual_seed(0))[:MOST_REFERENCES].sort().values
        )
        rows = normalize(features[drawn], dim=1).half().float()
        similarities = (rows * rows[nearest(rows, 1)[:, 0]]).sum(dim=1).double()
        quantiles = similarities.quantile(torch.linspace(0, 1, QUANTILES, dtype=torch.float64))
        made = replace(self, reference=rows.to(self.features.device), quantiles=quantiles)
        return replace(made, threshold=made.threshold_of(FALSE_ALARMS))

    def threshold_of(self, false_alarms: float) -> float:
        """Return the threshold below which the similarity of this share of the training images lies."""
        assert self.quantiles is not None
        return round(float(np.interp(false_alarms, np.linspace(0, 1, len(self.quantiles)), self.quantiles.numpy())), 4)

    @torch.no_grad()
    def find(self, kept: Iterable[Tensor], paths: Sequence[str], ids: NDArray[np.int64]) -> Found:
        """Return what the model finds in images.

        Args:
            kept: the trunk's outputs for the images in batches, together [n, ...].
            paths: paths of these images; `ids`: their ids in the packed store, int64 [n].
        """
        precision, found = self.parameters["precision"], []
        for rows in kept:
            with computing(precision, rows.device):
                tail, cosines = self.network.predict(rows.float())
                before = self.before(rows.float()).float()
            unit = normalize(tail, dim=1)
            example = (unit @ self.features.T).argmax(dim=1)
            parts = cosines.float(), example, similarity_of(before, self.reference), unit.half().float()
            found.append([part.cpu() for part in parts])
        cosines, *others = (torch.cat(parts) for parts in zip(*found, strict=True))
        return Found(paths, ids, *(part.numpy() for part in (cosines.argmax(dim=1), cosines, *others)))

    def table(self, found: Found) -> pd.DataFrame:
        """Return a row for each image, with merged classes as one.

        Its columns are path, class (id), name, number (the public one), confidence (softmax of the cosines divided by
        the student's temperature), nearest (the labelled example with the most similar features), score (the cosine
        between feature and class), similarity (the cosine between its feature before training and that of the most
        similar training image; NaN without `reference`), margin (difference of the confidences of the best two classes)
        and second (the second best class).
        """
        cosines = torch.from_numpy(found.cosines)
        shares = (cosines / self.parameters["student_temperature"]).softmax(dim=1)
        (share, next_share), (own, second) = (part.T for part in shares.topk(2, dim=1))
        score = cosines.gather(1, own[:, None])[:, 0]
        if self.alive != list(range(shares.shape[1])):
            into = torch.tensor(self.alive)
            own = into[own]
            whole = shares.new_zeros(len(shares), len(self.names)).index_add_(1, into, shares)
            share = whole.gather(1, own[:, None])[:, 0]
            next_share, second = whole.scatter(1, own[:, None], -1.0).max(dim=1)
        confidence, next_confidence, scores = (part.double().numpy() for part in (share, next_share, score))
        return pd.DataFrame(
            {
                "path": list(found.paths),
                "class": own.numpy().astype(np.int64),
                "name": [self.names[c] for c in own.tolist()],
                "number": [self.numbers[c] for c in own.tolist()],
                "confidence": confidence.round(4),
                "nearest": [self.examples[i] for i in found.example.tolist()],
                "score": scores.round(4),
                "similarity": found.similarity.astype(np.float64).round(4),
                "margin": confidence - next_confidence,
                "second": [self.names[c] for c in second.tolist()],
            }
        )

    def to(self, device: torch.device) -> Model:
        """Return the model on a device; on a GPU, its trunk is compiled."""
        backbone = self.backbone.to(device)
        trunk = compiled(backbone.trunk, self.parameters["crop"], self.parameters["precision"], device)
        return replace(
            self,
            backbone=replace(backbone, trunk=trunk),
            network=self.network.to(device),
            before=self.before.to(device),
            features=self.features.to(device),
            reference=None if self.reference is None else self.reference.to(device),
        )


def similarity_of(features: Tensor, reference: Tensor | None) -> Tensor:
    """Return each row's largest cosine with a reference row: [n, d] and L2-normalised [m, d] or None -> [n]."""
    if reference is None:
        return features.new_full((len(features),), torch.nan)
    return (normalize(features, dim=1) @ reference.T).amax(dim=1)


class Whole(nn.Module):
    """A model as one module: RGB images 0..1 [n, 3, crop, crop] to cosines, confidences [n, K] and similarity [n]."""

    mean: Tensor
    std: Tensor
    reference: Tensor | None

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.trunk, self.network, self.before = model.backbone.trunk, model.network, model.before
        self.register_buffer("reference", model.reference)
        self.temperature = model.parameters["student_temperature"]
        for name in ("mean", "std"):
            self.register_buffer(name, torch.tensor(model.parameters[name]).view(3, 1, 1))

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        kept = self.trunk((images - self.mean) / self.std)
        _, cosines = self.network.predict(kept)
        similarity = similarity_of(self.before(kept), self.reference)
        return cosines, (cosines / self.temperature).softmax(dim=1), similarity


def build(
    parameters: dict[str, Any],
    state: dict[str, Tensor],
    network: dict[str, Tensor],
    *,
    names: Sequence[str],
    known: int,
    threshold: float | None = None,
    examples: Sequence[str] = ("",),
    features: Tensor | None = None,
    centres: Tensor | None = None,
    reference: Tensor | None = None,
    quantiles: Tensor | None = None,
) -> Model:
    """Build a model from the weights of its backbone and its network, with the centres of its New classes, if any.

    Names of New classes that look like numbers are their numbers.
    """
    net = weights.build(parameters["model"], parameters["crop"])
    net.load_state_dict(state)
    net = weights.shortened(net, parameters.get("blocks", 0))
    method = method_of(parameters)
    backbone = method.cut(net.eval().requires_grad_(False))
    before = copy.deepcopy(backbone.tail).requires_grad_(False)
    trained = method.network(backbone.tail, backbone.dim, known)
    trained.load_state_dict(network)
    assert isinstance(trained, Network)
    trained.centres = centres
    if features is None:
        features = torch.zeros(1, backbone.dim)
    return Model(
        parameters,
        names,
        known,
        threshold,
        reference,
        quantiles,
        backbone,
        before,
        state,
        trained.eval().requires_grad_(False),
        examples,
        features,
        numbers=[name if c >= known and is_number(name) else "" for c, name in enumerate(names)],
    )


def save(model: Model, folder: Path) -> None:
    """Write a model to a folder."""
    content = {
        "parameters": model.parameters,
        "names": list(model.names),
        "known": model.known,
        "threshold": model.threshold,
        "state": model.state,
        "network": {name: value.cpu() for name, value in model.network.state_dict().items()},
        "new_centres": None if model.network.centres is None else model.network.centres.cpu(),
        "examples": list(model.examples),
        "features": model.features.cpu().half(),
        "reference": None if model.reference is None else model.reference.cpu().half(),
        "quantiles": model.quantiles,
    }
    checkpoint.save(folder / MODEL, KIND, content)


def load(folder: Path) -> Model:
    """Read a model written by `save`, with the names of classes.json in the folder if it exists.

    Raises UserError if it is damaged or from another version.
    """
    again = "run `ctxgcd discover` with the same --out again, or copy the folder again"
    content = checkpoint.load(folder / MODEL, KIND, again)
    if content.pop("centres", None) is not None:
        raise UserError(
            f"{folder / MODEL} was written by an earlier version, which assigned New classes by the features before "
            "training; run `ctxgcd discover` again"
        )
    content["centres"] = content.pop("new_centres", None)
    if "familiar" in content:  # the name of `reference` in version 0.1.0's first models with similarities
        content["reference"] = content.pop("familiar")
    for name in ("features", "reference"):
        if content.get(name) is not None:
            content[name] = content[name].float()
    made = build(content.pop("parameters"), content.pop("state"), content.pop("network"), **content)
    return made.with_shown(shown) if (shown := Shown.read(folder)) else made
