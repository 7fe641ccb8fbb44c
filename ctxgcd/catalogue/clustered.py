"""Values and checks of the compared methods that cluster the training images, in the catalogue (entries.py)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from pydantic import Field

from ctxgcd.catalogue.contrastive import GCDValues


class XConValues(GCDValues):
    """Values of XCon; batch_size replaces that of the protocol."""

    batch_size: int = Field(ge=2)  #: sampled images in each step, in place of the protocol's
    experts: int = Field(ge=1)  #: number of subsets, each with a head of its own
    expert_batch: int = Field(ge=2)  #: images of each subset in a step
    expert_weight: float = Field(ge=0)  #: weight of the mean of the subsets' losses
    partition_restarts: int = Field(ge=1)  #: fits of the k-means that divides the images into subsets
    partition_seed: int = Field(ge=0)  #: seed of this k-means, the same for all training seeds
    #: steps of an epoch: as many as the largest subset fills (`released`), or as the sampled images fill (`global`)
    steps: Literal["released", "global"]


class DCCLValues(GCDValues):
    warmup_epochs: int = Field(ge=0)  #: epochs over which the learning rate increases from 0
    k: int = Field(ge=2)  #: images of a neighbourhood in the graph, the image itself included
    min_similarity: float = Field(gt=0, le=1)  #: smallest cosine of two images with an edge
    #: weights of edges: `constrained`, by the labels of both images, or `released`, as the released code sets them
    edges: Literal["constrained", "released"]
    min_images: int = Field(ge=2)  #: images of the smallest concept; smaller clusters of the graph are no concepts
    concepts_per_batch: int = Field(ge=1)  #: concepts in each step
    images_per_concept: int = Field(ge=1)  #: images of each of them
    concept_temperature: float = Field(gt=0)  #: temperature of the similarities to the concepts
    memory_momentum: float = Field(ge=0, le=1)  #: share of a concept's centre that stays when an image updates it
    concept_weight_start: float = Field(ge=0)  #: weight of the concept loss in the first epoch
    concept_weight: float = Field(ge=0)  #: weight of the concept loss after its ramp-up
    ramp_epochs: int = Field(ge=1)  #: epochs over which the weight changes
    graph_seed: int = Field(ge=0)  #: seed of Infomap, the same for all training seeds


def xcon_steps(p: Mapping[str, Any], images: int, known: Mapping[str, Any]) -> int:
    """Return the steps of an epoch of XCon, at least those with subsets of equal size if the largest is not known."""
    whole = images // p["batch_size"]
    largest = int(known.get("largest_subset", -(-images // p["experts"])))
    return max(whole, largest // p["expert_batch"]) if p["steps"] == "released" else whole


def fault_of_xcon(p: Mapping[str, Any]) -> str:
    if not p["loss_group"]:
        return ""
    groups, rest = divmod(p["batch_size"], p["loss_group"])
    if rest:
        return f"loss_group {p['loss_group']} does not divide batch_size {p['batch_size']}; give a divisor, or 0"
    if p["expert_batch"] % groups:
        return f"expert_batch {p['expert_batch']} is no multiple of the {groups} groups of losses; give a multiple"
    return ""


def fault_of_dccl(p: Mapping[str, Any]) -> str:
    groups, images = p["batch_size"] // (p["loss_group"] or p["batch_size"]), concept_images(p)
    if images % groups:
        return (
            f"concepts_per_batch {p['concepts_per_batch']} times images_per_concept {p['images_per_concept']} is no "
            f"multiple of the {groups} groups of losses; give a multiple"
        )
    if p["warmup_epochs"] >= p["epochs"]:
        return f"warmup_epochs {p['warmup_epochs']} must be smaller than epochs {p['epochs']}; give a smaller value"
    return ""


def concept_images(p: Mapping[str, Any], epoch: int = 0) -> int:
    """Return the images of concepts in a step, if there are concepts."""
    return int(p["concepts_per_batch"] * p["images_per_concept"])


def too_few_for_xcon(p: Mapping[str, Any], images: int) -> str:
    if p["experts"] > images:
        return f"experts is {p['experts']} but there are only {images} training images; give fewer experts"
    return ""
