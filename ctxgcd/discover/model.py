"""The model of a discovery: backbone, heads, class names and labelled examples, in one file."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch import Tensor, nn
from torch.nn.functional import normalize

from ctxgcd.discover.output import MODEL
from ctxgcd.methods.build import method_of
from ctxgcd.models import weights
from ctxgcd.models.backbone import Backbone
from ctxgcd.models.network import Network
from ctxgcd.models.precision import computing
from ctxgcd.training import checkpoint
from ctxgcd.training.devices import compiled

KIND = "ctxgcd-discovery"
NONE_OF_THESE = 0.01  # share of the unlabelled training images whose score lies below the threshold


@dataclass(frozen=True)
class Model:
    """Attributes:
    parameters: all values of the training.
    names: class names by id, the `known` classes first.
    threshold: images with a lower score are none of these classes; None until it is set.
    backbone: the backbone with its frozen weights; `state`: these weights as stored.
    network: the trained tail, projector and classifier.
    examples: paths of the labelled images, one empty path if there are none; `features`: their L2-normalised features,
        float32 [n, d].
    """

    parameters: dict[str, Any]
    names: Sequence[str]
    known: int
    threshold: float | None
    backbone: Backbone
    state: dict[str, Tensor]
    network: Network
    examples: Sequence[str]
    features: Tensor

    @torch.no_grad()
    def classified(self, kept: Iterable[Tensor], paths: Sequence[str]) -> tuple[pd.DataFrame, Tensor]:
        """Classify images.

        Args:
            kept: the trunk's outputs for the images in batches, together [n, ...].
            paths: paths of these images.

        Returns:
            A row for each image: path, class (id), name, confidence (softmax of the cosines divided by the student's
            temperature), nearest (the labelled example with the most similar features), score (the cosine between
            feature and class), margin (difference of the confidences of the best two classes) and second (the second
            best class); and the L2-normalised features, float32 [n, d].
        """
        precision, found, features = self.parameters["precision"], [], []
        for rows in kept:
            with computing(precision, rows.device):
                tail = self.network.tail(rows.float()).float()
            cosines = self.network.classify(tail)
            shares, order = (cosines / self.parameters["student_temperature"]).softmax(dim=1).topk(2, dim=1)
            unit = normalize(tail, dim=1)
            nearest = (unit @ self.features.T).argmax(dim=1)
            score = cosines.gather(1, order[:, :1])[:, 0]
            found.append(torch.stack([*order.T, *shares.T, score, nearest]).double().cpu())
            features.append(unit.cpu())
        first, second, share, next_share, score, nearest = torch.cat(found, dim=1).numpy()
        table = pd.DataFrame(
            {
                "path": list(paths),
                "class": first.astype(np.int64),
                "name": [self.names[int(c)] for c in first],
                "confidence": share.round(4),
                "nearest": [self.examples[int(i)] for i in nearest],
                "score": score.round(4),
                "margin": share - next_share,
                "second": [self.names[int(c)] for c in second],
            }
        )
        return table, torch.cat(features)

    def to(self, device: torch.device) -> Model:
        """Return the model on a device; on a GPU, its trunk is compiled."""
        backbone = self.backbone.to(device)
        trunk = compiled(backbone.trunk, self.parameters["crop"], self.parameters["precision"], device)
        return replace(
            self,
            backbone=replace(backbone, trunk=trunk),
            network=self.network.to(device),
            features=self.features.to(device),
        )


class Whole(nn.Module):
    """A model as one module: RGB images 0..1, float [n, 3, crop, crop], to cosines and confidences [n, K]."""

    mean: Tensor
    std: Tensor

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.trunk, self.network = model.backbone.trunk, model.network
        self.temperature = model.parameters["student_temperature"]
        for name in ("mean", "std"):
            self.register_buffer(name, torch.tensor(model.parameters[name]).view(3, 1, 1))

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor]:
        cosines = self.network.classify(self.network.tail(self.trunk((images - self.mean) / self.std)))
        return cosines, (cosines / self.temperature).softmax(dim=1)


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
) -> Model:
    """Build a model from the weights of its backbone and its network, with the centres of its New classes, if any."""
    net = weights.build(parameters["model"], parameters["crop"])
    net.load_state_dict(state)
    method = method_of(parameters)
    backbone = method.cut(net.eval().requires_grad_(False))
    trained = method.network(backbone.tail, backbone.dim, known)
    trained.load_state_dict(network)
    assert isinstance(trained, Network)
    trained.centres = centres
    if features is None:
        features = torch.zeros(1, backbone.dim)
    return Model(
        parameters, names, known, threshold, backbone, state, trained.eval().requires_grad_(False), examples, features
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
        "centres": None if model.network.centres is None else model.network.centres.cpu(),
        "examples": list(model.examples),
        "features": model.features.cpu().half(),
    }
    checkpoint.save(folder / MODEL, KIND, content)


def load(folder: Path) -> Model:
    """Read a model written by `save`. Raises UserError if it is damaged or from another version."""
    again = "run `ctxgcd discover` with the same --out again, or copy the folder again"
    content = checkpoint.load(folder / MODEL, KIND, again)
    content["features"] = content["features"].float()
    return build(content.pop("parameters"), content.pop("state"), content.pop("network"), **content)
