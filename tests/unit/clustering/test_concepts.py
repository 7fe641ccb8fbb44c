"""Edges between similar images, communities, concepts and their batches, against slow loops."""

from __future__ import annotations

from collections import Counter

import pytest
import torch
from torch import Tensor
from torch.nn.functional import normalize

from ctxgcd.clustering.concepts import communities, draw_concepts, edge_weights, numbered, similarities
from ctxgcd.clustering.neighbours import nearest
from tests.helpers.compared import NEEDS_INFOMAP

torch.set_num_threads(1)

N, K = 30, 7
LABELS = torch.tensor([i % 3 if i % 2 else -1 for i in range(N)])


def graph(seed: int = 0, n: int = N) -> tuple[Tensor, Tensor]:
    rows = torch.randn(n, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    z = normalize(rows, dim=1)
    lists = nearest(z, K)
    return similarities(z, lists), lists


def slow_weights(similarity: Tensor, lists: Tensor, labels: Tensor, least: float, edges: str) -> list[list[float]]:
    labelled = [int(label) for label in labels if label >= 0]
    found = []
    for i in range(len(lists)):
        row = []
        for rank, j in enumerate(lists[i].tolist()):
            cosine, mine, other = float(similarity[i, rank]), int(labels[i]), int(labels[j])
            if edges == "released":
                other = labelled[rank + 1] if rank + 1 < len(labelled) else -1
            if cosine < least or (edges == "constrained" and mine >= 0 and other >= 0 and mine != other):
                row.append(0.0)
            elif mine >= 0 and mine == other:
                row.append(min(max(similarity[i].tolist()), 1.0))
            else:
                row.append(cosine)
        found.append(row)
    return found


@pytest.mark.parametrize("edges", ["constrained", "released"])
@pytest.mark.parametrize(
    "labels", [LABELS, torch.full((N,), -1), torch.arange(N) % 2, LABELS.masked_fill(LABELS > 0, -1)]
)
def test_edges_are_those_of_the_text_and_of_the_released_code(edges: str, labels: Tensor) -> None:
    similarity, lists = graph()
    for least in (0.01, 0.3, 0.999):
        found = edge_weights(similarity, lists, labels, least, edges)
        expected = torch.tensor(slow_weights(similarity, lists, labels, least, edges), dtype=torch.float64)
        torch.testing.assert_close(found, expected, rtol=1e-12, atol=0)


def test_only_edges_between_labelled_images_depend_on_labels() -> None:
    similarity, lists = graph()
    plain = edge_weights(similarity, lists, torch.full_like(LABELS, -1), 0.1, "constrained")
    changed = edge_weights(similarity, lists, LABELS, 0.1, "constrained") != plain
    both = (LABELS[:, None] >= 0) & (LABELS[lists] >= 0)
    assert changed.any()
    assert not changed[~both].any()


def test_few_labelled_images_have_no_further_ranks() -> None:
    """The released rule compares with one of the first labelled images; here there are two, of ranks 0 and 1."""
    similarity, lists = graph()
    labels = torch.full((N,), -1)
    labels[[4, 9]] = 1
    found = edge_weights(similarity, lists, labels, 0.0001, "released") - similarity * (similarity >= 0.0001)
    assert (found.abs() < 1e-12).all()  # rank 1 is the nearest image, whose weight is the largest already


def test_duplicates_have_an_edge_like_any_others_and_none_to_themselves() -> None:
    z = normalize(torch.tensor([[1.0, 2.0], [1.0, 2.0], [1.0, 2.0], [2.0, -1.0]]), dim=1)
    lists = nearest(z, 2)
    assert all(i not in own for i, own in enumerate(lists.tolist()))
    found = edge_weights(similarities(z, lists), lists, torch.tensor([0, 0, -1, -1]), 0.6, "constrained")
    assert found[:3].tolist() == [pytest.approx([1.0, 1.0])] * 3
    assert found.max() <= 1.0 + 1e-6
    assert found[3].tolist() == [0.0, 0.0]


def test_groups_are_numbered_by_their_first_image_and_small_ones_are_dropped() -> None:
    groups = torch.tensor([7, 3, 7, -1, 3, 3, 9, 0, 0])
    assert numbered(groups).tolist() == [0, 1, 0, -1, 1, 1, 2, 3, 3]
    assert numbered(groups, 2).tolist() == [0, 1, 0, -1, 1, 1, -1, 2, 2]
    assert numbered(groups, 4).tolist() == [-1] * 9
    assert numbered(torch.full((3,), -1)).tolist() == [-1] * 3


@NEEDS_INFOMAP
def test_communities_of_groups_that_are_apart() -> None:
    lists = torch.tensor([[1, 2], [0, 2], [0, 1], [4, 0], [3, 0], [0, 1]])
    weights = torch.tensor([[0.9, 0.8], [0.9, 0.7], [0.8, 0.7], [0.9, 0.0], [0.9, 0.0], [0.0, 0.0]])
    found = communities(weights, lists, 0)
    assert found.tolist() == [0, 0, 0, 1, 1, -1]
    assert communities(torch.zeros(6, 2), lists, 0).tolist() == [-1] * 6


@NEEDS_INFOMAP
def test_the_seed_decides_unclear_communities() -> None:
    similarity, lists = graph(n=300)
    found = [communities(similarity.clamp(min=0.1), lists, seed).tolist() for seed in (0, 0, 1, 2, 3)]
    assert found[0] == found[1]
    assert any(other != found[0] for other in found[2:])


# -- batches -----------------------------------------------------------------------------------------------


def drawn(
    sizes: list[int], steps: int, per_batch: int = 4, per_concept: int = 6, seed: int = 0
) -> tuple[Tensor, Tensor]:
    """Return the concept of each image, a few of them without, and the images [steps, concepts, images] drawn."""
    concepts = torch.cat([torch.full((3,), -1), torch.arange(len(sizes)).repeat_interleave(torch.tensor(sizes))])
    concepts = concepts[torch.randperm(len(concepts), generator=torch.Generator().manual_seed(9))]
    ids = draw_concepts(concepts, per_batch, per_concept, steps, torch.Generator().manual_seed(seed))
    assert ids.shape == (steps, per_batch * per_concept)
    return concepts, ids.view(steps, per_batch, per_concept)


def test_each_concept_is_once_in_a_pass() -> None:
    concepts, ids = drawn([8] * 10, steps=6)
    of = concepts[ids]
    assert (of == of[:, :, :1]).all()  # an image of its concept each
    for one_pass in of[:, :, 0].view(3, -1).tolist():  # two batches of four: the last two concepts are dropped
        assert len(set(one_pass)) == 8
    assert of.min() >= 0
    assert len({tuple(one) for one in of[:, :, 0].view(3, -1).tolist()}) == 3


@pytest.mark.parametrize("count", [1, 2, 3])
def test_few_concepts_are_repeated_in_a_batch(count: int) -> None:
    concepts, ids = drawn([9] * count, steps=5)
    for step in concepts[ids][:, :, 0].tolist():
        counts = Counter(step)
        assert len(counts) == count
        assert max(counts.values()) <= -(-4 // count)


def test_images_of_a_concept_are_different_if_it_has_more_than_needed() -> None:
    concepts, ids = drawn([7, 6, 5, 2], steps=60)
    for concept, different in ((0, True), (1, False), (2, False), (3, False)):
        own = ids[concepts[ids][:, :, 0] == concept]
        repeated = [len(set(row)) < 6 for row in own.tolist()]
        assert any(repeated) != different, concept
        assert set(own.flatten().tolist()) == set((concepts == concept).nonzero()[:, 0].tolist())
        assert (own[:, 1:] != own[:, :1]).all()  # the first image is not drawn again


def test_the_first_image_is_drawn_uniformly() -> None:
    concepts, ids = drawn([10], steps=500, per_batch=2)
    counts = Counter(ids[:, :, 0].flatten().tolist())
    assert len(counts) == 10
    assert all(60 < count < 145 for count in counts.values())
    other = drawn([10], steps=500, per_batch=2, seed=1)[1]
    assert not torch.equal(ids, other)
    assert concepts.max() == 0
