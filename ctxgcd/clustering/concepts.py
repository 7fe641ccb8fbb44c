"""DCCL's concepts (CVPR 2023): communities of the graph of similar images (docs/methods.md, "Compared methods")."""

from __future__ import annotations

import torch
from torch import Tensor

from ctxgcd.losses.full_precision import full_precision

CHUNK = 8192  # images whose neighbours' features are in memory


@full_precision
def similarities(features: Tensor, lists: Tensor) -> Tensor:
    """Return the cosines [n, k] of each image and the images in its list.

    features: float [n, d], L2-normalised. lists: int64 [n, k].
    """
    parts = zip(features.split(CHUNK), lists.split(CHUNK), strict=True)
    return torch.cat([(rows[:, None] * features[of]).sum(dim=2) for rows, of in parts])


def edge_weights(similarity: Tensor, lists: Tensor, labels: Tensor, min_similarity: float, edges: str) -> Tensor:
    """Return the weight [n, k] of the edge from each image to each image of its list, 0 for no edge.

    An edge needs a cosine of at least `min_similarity`, which is its weight. With `constrained`, two labelled images of
    different classes have no edge, and the weight between two of the same class is raised to the largest cosine in the
    first one's list, at most 1. With `released`, the edge to the r-th nearest image is raised if the first image has
    the label of the r-th labelled image of the dataset, counted from 0: the released code compares with the label of
    image r, not with that of the r-th nearest image, and its labelled images come first.

    Args:
        similarity: float [n, k], from `similarities`.
        lists: int64 [n, k], other images, nearest first.
        labels: int64 [n], -1 for unlabelled images, whose edges depend on no label.
        edges: `constrained` or `released`.
    """
    own = labels[:, None]
    if edges == "released":
        ranks = labels[labels >= 0][1 : lists.shape[1] + 1]  # the image itself has rank 0
        other = torch.full((1, lists.shape[1]), -1, device=labels.device)
        other[0, : len(ranks)] = ranks
    else:
        other = labels[lists]
    alike = (own >= 0) & (own == other)
    raised = similarity.amax(dim=1, keepdim=True).clamp(max=1.0)
    weights = torch.where(alike, raised, similarity)
    kept = similarity >= min_similarity
    if edges == "constrained":
        kept = kept & ~((own >= 0) & (other >= 0) & (own != other))
    return weights * kept


def communities(weights: Tensor, lists: Tensor, seed: int) -> Tensor:
    """Return the community int64 [n] of each image by Infomap: two levels, directed edges, one trial with this seed.

    An image without an edge is in no community, -1. Communities are numbered by their first image.

    weights: float [n, k], as from `edge_weights`; lists: int64 [n, k]. The result is on the host.
    """
    from infomap import Infomap  # of the extra `infomap`

    found = torch.full((len(lists),), -1)
    source, rank = (weights > 0).nonzero(as_tuple=True)
    if len(source):
        links = torch.stack([source.double(), lists[source, rank].double(), weights[source, rank].double()], dim=1)
        graph = Infomap(silent=True, two_level=True, directed=True, num_trials=1, seed=seed + 1)  # it starts from 1
        graph.add_links(links.cpu().numpy())
        modules = graph.run().modules()
        found[torch.tensor(list(modules))] = torch.tensor(list(modules.values()))
    return numbered(found)


def numbered(groups: Tensor, min_images: int = 1) -> Tensor:
    """Return the groups int64 [n] with at least `min_images` images, numbered by their first image; the others are -1.

    groups: int64 [n] on the host, -1 for images without a group.
    """
    inside = groups >= 0
    _, place, counts = groups[inside].unique(return_inverse=True, return_counts=True)
    first = torch.full_like(counts, len(groups)).scatter_reduce(0, place, inside.nonzero()[:, 0], "amin")
    large = counts >= min_images
    order = first.masked_fill(~large, len(groups)).argsort(stable=True)
    number = torch.empty_like(counts)
    number[order] = torch.arange(len(counts))
    found = torch.full_like(groups, -1)
    found[inside] = number.masked_fill(~large, -1)[place]
    return found


def draw_concepts(concepts: Tensor, per_batch: int, per_concept: int, steps: int, generator: torch.Generator) -> Tensor:
    """Draw the images of concepts for each step: `per_batch` concepts with `per_concept` images each.

    A pass has each concept once, in random order, and drops the incomplete last batch; with fewer concepts than
    `per_batch`, it has each concept as often as needed for a batch. The first image of a concept is drawn uniformly,
    the others from its other images, without replacement if the concept has more than `per_concept` images.

    concepts: int64 [N] on the host, as from `numbered`, at least one, each with at least two images.
    Returns int64 [steps, per_batch * per_concept] of positions in 0..N-1.
    """
    sizes = concepts[concepts >= 0].bincount()
    members = concepts.argsort(stable=True)[-int(sizes.sum()) :].split(sizes.tolist())
    rounds = -(-per_batch // len(sizes))  # 1 with enough concepts
    of_pass = rounds * len(sizes) // per_batch * per_batch
    passes = [
        torch.cat([torch.randperm(len(sizes), generator=generator) for _ in range(rounds)])[:of_pass]
        for _ in range(-(-steps * per_batch // of_pass))
    ]
    slots = torch.cat(passes)[: steps * per_batch]
    first = (torch.rand(len(slots), dtype=torch.float64, generator=generator) * sizes[slots]).long()
    drawn = [
        _from_first(members[slot].roll(-shift), per_concept, generator)
        for slot, shift in zip(slots.tolist(), first.tolist(), strict=True)
    ]
    return torch.stack(drawn).view(steps, per_batch * per_concept)


def _from_first(ids: Tensor, number: int, generator: torch.Generator) -> Tensor:
    """Return the first id and number - 1 drawn others; different ones if there are more than `number` ids."""
    others = len(ids) - 1
    if len(ids) > number:
        chosen = torch.randperm(others, generator=generator)[: number - 1]
    else:
        chosen = torch.randint(others, (number - 1,), generator=generator)
    return torch.cat([ids[:1], ids[1:][chosen]])
