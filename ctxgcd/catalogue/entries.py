"""The methods that rows can use: one entry in this module and one file in ctxgcd/methods. Does not import torch."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pkgutil import resolve_name
from typing import Any, Literal

from pydantic import Field

from ctxgcd.catalogue.compared import (
    DCCLValues,
    ORCAValues,
    PromptCALValues,
    RSPlusValues,
    UNOPlusValues,
    XConValues,
    concept_images,
    fault_of_dccl,
    fault_of_promptcal,
    fault_of_unoplus,
    fault_of_xcon,
    kept_by_promptcal,
    more_of_promptcal,
    too_few_for_xcon,
    too_narrow_for_rsplus,
    uno_heads,
    xcon_steps,
)
from ctxgcd.catalogue.contrastive import Contrastive, GCDValues, Values, dino_head_values, projector_values
from ctxgcd.catalogue.sections import Closed

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
        swept: (values, epoch) -> whether the method asks for the features of the training images' test views before it.
        head_values: (values, feature dimension) -> number of parameters of the heads without the classifier.
        more_epochs: values -> epochs of SimGCD with the cost of a stage, a teacher and gradients of the whole backbone.
        whole: whether prompts train in all blocks of a ViT, so that no output of the backbone can be cached.
        fault: values -> why a run with these values is refused, or an empty string.
        too_few: (values, number of training images) -> why this number of images is refused, or an empty string.
        too_narrow: (values, feature dimension) -> why this dimension is refused, or an empty string.
        needs_new: whether K must be larger than the number of Old classes.
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
    swept: Callable[[Values, int], bool] = lambda p, epoch: False
    head_values: Callable[[Values, int], int] = lambda p, dim: 0
    more_epochs: Callable[[Values], float] = lambda p: 0.0
    whole: bool = False
    fault: Callable[[Values], str] = lambda p: ""
    too_few: Callable[[Values, int], str] = lambda p, images: ""
    too_narrow: Callable[[Values, int], str] = lambda p, dim: ""
    needs_new: bool = False
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


def _swept_for_lists(p: Values, epoch: int) -> bool:
    """Return whether the neighbour lists are computed from the features of the test views."""
    return bool(p["neighbour_lists"] == "paper" and epoch >= _context_start(p))


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
        head_values=dino_head_values,
    ),
    "simgcd": Entry(
        label="SimGCD",
        cls="ctxgcd.methods.simgcd.SimGCD",
        values=SimGCDValues,
        fault=_fault_of_simgcd,
        terms=_BASELINE,
        published={"simgcd": "simgcd"},
        in_groups=True,
        head_values=projector_values,
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
        swept=_swept_for_lists,
        head_values=projector_values,
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
        too_narrow=too_narrow_for_rsplus,
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
        head_values=uno_heads,
        fault=fault_of_unoplus,
        needs_new=True,
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
        swept=lambda p, epoch: True,
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
        swept=lambda p, epoch: epoch == 0,
        head_values=lambda p, dim: (1 + p["experts"]) * dino_head_values(p, dim),
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
        swept=lambda p, epoch: True,
        head_values=dino_head_values,
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
        head_values=kept_by_promptcal,
        more_epochs=more_of_promptcal,
        whole=True,
        fault=fault_of_promptcal,
    ),
}

MODIFIERS: dict[str, Modifier] = {}
