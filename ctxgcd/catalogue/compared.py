"""Values, costs and checks of the compared methods, for the catalogue (entries.py)."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from ctxgcd.catalogue.contrastive import GCDValues, Values, dino_head_values
from ctxgcd.catalogue.sections import Closed


class RSPlusValues(Closed):
    """Values of RS+; lr and weight_decay replace those of the protocol."""

    lr: float = Field(gt=0)  #: learning rate of the first epoch, in place of the protocol's
    lr_factor: float = Field(gt=0, le=1)  #: factor of the learning rate from each of the two epochs on
    first_drop: int = Field(ge=1)  #: first epoch with lr * lr_factor
    second_drop: int = Field(ge=1)  #: first epoch with lr * lr_factor^2
    weight_decay: float = Field(ge=0)  #: weight decay of every parameter, in place of the protocol's
    top_k: int = Field(ge=1)  #: number of largest dimensions that two images of a positive pair share
    #: values that are ranked: `raw`, as in the GCD authors' script, or `absolute`
    ranked: Literal["raw", "absolute"]
    #: pairs of two labelled images: by `ranking`, as the GCD authors' script computes them, or by `truth`, as meant
    labelled_pairs: Literal["ranking", "truth"]
    ce_over: Literal["all", "old"]  #: logits in the cross-entropy of labelled images: `all` K, or those of Old classes
    ce_weight: float = Field(ge=0)  #: weight of the cross-entropy
    consistency_weight: float = Field(ge=0)  #: weight of the consistency of views after its ramp-up
    ramp_epochs: int = Field(ge=1)  #: epochs over which the weight of the consistency increases


class UNOPlusValues(Closed):
    """Values of UNO+; lr and weight_decay replace those of the protocol."""

    lr: float = Field(gt=0)  #: largest learning rate, in place of the protocol's
    lr_ends: float = Field(ge=0)  #: learning rate of the first epoch, and of the one after the last
    warmup_epochs: int = Field(ge=0)  #: epochs over which the learning rate increases
    weight_decay: float = Field(ge=0)  #: weight decay of every parameter, in place of the protocol's
    projector_width: int = Field(ge=1)  #: width of the hidden layer of each head
    projection_dim: int = Field(ge=1)  #: dimension of the output of each head
    heads: int = Field(ge=1)  #: number of heads, and of over-clustering heads
    over_factor: int = Field(ge=1)  #: prototypes of an over-clustering head for each New class
    temperature: float = Field(gt=0)  #: temperature of the predictions
    epsilon: float = Field(gt=0)  #: temperature of the pseudo-labels
    iterations: int = Field(ge=1)  #: iterations of Sinkhorn's algorithm
    #: classes among which unlabelled images are divided equally: `all`, as in UNO+, or the `new` ones, as in UNO
    targets_over: Literal["all", "new"]
    #: head whose New classes are predicted: `best`, of the lowest loss in the last epoch, or the `first`
    predicting_head: Literal["best", "first"]
    #: prototypes that are scored: `normalised` after the last step, or `released`, as the last step leaves them
    scored_prototypes: Literal["normalised", "released"]


class ORCAValues(Closed):
    scale: float = Field(gt=0)  #: factor of the cosines in the logits, and of the margin
    #: the largest margin: 0.5 in the released code; 1.0, as in the paper, never limits it
    margin_limit: float = Field(ge=0, le=1)
    pair_weight: float = Field(ge=0)  #: weight of the pairs
    entropy_weight: float = Field(ge=0)  #: weight of the entropy of the mean prediction


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


class PromptCALValues(GCDValues):
    """Values of PromptCAL; epochs replaces that of the protocol."""

    stage_epochs: int = Field(ge=1)  #: epochs of the first stage
    epochs: int = Field(ge=1)  #: epochs of the second stage, in place of the protocol's
    prompts: int = Field(ge=1)  #: prompts in each block
    used_prompts: int = Field(ge=1)  #: number of first prompts whose final rows are averaged
    prompt_weight: float = Field(ge=0)  #: weight of the terms on the prompts
    ema: float = Field(ge=0, le=1)  #: share of the teacher that stays at each step
    memory_size: int = Field(ge=1)  #: rows of a memory, two for each image
    neighbours: int = Field(ge=1)  #: neighbours of a node of the graph
    quantile: float = Field(ge=0, lt=1)  #: quantile of the graph's entries above which pairs are affine
    negatives: int = Field(ge=0)  #: affine pairs and negatives of a row
    affinity_temperature: float = Field(gt=0)  #: temperature of the affinity term
    affinity_share: float = Field(ge=0, le=1)  #: share of the affinity in the unsupervised terms after its ramp-up
    ramp_epochs: int = Field(ge=0)  #: epochs over which this share increases
    #: the teacher's row that is a row's first positive: of the `other_view`, or, as `released`, of the same view for
    #: the CLS row and of the other view for the prompts
    positive: Literal["other_view", "released"]


def too_narrow_for_rsplus(p: Values, dim: int) -> str:
    if p["top_k"] > dim:
        return f"top_k is {p['top_k']}, but the features have {dim} dimensions; give a smaller top_k"
    return ""


def uno_heads(p: Values, dim: int) -> int:
    """Return the parameters of the MLPs of all heads; those of the prototypes depend on the number of New classes."""
    width, out = p["projector_width"], p["projection_dim"]
    return int(2 * p["heads"] * ((dim + 3) * width + (width + 1) * out))


def fault_of_unoplus(p: Values) -> str:
    if p["warmup_epochs"] > p["epochs"]:
        return f"warmup_epochs {p['warmup_epochs']} exceeds epochs {p['epochs']}; give a value of at most epochs"
    return ""


def xcon_steps(p: Values, images: int, known: Values) -> int:
    """Return the steps of an epoch of XCon, at least those with subsets of equal size if the largest is not known."""
    whole = images // p["batch_size"]
    largest = int(known.get("largest_subset", -(-images // p["experts"])))
    return max(whole, largest // p["expert_batch"]) if p["steps"] == "released" else whole


def fault_of_xcon(p: Values) -> str:
    if not p["loss_group"]:
        return ""
    groups, rest = divmod(p["batch_size"], p["loss_group"])
    if rest:
        return f"loss_group {p['loss_group']} does not divide batch_size {p['batch_size']}; give a divisor, or 0"
    if p["expert_batch"] % groups:
        return f"expert_batch {p['expert_batch']} is no multiple of the {groups} groups of losses; give a multiple"
    return ""


def fault_of_dccl(p: Values) -> str:
    groups, images = p["batch_size"] // (p["loss_group"] or p["batch_size"]), concept_images(p)
    if images % groups:
        return (
            f"concepts_per_batch {p['concepts_per_batch']} times images_per_concept {p['images_per_concept']} is no "
            f"multiple of the {groups} groups of losses; give a multiple"
        )
    if p["warmup_epochs"] >= p["epochs"]:
        return f"warmup_epochs {p['warmup_epochs']} must be smaller than epochs {p['epochs']}; give a smaller value"
    return ""


def concept_images(p: Values, epoch: int = 0) -> int:
    """Return the images of concepts in a step, if there are concepts."""
    return int(p["concepts_per_batch"] * p["images_per_concept"])


def too_few_for_xcon(p: Values, images: int) -> str:
    if p["experts"] > images:
        return f"experts is {p['experts']} but there are only {images} training images; give fewer experts"
    return ""


# Cost of an image's two views, in those of SimGCD: gradients through all blocks, and a teacher's forward pass.
FIRST_STAGE, SECOND_STAGE = 2.2, 3.3


def more_of_promptcal(p: Values) -> float:
    return float(FIRST_STAGE * p["stage_epochs"] + (SECOND_STAGE - 1) * p["epochs"])


def kept_by_promptcal(p: Values, dim: int) -> int:
    """Return the numbers in heads, in their teacher and that of the trained blocks, and in the memories."""
    blocks = p["tail_blocks"] * (12 * dim**2 + 13 * dim)
    return 4 * dino_head_values(p, dim) + blocks + 2 * p["memory_size"] * dim


def fault_of_promptcal(p: Values) -> str:
    if p["used_prompts"] > p["prompts"]:
        return f"used_prompts is {p['used_prompts']}, but each block has {p['prompts']} prompts; give a smaller value"
    if p["memory_size"] < (least := 2 * p["batch_size"]):
        return f"memory_size is {p['memory_size']}, but a step adds {least} rows; give at least {least}"
    if p["neighbours"] >= (nodes := least + p["memory_size"]):
        return f"neighbours is {p['neighbours']}, but the graph has {nodes} nodes; give a smaller value"
    return ""
