"""The inputs of a step: neighbour lists, and the images of its rows."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor
from torch.nn.functional import normalize

from ctxgcd.methods import full
from ctxgcd.methods.full import Full
from ctxgcd.methods.step import Batch, Losses
from ctxgcd.models.network import Network
from ctxgcd.training.step_inputs import StepInputs
from tests.helpers.training import IMAGES, made_up, slow_lists, training

torch.set_num_threads(1)


@pytest.mark.parametrize(("reciprocal", "length"), [("batch", 3), ("dataset", 4)])
def test_neighbour_lists(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, reciprocal: str, length: int) -> None:
    """The nearest others by the test view's features at the start of the epoch, computed in every epoch."""
    made, recorder = training(tmp_path, {"reciprocal": reciprocal})
    found: list[Tensor] = []
    used: list[Tensor] = []
    own_lists, own_batch = StepInputs.nearest_lists, full.query_batch

    def lists_of(self: StepInputs, features: Tensor, k: int) -> Tensor:
        now = made.features(torch.arange(IMAGES))
        assert torch.equal(features, normalize(now, dim=1))
        found.append(own_lists(self, features, k))
        assert found[-1].tolist() == slow_lists(now, length)
        return found[-1]

    def batch_of(lists: Tensor, queries: int, stream: torch.Generator) -> Tensor:
        assert lists.shape == (IMAGES, 3)  # a query adds its k - 1 nearest others
        assert queries == 3
        assert torch.equal(lists, found[-1][:, :3])
        used.append(own_batch(lists, queries, stream))
        return used[-1]

    monkeypatch.setattr(StepInputs, "nearest_lists", lists_of)
    monkeypatch.setattr(full, "query_batch", batch_of)
    made.train()
    assert len(found) == 3  # epochs 2, 3, 4
    assert all((lists != torch.arange(IMAGES)[:, None]).all() for lists in found)
    assert not torch.equal(found[0], found[1])
    assert not torch.equal(found[1], found[2])
    batches = [ids for ids, _ in recorder.of(12)]
    assert [ids.tolist() for ids in batches] == [ids.tolist() for ids in used]
    for step, ids in enumerate(batches):
        lists = found[step // (IMAGES // 8)]
        for query in ids.view(3, 4):
            assert query[1:].tolist() == lists[query[0], :3].tolist()
        assert len(ids.view(3, 4)[:, 0].unique()) == 3
    assert len({tuple(ids.view(3, 4)[:, 0].tolist()) for ids in batches}) > 15  # of 21 draws


def test_methods_get_the_images_of_their_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made, recorder = training(tmp_path, {"T_warm": 4, "reciprocal": "dataset"})
    batches: list[Batch] = []
    lists: list[Tensor] = []
    own, own_lists = Full.losses, StepInputs.nearest_lists

    def noted(self: Full, net: Network, of: Batch) -> Losses:
        batches.append(of)
        return own(self, net, of)

    def lists_of(self: StepInputs, features: Tensor, k: int) -> Tensor:
        lists.append(own_lists(self, features, k))
        return lists[-1]

    monkeypatch.setattr(Full, "losses", noted)
    monkeypatch.setattr(StepInputs, "nearest_lists", lists_of)
    made.train()
    labels, [nearest] = made_up()[2], lists
    for of, (ids, rows), (around, near) in zip(batches[-7:], recorder.of(8)[-7:], recorder.of(12), strict=True):
        assert list(of.groups) == ["sampled", "neighbours"]
        for group, own_ids, own_rows in ((of.sampled, ids, rows), (of.groups["neighbours"], around, near)):
            assert torch.equal(group.ids, own_ids)
            assert torch.equal(group.views, own_rows)
            assert torch.equal(group.labels, labels[own_ids])
            assert torch.equal(group.given["nearest"], nearest[own_ids])
    assert all(list(of.groups) == ["sampled"] and not of.sampled.given for of in batches[:-7])
