"""The methods that rows can use: one entry in this module and one file in ctxgcd/methods. Does not import torch."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pkgutil import resolve_name
from typing import Any, Literal

from pydantic import Field

from ctxgcd.catalogue.clustered import (
    DCCLValues,
    XConValues,
    concept_images,
    fault_of_dccl,
    fault_of_xcon,
    too_few_for_xcon,
    xcon_steps,
)
from ctxgcd.catalogue.contrastive import Contrastive, GCDValues
from ctxgcd.catalogue.sections import Closed

Values = Mapping[str, Any]  # a run's resolved parameters


TRAINING = (  # values of the protocol
    "tail",
    "tail_blocks",
    "view_bank",
    "view_bank_seed",
    "tail_lr_factor",
    "precision",
    "epochs",
    "batch_size",
    "loss_group",
    "lr",
    "lr_floor",
    "momentum",
    "weight_decay",
    "threads",
)

# The same without the values that a method with a learning rate of its own has in its section.
OWN_RATE = tuple(name for name in TRAINING if name not in ("lr", "lr_floor", "weight_decay"))

# The same for a method with a batch of its own.
OWN_BATCH = tuple(name for name in TRAINING if name != "batch_size")


@dataclass(frozen=True)
class Term:
    """The names of a loss term in outputs.

    Attributes:
        head: column name in tables.
        symbol: symbol in figures, as in SimGCD and the paper; u: all images, s: labelled images.
    """

    head: str
    symbol: str


@dataclass(frozen=True)
class Entry:
    """A method.

    Attributes:
        label: name in tables and figures; the name of a variant follows in parentheses.
        cls: dotted name of the class.
        values: section of params.yaml.
        shared: values of the protocol that the method reads.
        extends: another method whose sections this method reads too.
        terms: loss terms, in the order of tables and figures.
        variants: variant -> its named settings; empty if the method has no variants.
        ablated: letter -> term that a row can leave out (`-without-n`) or give the weight 0 (`-zero`, lambda_LETTER).
        health: further columns of history.csv by which the method's mechanism is judged -> their names in figures.
        trains: whether the method trains a network; otherwise it clusters frozen features.
        ending: how the final classes are assigned.
        published: row -> key in the published results (tables/published.csv).
        package: a package that the class needs and that only the extra of this name installs, or an empty string.
        in_groups: whether the losses can be computed in the groups of `loss_group`; if not, only 0 is accepted.
        steps: (values, number of training images, last line of history.csv of a finished run or {}) -> steps an epoch.
        least: why `steps` is a lower bound without a finished run, or an empty string.
        around: (all values that the method reads, epoch) -> number of images that a step adds to its batch.
        looked_at: (values, epoch) -> number of train views of each training image that are computed before the epoch.
        head_values: (values, feature dimension) -> number of parameters of the heads without the classifier.
        more_epochs: values -> epochs of SimGCD with the cost of a stage, a teacher and gradients of the whole backbone.
        whole: whether prompts train in all blocks of a ViT, so that no output of the backbone can be cached.
        fault: values -> why a run with these values is refused, or an empty string.
        too_few: (values, number of training images) -> why this number of images is refused, or an empty string.
        warning: values -> a warning about a valid run, or an empty string.
    """

    label: str
    cls: str
    values: type[Closed]
    shared: Sequence[str] = TRAINING
    extends: str = ""
    terms: Mapping[str, Term] = field(default_factory=dict)
    variants: Mapping[str, str] = field(default_factory=dict)
    ablated: Mapping[str, str] = field(default_factory=dict)
    health: Mapping[str, str] = field(default_factory=dict)
    trains: bool = True
    ending: Literal["classifier", "semi-supervised k-means", "own"] = "classifier"
    published: Mapping[str, str] = field(default_factory=dict)
    package: str = ""
    in_groups: bool = False
    steps: Callable[[Values, int, Values], int] = lambda p, images, known: images // p["batch_size"]
    least: str = ""
    around: Callable[[Values, int], int] = lambda p, epoch: 0
    looked_at: Callable[[Values, int], int] = lambda p, epoch: 0
    head_values: Callable[[Values, int], int] = lambda p, dim: 0
    more_epochs: Callable[[Values], float] = lambda p: 0.0
    whole: bool = False
    fault: Callable[[Values], str] = lambda p: ""
    too_few: Callable[[Values, int], str] = lambda p, images: ""
    warning: Callable[[Values], str] = lambda p: ""

    @property
    def sections(self) -> dict[str, type[Closed]]:
        """Return the sections of params.yaml that the method reads, by method name, its own section last."""
        own = next(name for name, entry in METHODS.items() if entry is self)
        return {**(METHODS[self.extends].sections if self.extends else {}), own: self.values}

    @property
    def reads(self) -> list[str]:
        """Return all values that the method reads. Only these are part of a run's identity and can be set by a row."""
        return [*self.shared, *(field for section in self.sections.values() for field in section.model_fields)]

    @property
    def weights(self) -> dict[str, str]:
        """Return the name of the weight of each term that a row can leave out."""
        return {term: f"lambda_{letter}" for letter, term in self.ablated.items()}


@dataclass(frozen=True)
class Modifier:
    """A mixin for any method's class, added by a word in the row: `simgcd+WORD`.

    label: name in tables and figures, after the method's name: "SimGCD + EAGC".
    cls: dotted name of the class that is mixed in before the method's class.
    in_groups: as in an entry.
    """

    label: str
    cls: str
    in_groups: bool = False


def load(method: str, modifiers: Sequence[str] = ()) -> type[Any]:
    """Return the class of a method with its modifiers; they are imported here."""
    classes = [*(_named(MODIFIERS[word].cls) for word in reversed(modifiers)), _named(METHODS[method].cls)]
    return type(classes[-1].__name__, tuple(classes), {}) if modifiers else classes[0]


def all_terms() -> dict[str, Term]:
    """Return the loss terms of all methods by name; methods with the same name share the term."""
    return {name: term for entry in METHODS.values() for name, term in entry.terms.items()}


def all_health() -> dict[str, str]:
    """Return the names in figures of the columns that all methods are judged by."""
    return {name: title for entry in METHODS.values() for name, title in entry.health.items()}


def _named(dotted: str) -> type[Any]:
    found: type[Any] = resolve_name(dotted)
    return found


# -- values ------------------------------------------------------------------------------------------------


class KMeansValues(Closed):
    restarts: int = Field(ge=1)  #: number of fits with different initial centres; the best fit is used


class SemiKMeansValues(KMeansValues):
    iterations: int = Field(ge=1)  #: maximum number of iterations of each fit


class SimGCDValues(Contrastive):
    entropy_weight: float = Field(ge=0)  #: epsilon, weight of the mean-entropy term
    student_temperature: float = Field(gt=0)  #: temperature of the classifier's softmax
    teacher_temperature_start: float = Field(gt=0)  #: temperature of the targets, tau_t, in the first epoch
    teacher_temperature_end: float = Field(gt=0)  #: tau_t after the warm-up
    teacher_warmup_epochs: int = Field(ge=1)  #: number of epochs over which tau_t changes from start to end
    teacher_schedule: Literal["linear", "cosine"]  #: schedule of this change
    #: how the images that the classifier assigns to New classes are divided: by the classifier, or by k-means of their
    #: trained features
    new_by: Literal["classifier", "kmeans"] = "classifier"


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


class ORCAValues(Closed):
    scale: float = Field(gt=0)  #: factor of the cosines in the logits, and of the margin
    #: the largest margin: 0.5 in the released code; 1.0, as in the paper, never limits it
    margin_limit: float = Field(ge=0, le=1)
    pair_weight: float = Field(ge=0)  #: weight of the pairs
    entropy_weight: float = Field(ge=0)  #: weight of the entropy of the mean prediction


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


class FullValues(Closed):
    """Values of the full method; those that the paper does not give are marked in params.yaml."""

    k: int = Field(ge=2)  #: images of a neighbourhood, the query included
    lambda_n: float = Field(ge=0)  #: weight of L_n
    lambda_c: float = Field(ge=0)  #: weight of L_c
    T_warm: int = Field(ge=0)  #: first epoch of the context losses
    context_delay: int = Field(ge=0)  #: epochs by which the context losses start after T_warm
    #: images of a neighbour batch: q = floor(neighbour_images / k) queries; with `loss_group`, of each group
    neighbour_images: int = Field(ge=2)
    reciprocal: Literal["batch", "dataset"]  #: whether reciprocal neighbours are searched in the batch or the dataset
    #: lists of neighbour images: `paper`, by cosine of the test view's features; `released`, by Euclidean distance of
    #: the raw features of one train view
    neighbour_lists: Literal["paper", "released"] = "paper"
    delta: float = Field(ge=0)  #: margin of L_n; in variant `paper` it only adds a constant
    tau: float = Field(gt=0)  #: temperature of L_c


def _test_pass(p: Values, epoch: int) -> int:
    """Return the test views of a pass over the training images, or over D^u, before each epoch: at most one of each.

    With new views it is not counted, because only the tail computes the cached output of the trunk.
    """
    return int(p["view_bank"] > 0)


def _projector_values(p: Values, dim: int) -> int:
    width, out = p["projector_width"], p["projection_dim"]
    return int((dim + 1 + width + 1) * width + (width + 1) * out)


def _dino_head_values(p: Values, dim: int) -> int:
    return _projector_values(p, dim) + int(p["head_dim"] * p["projection_dim"])


def _uno_heads(p: Values, dim: int) -> int:
    """Return the parameters of the MLPs of all heads; those of the prototypes depend on the number of New classes."""
    width, out = p["projector_width"], p["projection_dim"]
    return int(2 * p["heads"] * ((dim + 3) * width + (width + 1) * out))


def _fault_of_unoplus(p: Values) -> str:
    if p["warmup_epochs"] > p["epochs"]:
        return f"warmup_epochs {p['warmup_epochs']} exceeds epochs {p['epochs']}; give a value of at most epochs"
    return ""


# Cost of an image's two views, in those of SimGCD: gradients through all blocks, and a teacher's forward pass.
FIRST_STAGE, SECOND_STAGE = 2.2, 3.3


def _more_of_promptcal(p: Values) -> float:
    return float(FIRST_STAGE * p["stage_epochs"] + (SECOND_STAGE - 1) * p["epochs"])


def _kept_by_promptcal(p: Values, dim: int) -> int:
    """Return the numbers in heads, in their teacher and that of the trained blocks, and in the memories."""
    blocks = p["tail_blocks"] * (12 * dim**2 + 13 * dim)
    return 4 * _dino_head_values(p, dim) + blocks + 2 * p["memory_size"] * dim


def _fault_of_promptcal(p: Values) -> str:
    if p["used_prompts"] > p["prompts"]:
        return f"used_prompts is {p['used_prompts']}, but each block has {p['prompts']} prompts; give a smaller value"
    if p["memory_size"] < 2 * p["batch_size"]:
        least = 2 * p["batch_size"]
        return f"memory_size is {p['memory_size']}, but a step adds {least} rows; give at least {least}"
    return ""


# -- the full method ---------------------------------------------------------------------------------------

FEW_EPOCHS = 5  # a run whose context terms act in fewer epochs gives a warning


def _context_start(p: Values) -> int:
    """Return the first epoch of the context terms."""
    return int(p["T_warm"] + p["context_delay"])


def _neighbours(p: Values, epoch: int) -> int:
    """Return the number of images of complete queries, in all groups of a step."""
    groups = p["batch_size"] // (p["loss_group"] or p["batch_size"])
    return int(groups * (p["neighbour_images"] // p["k"] * p["k"])) if epoch >= _context_start(p) else 0


def _views_for_lists(p: Values, epoch: int) -> int:
    """Return the number of train views of each image from which the neighbour lists are computed."""
    return int(p["neighbour_lists"] == "released" and epoch >= _context_start(p))


def _fault_of_full(p: Values) -> str:
    if fault := _fault_of_simgcd(p):
        return fault
    k, around = p["k"], p["neighbour_images"]
    if k > around:
        return f"k is {k} (including the query) but must be at most neighbour_images ({around}); give a smaller k"
    if p["variant"] == "released" and p["reciprocal"] == "dataset":
        return "reciprocal 'dataset' is not supported by variant released; use 'batch'"
    if p.get("tail_blocks") == 0:
        return (
            "tail_blocks is 0, so the classified features are fixed and the context losses, which train the "
            "projections, cannot change predictions; set tail_blocks to 1 or more"
        )
    acting = [term for term in p["context_terms"] if p[f"lambda_{term[-1]}"]]
    if acting and _context_start(p) >= p["epochs"]:
        return (
            f"{' and '.join(acting)} would have no effect, because the context terms start at epoch "
            f"{_context_start(p)} of {p['epochs']}; decrease T_warm or increase epochs"
        )
    return ""


def _too_few_for_full(p: Values, images: int) -> str:
    k, around = p["k"], p["neighbour_images"]
    if k > images:
        return f"k is {k} (including the query) but there are only {images} training images; give a smaller k"
    if around // k > images:
        return f"neighbour_images {around} gives more queries than the {images} training images; give a smaller value"
    return ""


def _warning_for_full(p: Values) -> str:
    active = p["epochs"] - _context_start(p)
    return f"the context terms act in only {active} of {p['epochs']} epochs" if active < FEW_EPOCHS else ""


def _fault_of_simgcd(p: Values) -> str:
    if p["teacher_warmup_epochs"] > p["epochs"]:
        return (
            f"teacher_warmup_epochs {p['teacher_warmup_epochs']} exceeds epochs {p['epochs']}; "
            "give a value of at most epochs"
        )
    return ""


# -- entries -----------------------------------------------------------------------------------------------

_L_REP = {
    "info_nce": Term("InfoNCE", r"InfoNCE $\mathcal{L}_{rep}^{u}$"),
    "sup_con": Term("SupCon", r"SupCon $\mathcal{L}_{rep}^{s}$"),
}
_BASELINE = _L_REP | {
    "distill": Term("distill", r"self-distillation $\mathcal{L}_{cls}^{u}$"),
    "entropy": Term("entropy", r"entropy term $\log K - H(\bar{p})$"),
    "cls": Term("CE", r"cross-entropy $\mathcal{L}_{cls}^{s}$"),
}

METHODS = {
    "kmeans": Entry(
        label="k-means",
        cls="ctxgcd.methods.kmeans.KMeans",
        values=KMeansValues,
        shared=("precision", "threads"),
        trains=False,
        ending="own",
        published={"kmeans": "kmeans"},
    ),
    "semi_kmeans": Entry(
        label="Semi-supervised k-means",
        cls="ctxgcd.methods.semi_kmeans.SemiKMeans",
        values=SemiKMeansValues,
        shared=("precision", "threads"),
        trains=False,
        ending="semi-supervised k-means",
    ),
    "gcd": Entry(
        label="GCD",
        cls="ctxgcd.methods.gcd.GCD",
        values=GCDValues,
        terms=_L_REP,
        ending="semi-supervised k-means",
        published={"gcd": "gcd"},
        in_groups=True,
        head_values=_dino_head_values,
    ),
    "simgcd": Entry(
        label="SimGCD",
        cls="ctxgcd.methods.simgcd.SimGCD",
        values=SimGCDValues,
        fault=_fault_of_simgcd,
        terms=_BASELINE,
        published={"simgcd": "simgcd"},
        in_groups=True,
        head_values=_projector_values,
    ),
    "full": Entry(
        label="Full method",
        cls="ctxgcd.methods.full.Full",
        values=FullValues,
        extends="simgcd",
        terms=_BASELINE
        | {
            "L_n": Term("L_n", r"neighbourhood context $\mathcal{L}_{n}$"),
            "L_c": Term("L_c", r"cluster context $\mathcal{L}_{c}$"),
        },
        variants={"paper": "default", "released": "scripts", "mended": "default"},
        ablated={"n": "L_n", "c": "L_c"},
        published={"full-paper": "full", "full-paper-without-n": "full_wo_n", "full-paper-without-c": "full_wo_c"},
        in_groups=True,
        around=_neighbours,
        looked_at=_views_for_lists,
        head_values=_projector_values,
        fault=_fault_of_full,
        too_few=_too_few_for_full,
        warning=_warning_for_full,
    ),
    "rsplus": Entry(
        label="RS+",
        cls="ctxgcd.methods.rsplus.RSPlus",
        values=RSPlusValues,
        shared=OWN_RATE,
        terms={
            "cls": _BASELINE["cls"],
            "pair_bce": Term("pair BCE", r"pairs by ranking $\mathcal{L}_{bce}$"),
            "consistency": Term("consistency", r"consistency of views $\mathcal{L}_{cons}$"),
        },
        health={"positive_pairs": "positive pairs in a step"},
        published={"rsplus": "rs_plus"},
        in_groups=True,
    ),
    "unoplus": Entry(
        label="UNO+",
        cls="ctxgcd.methods.unoplus.UNOPlus",
        values=UNOPlusValues,
        shared=OWN_RATE,
        terms={
            "swapped": Term("swapped", r"swapped prediction $\mathcal{L}_{swap}$"),
            "over": Term("over-clustering", r"over-clustering $\mathcal{L}_{over}$"),
        },
        health={"target_entropy": "entropy of the targets (1: uniform)", "best_head": "head of the lowest loss"},
        published={"unoplus": "uno_plus"},
        in_groups=True,
        head_values=_uno_heads,
        fault=_fault_of_unoplus,
    ),
    "orca": Entry(
        label="ORCA",
        cls="ctxgcd.methods.orca.ORCA",
        values=ORCAValues,
        terms={
            "cls": _BASELINE["cls"],
            "pair": Term("pair", r"similar pairs $\mathcal{L}_{pair}$"),
            "neg_entropy": Term("-H", r"entropy of the mean $-H(\bar{p})$"),
        },
        health={"margin": "margin", "partners_by_label": "share of partners by label"},
        published={"orca": "orca"},
        in_groups=True,
        looked_at=_test_pass,
    ),
    "xcon": Entry(
        label="XCon",
        cls="ctxgcd.methods.xcon.XCon",
        values=XConValues,
        shared=OWN_BATCH,
        terms=_L_REP
        | {
            "expert_info_nce": Term("expert InfoNCE", r"InfoNCE of the subsets $\mathcal{L}_{fine}^{u}$"),
            "expert_sup_con": Term("expert SupCon", r"SupCon of the subsets $\mathcal{L}_{fine}^{s}$"),
        },
        health={
            "smallest_subset": "images of the smallest subset",
            "median_subset": "images of the median subset",
            "largest_subset": "images of the largest subset",
        },
        ending="semi-supervised k-means",
        published={"xcon": "xcon"},
        in_groups=True,
        steps=xcon_steps,
        least="the steps of an epoch depend on the largest subset, which is known from a finished run",
        around=lambda p, epoch: p["experts"] * p["expert_batch"],
        head_values=lambda p, dim: (1 + p["experts"]) * _dino_head_values(p, dim),
        fault=fault_of_xcon,
        too_few=too_few_for_xcon,
    ),
    "dccl": Entry(
        label="DCCL",
        cls="ctxgcd.methods.dccl.DCCL",
        values=DCCLValues,
        terms=_L_REP | {"concept": Term("concept", r"concepts $\mathcal{L}_{concept}$")},
        health={"concepts": "concepts", "share_in_concepts": "share of images in concepts"},
        ending="semi-supervised k-means",
        published={"dccl": "dccl"},
        package="infomap",
        in_groups=True,
        around=concept_images,
        looked_at=_test_pass,
        head_values=_dino_head_values,
        fault=fault_of_dccl,
    ),
    "promptcal": Entry(
        label="PromptCAL",
        cls="ctxgcd.methods.promptcal.PromptCAL",
        values=PromptCALValues,
        shared=tuple(name for name in TRAINING if name != "epochs"),
        terms=_L_REP
        | {
            "affinity": Term("affinity", r"affine pairs $\mathcal{L}_{aff}$"),
            "prompt_info_nce": Term("InfoNCE (prompts)", r"InfoNCE of prompts $\mathcal{L}_{rep}^{u}$"),
            "prompt_sup_con": Term("SupCon (prompts)", r"SupCon of prompts $\mathcal{L}_{rep}^{s}$"),
            "prompt_affinity": Term("affinity (prompts)", r"affine pairs of prompts $\mathcal{L}_{aff}$"),
        },
        health={"affine_pairs": "affine pairs of a row", "prompt_affine_pairs": "affine pairs of a row (prompts)"},
        ending="semi-supervised k-means",
        published={"promptcal": "promptcal"},
        in_groups=True,
        head_values=_kept_by_promptcal,
        more_epochs=_more_of_promptcal,
        whole=True,
        fault=_fault_of_promptcal,
    ),
}

MODIFIERS: dict[str, Modifier] = {}
