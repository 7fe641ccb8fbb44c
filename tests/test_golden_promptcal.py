"""Golden values of PromptCAL: its graph, terms, memory, prompted ViT and schedule."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from timm.models.vision_transformer import VisionTransformer
from torch import Tensor
from torch.nn.functional import normalize

from ctxgcd.losses.affinity import (
    affine_pairs,
    affinity,
    consensus_product,
    cut_of,
    diffused,
    drawn_negatives,
    neighbour_lists,
    with_labels,
)
from ctxgcd.losses.info_nce import info_nce
from ctxgcd.losses.sup_con import sup_con
from ctxgcd.methods.promptcal import affinity_share, remember
from ctxgcd.models.prompts import prompted
from tests.test_golden import GOLDEN, agree, at_least_two, by_seed, compared, norms

pytestmark = pytest.mark.skipif(
    not GOLDEN.is_dir(), reason=f"no golden values in {GOLDEN}: set CTXGCD_GOLDEN to their folder"
)


@pytest.mark.parametrize("case", compared("promptcal"), ids=by_seed)
def test_promptcal(case: dict[str, Any]) -> None:
    batch, dim, draw = case["batch"], case["dim"], np.random.RandomState(case["seed"])
    centres = normalize(torch.from_numpy(draw.randn(case["groups"], dim)), dim=1)
    group, of_memory = (draw.randint(0, case["groups"], n) for n in (batch, case["memory"]))

    def picked(groups: np.ndarray) -> Tensor:
        return normalize(centres[groups] + case["noise"] * torch.from_numpy(draw.randn(len(groups), dim)), dim=1)

    z, teacher, memory = picked(np.tile(group, 2)), picked(np.tile(group, 2)), picked(of_memory)
    student, candidates = (
        normalize(torch.from_numpy(draw.randn(2 * batch, case["projection_dim"])), dim=1) for _ in range(2)
    )
    old, unlabelled = max(1, case["groups"] // 2), torch.tensor(-1)
    labelled = at_least_two((draw.rand(batch) < 0.5) & (group < old))
    labels = torch.from_numpy(group).where(labelled, unlabelled)
    in_memory = torch.from_numpy((draw.rand(case["memory"]) < 0.5) & (of_memory < old))
    labels_in_memory = torch.from_numpy(of_memory).where(in_memory, unlabelled)
    agree({"labelled": labelled.sum(), "labelled_in_memory": in_memory.sum()}, case)

    nodes = torch.cat([teacher.roll(batch, dims=0), memory])
    lists = neighbour_lists(nodes, case["k"])
    a = consensus_product(lists, torch.eye(len(nodes), dtype=torch.float64))
    agree({"sum": a.sum(), "largest": a.max(), "nonzero": a.count_nonzero()}, case["consensus"])
    assert a[0, :12].tolist() == case["consensus"]["first_row"]
    q = diffused(lists, torch.float64)
    mean, cut = q[q > 0].mean(), cut_of(q, case["quantile"])
    graph = {"sum": q.sum(), "mean_of_nonzero": mean, "above_mean": (q > mean).sum(), "cut": cut}
    agree(graph | {"affine_pairs_all": (q > cut).sum(), "distance_to_cut": (q - cut).abs().min()}, case["diffused"])

    affine = affine_pairs(nodes[: 2 * batch], memory, case["k"], case["quantile"])
    assert torch.equal(affine, affine_pairs(nodes[: 2 * batch].float(), memory.float(), case["k"], case["quantile"]))
    every = drawn_negatives(affine, 2 * case["memory"], torch.rand(affine.shape))
    positives, negatives = with_labels(affine, every, labels.repeat(2), labels_in_memory)
    counts = {"affinity_positives_before_truth": affine.sum(), "affinity_positives": positives.sum()}
    agree(counts | {"negatives_all": negatives.sum()}, case)
    assert positives.sum(dim=1).tolist() == case["affinity_row_sums"]

    z, student = z.requires_grad_(), student.requires_grad_()
    found, terms = {}, {}
    for view, first in (("same_view", teacher), ("other_view", teacher.roll(batch, dims=0))):
        terms[view] = affinity(z, first, memory, positives, negatives, case["temperature"])
        found[f"affinity_loss_{view}"] = terms[view]
        found[f"grad_norm_affinity_{view}"] = norms(terms[view], z)[0]
    found["info_nce_teacher"] = info_nce(student, 1.0, candidates)
    found["sup_con_teacher"] = sup_con(student, labels, labelled, 0.07, candidates)
    for name in ("info_nce", "sup_con"):
        found[f"grad_norm_{name}"] = norms(found[f"{name}_teacher"], student)[0]
    unsupervised = 0.7 * found["info_nce_teacher"] + 0.3 * terms["same_view"]
    agree(found | {"loss_at_w_0.3": 0.35 * found["sup_con_teacher"] + 0.65 * unsupervised}, case)


@pytest.mark.parametrize("case", compared("promptcal_queue"), ids=by_seed)
def test_promptcal_queue(case: dict[str, Any]) -> None:
    draw, ring = np.random.RandomState(case["seed"]), torch.zeros(case["size"], case["dim"], dtype=torch.float64)
    added = torch.zeros((), dtype=torch.int64)
    for rows in case["adds"]:
        remember(ring, torch.from_numpy(draw.randn(rows, case["dim"])), added)
        added += rows
    agree({"filled": min(int(added), case["size"]), "next_place": int(added) % case["size"]}, case)
    # The public code's memory has float32.
    assert ring[: case["filled"], 0].tolist() == pytest.approx(case["first_column"], rel=1e-6)


@pytest.mark.parametrize("case", compared("promptcal_vit"), ids=by_seed)
def test_promptcal_vit(case: dict[str, Any]) -> None:
    dim, depth, prompts, draw = case["dim"], case["depth"], case["prompts"], np.random.RandomState(case["seed"])
    net = VisionTransformer(
        case["size"], case["patch"], num_classes=0, embed_dim=dim, depth=depth, num_heads=case["heads"],
        mlp_ratio=case["mlp_ratio"],
    )  # fmt: skip
    state = net.double().state_dict()
    shapes = {name: tuple(value.shape) for name, value in state.items()} | {"prompt_tokens": (depth, prompts, dim)}
    shapes["pos_embed"] = (1, state["pos_embed"].shape[1] + prompts, dim)
    assert sorted(shapes) == case["parameter_order"]
    drawn = {name: torch.from_numpy(0.3 * draw.randn(*shapes[name])) for name in case["parameter_order"]}
    for name in drawn:
        if "norm" in name and name.endswith("weight"):
            drawn[name] = 1 + drawn[name] / 3
    of_prompts, positions = drawn.pop("prompt_tokens"), drawn.pop("pos_embed")
    net.load_state_dict(drawn | {"pos_embed": torch.cat([positions[:, :1], positions[:, 1 + prompts :]], dim=1)})
    backbone = prompted(net.eval().requires_grad_(False), 1, prompts, case["prompts_used"], generator=torch.Generator())
    tail = backbone.tail.double()
    tail.trained.prompts.data.copy_(of_prompts)
    images = torch.from_numpy(draw.randn(case["images"], 3, case["size"], case["size"]))
    weights = torch.from_numpy(draw.randn(case["images"], dim))
    cls, mean = tail.both(backbone.trunk(images))
    assert torch.equal(cls, backbone.features(images))
    found = {"cls_norm": cls.norm(), "prompt_mean_norm": mean.norm()}
    ((cls * weights).sum() + (mean * weights).sum()).backward()
    of_qkv = tail.trained.blocks[-1].attn.qkv.weight.grad  # type: ignore[union-attr]
    assert {name: value.item() for name, value in found.items()} == pytest.approx(
        {name: case[name] for name in found}, rel=1e-9
    )
    assert of_qkv.norm().item() == pytest.approx(case["grad_norm_last_qkv"], rel=1e-9)
    gradient = tail.trained.prompts.grad.flatten(1).norm(dim=1)  # type: ignore[union-attr]
    assert gradient.tolist() == pytest.approx(case["grad_norm_prompts"], rel=1e-9)
    for name, rows in (("cls_first", cls), ("prompt_mean_first", mean)):
        assert rows[0, :4].tolist() == pytest.approx(case[name], rel=1e-9)


@pytest.mark.parametrize("schedules", compared("schedules"), ids=[""])
def test_the_share_of_the_affinity(schedules: dict[str, Any]) -> None:
    of = schedules["promptcal_w"]
    found = {step: affinity_share(int(step), of["steps_per_epoch"], 0.6, 2) for step in of["values"]}
    assert found == pytest.approx(of["values"], rel=1e-10)
