"""DCCL: its concepts and memory, the steps of an epoch, what trains, and odd data."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import timm
import torch
from torch import Tensor
from torch.nn.functional import normalize

from ctxgcd.catalogue.entries import load
from ctxgcd.config import Params
from ctxgcd.losses.memory import concept_loss, updated_memory
from ctxgcd.methods import dccl
from ctxgcd.methods.dccl import DCCL
from ctxgcd.methods.step import Look, Plan
from ctxgcd.models.backbone import adapted, cut
from ctxgcd.pipeline.resolve import resolve
from tests.helpers.compared import CONCEPTS, NEEDS_INFOMAP, batch_of, method_and_network, small
from tests.helpers.hooks import whole_run
from tests.helpers.methods import look_of
from tests.helpers.refusals import error_of
from tests.helpers.training import DIM, made_up

torch.set_num_threads(1)

CLOSE = {"batch_size": 16, "min_similarity": 0.5, "min_images": 5, "k": 20}


def grouped_look(epoch: int = 0, groups: int = 6) -> Look:
    """Return 140 images in groups that are far apart, of two lengths."""
    look = look_of(epoch)
    centres = 3 * torch.eye(DIM)[:groups]
    points = centres[torch.arange(140) % groups] + 0.2 * look.features(torch.arange(140))
    points = points * (1 + torch.arange(140)[:, None] % 2)
    return replace(look, features=lambda ids: points[ids])


@NEEDS_INFOMAP
def test_concepts_and_their_centres_are_found_before_an_epoch() -> None:
    method, network = method_and_network("dccl", **CLOSE)
    look = grouped_look()
    plan = method.before_epoch(network, look)
    assert plan.logged == {"concepts": 6, "share_in_concepts": 1.0}
    features, groups = look.features(torch.arange(140)), torch.arange(140) % 6
    means = torch.stack([features[groups == group].mean(dim=0) for group in range(6)])
    torch.testing.assert_close(network.memory, normalize(means, dim=1))  # of features that are not normalised
    assert "memory" not in network.state_dict()
    assert len(plan.steps) == 140 // 16
    usual = look.sampled(16)
    for step, plain in zip(plan.steps, usual, strict=True):
        assert torch.equal(step["sampled"].ids, plain["sampled"].ids)
        own = step["concepts"]
        assert len(own.ids) == 12
        assert torch.equal(own.given["concept"], own.ids % 6)


@NEEDS_INFOMAP
def test_the_memory_is_rebuilt_before_every_epoch(tmp_path: Path) -> None:
    memories: list[tuple[Tensor, Tensor]] = []

    class Watching(DCCL):
        def before_epoch(self, network: Any, look: Look) -> Plan:
            before = network.memory.clone()
            plan = super().before_epoch(network, look)
            _, test_view, labels = made_up()
            features = network.tail(test_view[: len(labels)]).detach()
            concepts = self.concepts(features, look)
            means = torch.stack([features[concepts == c].mean(dim=0) for c in range(int(concepts.max()) + 1)])
            torch.testing.assert_close(network.memory, normalize(means, dim=1), rtol=1e-4, atol=1e-5)
            memories.append((before, network.memory.clone()))
            return plan

    whole_run(tmp_path, Watching, **small("dccl", warmup_epochs=0))
    assert len(memories) == 3
    for (_, start), (end, renewed) in pairwise(memories):
        assert not torch.allclose(start, end)  # updated by the steps
        assert not torch.equal(end, renewed)


def test_terms_are_the_written_formula_and_rows_update_the_memory() -> None:
    method, network = method_and_network("dccl")
    of = batch_of([0, 1, 0, -1, -1, 1, 0, -1])
    found = method.losses(network, of)
    features = network.tail(of.sampled.views)
    concepts = (torch.arange(8) % CONCEPTS).repeat(2)
    expected = method.representation(network.projector(features), of.sampled.labels)
    expected["concept"] = concept_loss(features, network.memory, concepts, 0.5)
    for name, value in expected.items():
        torch.testing.assert_close(found.terms[name], value)
    before = network.memory.clone()
    assert torch.equal(network.memory, before)  # the losses change no state
    method.after_step(network, of, found.kept)
    torch.testing.assert_close(network.memory, updated_memory(before, features, concepts, 0.1))
    weights = [method.weights(replace(of, epoch=epoch)) for epoch in (0, 1, 2, 9)]
    assert [one["concept"] for one in weights] == pytest.approx([0.04, 0.22, 0.4, 0.4])
    assert (weights[0]["info_nce"], weights[0]["sup_con"]) == (0.65, 0.35)


def test_without_concepts_the_loss_is_zero(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    dccl._warn_without_concepts.cache_clear()
    monkeypatch.setattr(dccl, "communities", lambda weights, lists, seed: torch.full((len(lists),), -1))
    method, network = method_and_network("dccl", **CLOSE)
    for epoch in (0, 1):
        plan = method.before_epoch(network, look_of(epoch))
        assert plan.logged == {"concepts": 0, "share_in_concepts": 0.0}
        assert all(step.keys() == {"sampled"} for step in plan.steps)
        assert network.memory.shape == (0, DIM)
    assert capsys.readouterr().out.count("no concept was found") == 1
    of = batch_of([0, 1, -1, -1])
    found = method.losses(network, replace(of, groups={"sampled": of.sampled}))
    assert float(found.terms["concept"]) == 0
    method.after_step(network, of, found.kept)
    assert network.memory.shape == (0, DIM)


def test_features_that_are_not_finite_are_refused() -> None:
    method, network = method_and_network("dccl", **CLOSE)
    look = replace(look_of(3), features=lambda ids: torch.full((len(ids), DIM), torch.nan))
    assert "dccl: some features are not finite before epoch 3" in error_of(lambda: method.before_epoch(network, look))


def test_the_final_norm_of_a_vit_trains_too() -> None:
    def trained(backbone: Any) -> set[str]:
        network = load("dccl")(small("dccl")).network(backbone.tail, backbone.dim, 2)
        names = {name for name, value in network.named_parameters() if value.requires_grad}
        return {".".join(name.split(".")[:2]) for name in names}

    def vit() -> Any:
        return timm.create_model("vit_tiny_patch16_224", img_size=32, num_classes=0, depth=2).requires_grad_(False)

    assert trained(cut(vit(), 1)) == {"tail.blocks", "tail.norm", "projector.projector", "projector.direction"}
    assert trained(adapted(vit())) == {"tail.weight", "tail.bias", "projector.projector", "projector.direction"}
    net = vit()
    load("gcd")(small("gcd")).network(cut(net, 1).tail, 192, 2)
    assert not net.norm.weight.requires_grad


def test_impossible_values_are_refused(params: Params) -> None:
    assert "warmup_epochs 55 must be smaller than epochs 55" in error_of(
        lambda: resolve(params, "cub50", "dccl+warmup_epochs=55", 0)
    )
    assert "concepts_per_batch 3 times images_per_concept 3 is no multiple of the 8 groups" in error_of(
        lambda: resolve(params, "imagenet_1k", "dccl+concepts_per_batch=3+images_per_concept=3", 0)
    )


def test_an_empty_mechanism_is_named() -> None:
    method = load("dccl")(small("dccl"))
    row = {"concepts": 1, "share_in_concepts": 0.9}
    assert method.idle([row, row]) == "no epoch had two concepts"
    assert method.idle([row, row | {"concepts": 2}]) == ""
