"""GCD: its head, its weight decay, and clusters in which labelled images keep their class."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn.functional import normalize

from ctxgcd.losses.info_nce import info_nce
from ctxgcd.losses.sup_con import sup_con
from ctxgcd.methods.gcd import GCD
from ctxgcd.methods.optimiser import parameter_groups
from ctxgcd.methods.simgcd import SimGCD
from tests.helpers.methods import DIM, KEPT, batch, close, losses, parameters

torch.set_num_threads(1)


GCD_PARAMETERS = {"projector_width": 16, "projection_dim": 6, "head_dim": 40, "seed": 0}
GCD_PARAMETERS |= {"semi_kmeans_restarts": 3, "semi_kmeans_iterations": 50}


def test_gcd_trains_the_representation_on_a_dino_head() -> None:
    method = GCD(parameters(**GCD_PARAMETERS))
    net, of = method.network(nn.Linear(KEPT, DIM), DIM, 3), batch(16)
    terms = losses(method, net, of)
    hidden = net.projector.projector(net.tail(of.sampled.views))
    cosines = normalize(hidden, dim=1) @ normalize(net.projector.direction, dim=1).T
    assert cosines.shape == (32, 40)
    z = normalize(cosines, dim=1)
    expected = {"info_nce": info_nce(z, 0.9), "sup_con": sup_con(z, of.sampled.labels, of.sampled.labels >= 0, 0.07)}
    close(terms, {"loss": 0.65 * expected["info_nce"] + 0.35 * expected["sup_con"], **expected})
    assert method.terms() == {"info_nce": 0, "sup_con": 0}
    terms["loss"].backward()
    assert all(parameter.grad is not None for parameter in net.parameters())


def test_the_last_layer_of_a_dino_head_starts_as_a_linear_layer() -> None:
    net = GCD(parameters(**GCD_PARAMETERS | {"projection_dim": 64, "head_dim": 500})).network(nn.Identity(), DIM, 3)
    start = net.projector.direction.detach()
    assert start.abs().max() <= 1 / 8
    assert start.norm(dim=1).mean() == pytest.approx(3**-0.5, rel=0.02)


def test_gcd_decays_every_parameter() -> None:
    method = GCD(parameters(**GCD_PARAMETERS))
    named = list(method.network(nn.Linear(KEPT, DIM), DIM, 3).named_parameters())
    decayed, plain = parameter_groups(named, 0.1, method.decays_all)
    assert (len(decayed["params"]), plain["params"]) == (len(named), [])
    decayed, plain = parameter_groups(named, 0.1, SimGCD.decays_all)
    assert len(plain["params"]) == 4  # the biases


def test_gcd_keeps_the_classes_of_labelled_images() -> None:
    method = GCD(parameters(**GCD_PARAMETERS, K=4))
    truth = torch.arange(80) % 4
    points = torch.eye(4)[truth] + 0.05 * torch.randn(80, 4, generator=torch.Generator().manual_seed(0))
    labels = truth[:60].where((truth[:60] < 2) & (torch.arange(60) % 8 < 4), torch.tensor(-1))
    unlabelled, test = torch.nonzero(labels < 0)[:, 0], torch.arange(60, 80)
    scale = torch.linspace(1, 9, 80)[:, None]  # directions count, lengths do not
    found = method.discover(None, lambda ids: (points * scale)[ids], labels, unlabelled, test)  # type: ignore[arg-type]
    for ids, classes in ((unlabelled, found.unlabelled), (test, found.test)):
        known = truth[ids] < 2
        assert torch.equal(classes[known], truth[ids][known])
        assert {(int(a), int(b)) for a, b in zip(truth[ids][~known], classes[~known], strict=True)} in (
            {(2, 2), (3, 3)},
            {(2, 3), (3, 2)},
        )
    assert found.found["centres"].shape == (4, 4)
    without_test = method.discover(None, lambda ids: points[ids], labels, unlabelled, test[:0])  # type: ignore[arg-type]
    assert len(without_test.test) == 0
