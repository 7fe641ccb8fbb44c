"""Every method that a row can name: one entry here, one file in ctxgcd/methods. Nothing of this imports torch."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pkgutil import resolve_name
from typing import Any, Literal

from pydantic import Field

from ctxgcd.catalogue.sections import Closed

Values = Mapping[str, Any]  # a run's resolved parameters


TRAINING = (  # of the protocol
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


@dataclass(frozen=True)
class Term:
    """A loss term for readers.

    Attributes:
        head: in tables.
        symbol: in figures, as SimGCD and the paper write it; u: all images, s: labelled images.
    """

    head: str
    symbol: str


@dataclass(frozen=True)
class Entry:
    """A method.

    Attributes:
        label: its name for readers; that of a variant follows in brackets.
        cls: its class, by its dotted name.
        values: its section of params.yaml.
        shared: the values of the protocol that it reads.
        extends: another method whose sections it reads too.
        terms: its loss terms, in the order of tables and figures.
        variants: variant -> the named settings that belong to it; empty: the method has none.
        ablated: letter -> term that a row can leave out (`-without-n`) and whose weight lambda_LETTER `-zero` makes 0.
        trains: whether it trains a network; else its class clusters frozen features.
        ending: how it gives classes at the end.
        published: row -> its key in published numbers (tables/published.csv).
        around: (values, epoch) -> images that a step sees beside its batch; here and below all values that it reads.
        head_values: (values, length of a feature) -> numbers in its heads, the classifier aside.
        fault: values -> the reason why a run with them is refused, or an empty string.
        too_few: (values, number of training images) -> the reason why so few images are refused, or an empty string.
        warning: values -> a warning about a run that is not refused, or an empty string.
    """

    label: str
    cls: str
    values: type[Closed]
    shared: Sequence[str] = TRAINING
    extends: str = ""
    terms: Mapping[str, Term] = field(default_factory=dict)
    variants: Mapping[str, str] = field(default_factory=dict)
    ablated: Mapping[str, str] = field(default_factory=dict)
    trains: bool = True
    ending: Literal["classifier", "semi-supervised k-means", "own"] = "classifier"
    published: Mapping[str, str] = field(default_factory=dict)
    around: Callable[[Values, int], int] = lambda p, epoch: 0
    head_values: Callable[[Values, int], int] = lambda p, dim: 0
    fault: Callable[[Values], str] = lambda p: ""
    too_few: Callable[[Values, int], str] = lambda p, images: ""
    warning: Callable[[Values], str] = lambda p: ""

    @property
    def sections(self) -> dict[str, type[Closed]]:
        """The sections of params.yaml that it reads, by the names of their methods, its own last."""
        own = next(name for name, entry in METHODS.items() if entry is self)
        return {**(METHODS[self.extends].sections if self.extends else {}), own: self.values}

    @property
    def reads(self) -> list[str]:
        """All values that it reads; no other is part of a run's identity or can be changed by a row."""
        return [*self.shared, *(field for section in self.sections.values() for field in section.model_fields)]

    @property
    def weights(self) -> dict[str, str]:
        """Terms that a row can leave out -> the value that weighs each."""
        return {term: f"lambda_{letter}" for letter, term in self.ablated.items()}


@dataclass(frozen=True)
class Modifier:
    """A change of any method's class, which a row names by a word: `simgcd+eagc`.

    label: its name for readers, after the method's: "SimGCD + EAGC".
    cls: a class to be mixed in before the method's own, by its dotted name.
    """

    label: str
    cls: str


def load(method: str, modifiers: Sequence[str] = ()) -> type[Any]:
    """The class of a method with its modifiers; this alone imports them."""
    classes = [*(_named(MODIFIERS[word].cls) for word in reversed(modifiers)), _named(METHODS[method].cls)]
    return type(classes[-1].__name__, tuple(classes), {}) if modifiers else classes[0]


def all_terms() -> dict[str, Term]:
    """The loss terms of all methods by name; two methods that share a name mean the same term."""
    return {name: term for entry in METHODS.values() for name, term in entry.terms.items()}


def _named(dotted: str) -> type[Any]:
    found: type[Any] = resolve_name(dotted)
    return found


# -- values ------------------------------------------------------------------------------------------------


class KMeansValues(Closed):
    restarts: int = Field(ge=1)  #: fits from different centres; the best one counts


class Contrastive(Closed):
    """L_rep and the head that it is computed on."""

    projector_width: int = Field(ge=1)  #: width of the projector's hidden layers
    projection_dim: int = Field(ge=1)  #: length of a projection z
    supervised_weight: float = Field(ge=0, le=1)  #: lambda of the baseline: weight of the supervised losses
    info_nce_weight: float = Field(1.0, ge=0)  #: weight of InfoNCE, times 1 - supervised_weight
    sup_con_weight: float = Field(1.0, ge=0)  #: weight of SupCon, times supervised_weight
    info_nce_temperature: float = Field(gt=0)  #: temperature of InfoNCE, tau_u
    sup_con_temperature: float = Field(gt=0)  #: temperature of SupCon, tau_s


class GCDValues(Contrastive):
    head_dim: int = Field(ge=1)  #: outputs of the DINO head
    semi_kmeans_restarts: int = Field(ge=1)  #: fits of semi-supervised k-means; the best one counts
    semi_kmeans_iterations: int = Field(ge=1)  #: iterations of such a fit, at most


class SimGCDValues(Contrastive):
    entropy_weight: float = Field(ge=0)  #: epsilon, weight of the mean-entropy term
    student_temperature: float = Field(gt=0)  #: temperature of the classifier's softmax
    teacher_temperature_start: float = Field(gt=0)  #: temperature of the targets, tau_t, in epoch 0
    teacher_temperature_end: float = Field(gt=0)  #: tau_t after the warm-up of the targets
    teacher_warmup_epochs: int = Field(ge=1)  #: epochs over which tau_t goes from start to end
    teacher_schedule: Literal["linear", "cosine"]  #: shape of that change


class FullValues(Closed):
    """Those that the paper does not give are marked in params.yaml."""

    k: int = Field(ge=2)  #: images of a neighbourhood, the query included
    lambda_n: float = Field(ge=0)  #: weight of L_n
    lambda_c: float = Field(ge=0)  #: weight of L_c
    T_warm: int = Field(ge=0)  #: first epoch of the context losses
    context_delay: int = Field(ge=0)  #: epochs by which the context losses start after T_warm
    neighbour_images: int = Field(ge=2)  #: images of a neighbour batch: q = floor(neighbour_images / k) queries
    reciprocal: Literal["batch", "dataset"]  #: where reciprocal neighbours are sought: in the batch or over the dataset
    delta: float = Field(ge=0)  #: margin of L_n; in variant `paper` it only adds a constant
    tau: float = Field(gt=0)  #: temperature of L_c


def _projector_values(p: Values, dim: int) -> int:
    width, out = p["projector_width"], p["projection_dim"]
    return int((dim + 1 + width + 1) * width + (width + 1) * out)


def _dino_head_values(p: Values, dim: int) -> int:
    return _projector_values(p, dim) + int(p["head_dim"] * p["projection_dim"])


# -- the full method ---------------------------------------------------------------------------------------

FEW_EPOCHS = 5  # a term that acts in fewer epochs gives a warning


def _context_start(p: Values) -> int:
    """First epoch in which the context terms act."""
    return int(p["T_warm"] + p["context_delay"])


def _neighbours(p: Values, epoch: int) -> int:
    """Images of whole queries."""
    return int(p["neighbour_images"] // p["k"] * p["k"]) if epoch >= _context_start(p) else 0


def _fault_of_full(p: Values) -> str:
    if fault := _fault_of_simgcd(p):
        return fault
    k, around = p["k"], p["neighbour_images"]
    if k > around:
        return f"k is {k} (the query included) but must be at most neighbour_images ({around}); give a smaller k"
    if p["variant"] == "released" and p["reciprocal"] == "dataset":
        return "reciprocal 'dataset' has no meaning in variant released; use 'batch'"
    if p.get("tail_blocks") == 0:
        return (
            "tail_blocks is 0, so the feature that is classified never changes and the context losses, which "
            "train the projections, could not change a prediction; set tail_blocks to 1 or more"
        )
    acting = [term for term in p["context_terms"] if p[f"lambda_{term[-1]}"]]
    if acting and _context_start(p) >= p["epochs"]:
        return (
            f"{' and '.join(acting)} would never act, because the context terms start at epoch {_context_start(p)} of "
            f"{p['epochs']}; lower T_warm or train longer"
        )
    return ""


def _too_few_for_full(p: Values, images: int) -> str:
    k, around = p["k"], p["neighbour_images"]
    if k > images:
        return f"k is {k} (the query included) but there are only {images} training images; give a smaller k"
    if around // k > images:
        return f"neighbour_images {around} asks for more queries than there are images; give fewer"
    return ""


def _warning_for_full(p: Values) -> str:
    active = p["epochs"] - _context_start(p)
    return f"the context terms act in only {active} of {p['epochs']} epochs" if active < FEW_EPOCHS else ""


def _fault_of_simgcd(p: Values) -> str:
    if p["teacher_warmup_epochs"] > p["epochs"]:
        return (
            f"teacher_warmup_epochs {p['teacher_warmup_epochs']} exceeds epochs {p['epochs']}; "
            "give a warm-up that ends within the training"
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
    "gcd": Entry(
        label="GCD",
        cls="ctxgcd.methods.gcd.GCD",
        values=GCDValues,
        terms=_L_REP,
        ending="semi-supervised k-means",
        published={"gcd": "gcd"},
        head_values=_dino_head_values,
    ),
    "simgcd": Entry(
        label="SimGCD",
        cls="ctxgcd.methods.simgcd.SimGCD",
        values=SimGCDValues,
        fault=_fault_of_simgcd,
        terms=_BASELINE,
        published={"simgcd": "simgcd"},
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
        around=_neighbours,
        head_values=_projector_values,
        fault=_fault_of_full,
        too_few=_too_few_for_full,
        warning=_warning_for_full,
    ),
}

MODIFIERS: dict[str, Modifier] = {}
