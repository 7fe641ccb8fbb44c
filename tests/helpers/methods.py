"""A synthetic network and batch, and the values that a method computes from them."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import normalize

from ctxgcd.catalogue.entries import METHODS
from ctxgcd.clustering.neighbours import nearest
from ctxgcd.losses.cross_entropy import cross_entropy
from ctxgcd.losses.distill import distill
from ctxgcd.losses.entropy import entropy_gap
from ctxgcd.losses.info_nce import info_nce
from ctxgcd.losses.sup_con import sup_con
from ctxgcd.methods.method import Method
from ctxgcd.methods.simgcd import SimGCD
from ctxgcd.methods.step import Batch, Look, Rows, weighted
from ctxgcd.models.network import Network, Outputs
from ctxgcd.utils.seeding import generator
from tests.helpers.params import values

torch.set_num_threads(1)


KEPT, DIM, CLASSES = 6, 8, 5
TEACHER = 0.06
BOTH = ["L_n", "L_c"]
VARIANTS = tuple(METHODS["full"].variants)


def parameters(**changes: Any) -> dict[str, Any]:
    """Return values of the full method of which each affects the result, with changes."""
    usual: dict[str, Any] = {
        **{"K": CLASSES, "T_warm": 1, "batch_size": 64, "neighbour_images": 128, "k": 5, "delta": 0.8},
        **{"info_nce_temperature": 0.9, "entropy_weight": 2.0, "teacher_warmup_epochs": 0, "tail": "blocks"},
        **{"teacher_temperature_start": TEACHER, "teacher_temperature_end": TEACHER},
    }
    return values(**usual | changes)


def network(seed: int = 0) -> Network:
    """Return a linear tail with fixed weights and the usual heads; weights are large enough for classes to differ."""
    net = Network(nn.Linear(KEPT, DIM), DIM, CLASSES, 16, 7, seed)
    stream = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in net.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=stream) * 0.4)
    return net


def batch(sampled: int = 128, around: int | None = None, seed: int = 0, images: int = 500) -> Batch:
    """Return random cached outputs: 2 * sampled rows, about half of the images labelled, and 2 * around rows."""
    stream = torch.Generator().manual_seed(seed)
    rows = torch.randn(2 * sampled, KEPT, generator=stream)
    labels = torch.randint(0, 3, (sampled,), generator=stream)
    labels[torch.rand(sampled, generator=stream) < 0.5] = -1
    if around is None:
        return of_rows(rows, labels)
    ids = torch.randint(0, images, (sampled + around,), generator=stream)
    return of_rows(rows, labels, torch.randn(2 * around, KEPT, generator=stream), ids)


def of_rows(
    sampled: Tensor,
    labels: Tensor,
    around: Tensor | None = None,
    ids: Tensor | None = None,
    lists: Tensor | None = None,
) -> Batch:
    """Return a batch of these trunk outputs; ids: of the sampled images, then of the neighbours; lists: by image."""
    ids = torch.arange(len(labels)) if ids is None else ids
    of_sampled, of_neighbours = ids[: len(labels)], ids[len(labels) :]
    given = [{} if lists is None else {"nearest": lists[part]} for part in (of_sampled, of_neighbours)]
    groups = {"sampled": Rows(sampled, of_sampled, labels, given[0])}
    if around is not None:
        groups["neighbours"] = Rows(around, of_neighbours, torch.full_like(of_neighbours, -1), given[1])
    return Batch(groups)


def losses(method: Method, net: nn.Module, of: Batch) -> dict[str, Tensor]:
    """Return the loss of a step and its terms."""
    terms = method.losses(net, of).terms
    return {"loss": weighted(terms, method.weights(of)), **terms}


def gradients(method: Method, net: Network, of: Batch) -> dict[str, Tensor]:
    net.zero_grad()
    losses(method, net, of)["loss"].backward()
    return {name: parameter.grad.clone() for name, parameter in net.named_parameters() if parameter.grad is not None}


def written_baseline(out: Outputs, labels: Tensor, p: dict[str, Any]) -> dict[str, Tensor]:
    """Return L_rep + L_cls by the equations of docs/methods.md, from loss terms with golden values."""
    share, z = p["supervised_weight"], normalize(out.projections, dim=1)
    terms = {
        "info_nce": info_nce(z, p["info_nce_temperature"]),
        "sup_con": sup_con(z, labels, labels >= 0, p["sup_con_temperature"]),
        "distill": distill(out.logits, TEACHER, p["student_temperature"]),
        "entropy": entropy_gap(out.logits, p["student_temperature"]),
        "cls": cross_entropy(out.logits, labels, labels >= 0, p["student_temperature"]),
    }
    l_rep = (1 - share) * terms["info_nce"] + share * terms["sup_con"]
    l_cls = (1 - share) * (terms["distill"] + p["entropy_weight"] * terms["entropy"]) + share * terms["cls"]
    return {"loss": l_rep + l_cls, **terms}


def look_of(epoch: int) -> Look:
    """Return 140 random images, a quarter of them labelled, as a method sees them before an epoch."""
    points = torch.randn(140, DIM, generator=torch.Generator().manual_seed(epoch))
    return Look(
        epoch,
        labels=torch.where(torch.arange(140) % 4 == 0, 0, -1),
        features=lambda ids: points[ids],
        train_features=lambda ids, stream: points[ids],
        nearest=nearest,
        stream=lambda name: generator(0, name, epoch),
    )


def has_neighbours(method: SimGCD, epoch: int) -> bool:
    """Return whether the steps of an epoch have neighbour images; fails unless all or none have them."""
    groups = {tuple(step) for step in method.before_epoch(network(), look_of(epoch)).steps}
    assert groups in ({("sampled",)}, {("sampled", "neighbours")})
    return groups == {("sampled", "neighbours")}


def close(found: dict[str, Tensor], expected: dict[str, Tensor], tolerance: float = 1e-5) -> None:
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        torch.testing.assert_close(
            found[name], value, rtol=tolerance, atol=tolerance, msg=lambda m, n=name: f"{n}: {m}"
        )
