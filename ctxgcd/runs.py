"""What a run is: benchmark, row, seed -> resolved parameters, identity, folder."""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import yaml

from ctxgcd.benchmarks.class_lists import load as load_class_list
from ctxgcd.benchmarks.fingerprint import data_fingerprint
from ctxgcd.benchmarks.weights import weights_fingerprint
from ctxgcd.config import SEEDS, Backbone, Benchmark, Official, Own, Params, Protocol, Settings, require, validated
from ctxgcd.errors import UserError
from ctxgcd.files import read_object
from ctxgcd.names import CONTEXT_TERMS, METHODS, VARIANTS

ESTIMATED = "estimated"  # stands for K in the parameters of a run that reads it from a file

ROW = re.compile(
    r"(?P<method>[a-z]+)(?:-(?P<variant>[a-z]+?))??(?P<overrides>(?:\+\w+=[\w.-]+?)*)(?P<ablated>-without-n|-without-c|-zero)?"
)
# The settings that belong to each variant unless the row names others with `+settings=`.
SETTINGS_OF_VARIANT = {"paper": "paper", "released": "released", "mended": "paper"}

# The fields that each method reads. A run's identity holds these and no others, so that a value
# which cannot change a result never trains it again.
SPLIT_FIELDS = ("benchmark", "class_list", "classes", "trial", "data", "split_seed", "labelled_share", "K", "K_source")
FEATURE_FIELDS = ("model", "weights", "mean", "std", "resize", "crop")
BANK_FIELDS = ("tail_blocks", "view_bank", "view_bank_seed")
KMEANS_FIELDS = ("kmeans_restarts", "precision", "threads")
CONTEXT_FIELDS = (
    "k",
    "lambda_n",
    "lambda_c",
    "T_warm",
    "context_delay",
    "neighbour_images",
    "reciprocal",
    "delta",
    "tau",
)
GCD_ONLY = ("gcd_head_dim", "semi_kmeans_restarts", "semi_kmeans_iterations")
SIMGCD_FIELDS = (
    *BANK_FIELDS,
    *(
        f
        for f in Protocol.model_fields
        if f not in {"backbone", "T_warm", "kmeans_restarts", *FEATURE_FIELDS, *BANK_FIELDS, *GCD_ONLY}
    ),
    *(f for f in Settings.model_fields if f not in CONTEXT_FIELDS),
    "entropy_weight",
)
METHOD_FIELDS = {
    "kmeans": KMEANS_FIELDS,
    "gcd": (
        *(f for f in SIMGCD_FIELDS if f not in {"student_temperature", "entropy_weight"} and "teacher" not in f),
        *GCD_ONLY,
    ),
    "simgcd": SIMGCD_FIELDS,
    "full": (*SIMGCD_FIELDS, "variant", "settings", "context_terms", *CONTEXT_FIELDS),
}

# Rooms and modules whose code can change a trained result.
TRAINING_CODE = ("images", "models", "features.py", "losses", "clustering", "context", "methods", "training")
SCORING_CODE = ("evaluation",)
ESTIMATE_CODE = ("clustering", "estimate.py", "evaluation/accuracy.py")


@dataclass(frozen=True, order=True)
class Run:
    """One training: the unit of work, of resuming and of averaging."""

    benchmark: str
    row: str
    seed: int

    @property
    def folder(self) -> str:
        return f"results/runs/{self.benchmark}/{self.row}/seed{self.seed}"

    def file(self, name: str) -> str:
        return f"{self.folder}/{name}"


def read_seed(text: str) -> int:
    """The seed in the name of a run's folder. Raises UserError for one that no run has, or another spelling of one."""
    if not re.fullmatch("0|[1-9][0-9]{0,9}", text) or int(text) >= SEEDS:
        raise UserError(
            f"seed{text} is no run's folder; write seed and a whole number from 0 to {SEEDS - 1}, as in seed1"
        )
    return int(text)


def resolve(params: Params, benchmark: str, row: str, seed: int) -> dict[str, Any]:
    """Every value that the run reads, flat, in a fixed order.

    Order of precedence: protocol and named settings, the benchmark's `overrides`, the benchmark's
    `settings`, the row's own `+key=value`. Raises UserError for an unknown or impossible row or value.
    """
    if benchmark not in params.benchmarks:
        refuse(benchmark, params.benchmarks, "params.yaml", "benchmark")
    entry = params.benchmarks[benchmark]
    method, variant, overrides, terms, zeroed = parse_row(row)
    k, k_source = assumed_k(
        entry,
        overrides.get("K", entry.K),
        f"benchmark {benchmark}, row {row}" if "K" in overrides else f"benchmarks.{benchmark}.K",
    )
    overrides.pop("K", None)
    settings_name = str(overrides.pop("settings", SETTINGS_OF_VARIANT[variant or "paper"]))
    if settings_name not in params.settings:
        refuse(settings_name, params.settings, f"row '{row}'", "settings")

    values = {
        **protocol_of(params, benchmark).model_dump(),
        **params.settings[settings_name].model_dump(),
        **entry.overrides,
        **entry.settings.get(settings_name, {}),
    }
    allowed = [field for field in METHOD_FIELDS[method] if field in values]
    for key in overrides:
        if key not in allowed:
            refuse(key, [*allowed, "K", "settings"], f"row '{row}'", "parameter")
    values |= overrides
    values |= {f"lambda_{term[-1]}": 0.0 for term in zeroed}
    where = f"benchmark {benchmark}, row {row}"
    protocol = validated(Protocol, {f: values[f] for f in Protocol.model_fields}, where)
    settings = validated(Settings, {f: values[f] for f in Settings.model_fields}, where)

    values |= {
        **protocol.model_dump(),
        **settings.model_dump(),
        **params.backbones[protocol.backbone].model_dump(),
        "weights": weights_of(params.backbones[protocol.backbone]),
        "benchmark": benchmark,
        **images_of(benchmark, entry),
        "split_seed": params.split.seed,
        "labelled_share": params.split.labelled_share,
        "K": k,
        "K_source": k_source,
        "entropy_weight": entry.entropy_weight,
        "variant": variant,
        "settings": settings_name,
        "context_terms": terms,
    }
    # Values that this very run never reads take no part in its identity either.
    unread = {f"lambda_{term[-1]}" for term in CONTEXT_TERMS if term not in terms}
    unread |= set() if values["view_bank"] else {"view_bank_seed"}
    unread |= set(SPLIT_FIELDS) - values.keys()  # own images have contents, official ones a versioned list
    fields = [f for f in (*SPLIT_FIELDS, *FEATURE_FIELDS, *METHOD_FIELDS[method]) if f not in unread]
    resolved: dict[str, Any] = {"row": row, "method": method, "seed": seed} | {f: values[f] for f in fields}
    if "teacher_schedule" in resolved and resolved["teacher_warmup_epochs"] > resolved["epochs"]:
        raise UserError(
            f"{where}: teacher_warmup_epochs {resolved['teacher_warmup_epochs']} exceeds epochs {resolved['epochs']}; "
            "give a warm-up that ends within the training"
        )
    _check_values(resolved)
    if entry.images != "any":
        check_possible(resolved, entry.images.train)
    return resolved


def images_of(benchmark: str, entry: Benchmark) -> dict[str, Any]:
    """What says which images a benchmark has and how their classes are known, without the place where they lie."""
    if isinstance(entry, Own):
        return {"data": _own_data(benchmark, entry.model_dump_json()), "classes": entry.classes}
    return entry.model_dump(include={"class_list", "classes", "trial"})


def protocol_of(params: Params, benchmark: str) -> Protocol:
    """A benchmark's protocol with its `overrides`: what its images, features and runs share."""
    entry = params.benchmarks[benchmark]
    own = {key: value for key, value in entry.overrides.items() if key in Protocol.model_fields}
    where = f"benchmark {benchmark}, overrides"
    return validated(Protocol, params.protocols[entry.protocol].model_dump() | own, where)


def backbone_of(params: Params, benchmark: str) -> Backbone:
    """The backbone that a benchmark's protocol names."""
    return params.backbones[protocol_of(params, benchmark).backbone]


def weights_of(backbone: Backbone) -> str:
    """What names a backbone's weights in a run's identity."""
    return weights_fingerprint(backbone.weights, backbone.sha256)


def parse_row(row: str) -> tuple[str, str | None, dict[str, Any], list[str], list[str]]:
    """Split a row name into method, variant, overrides, the context terms it computes and those at weight 0."""
    match = ROW.fullmatch(row)
    method = match["method"] if match else row.split("-")[0].split("+")[0]
    if method not in METHODS:
        refuse(method, METHODS, f"row '{row}'", "method")
    if match is None:
        raise UserError(
            f"row '{row}' cannot be read; write METHOD[-VARIANT][+key=value...][-without-n|-without-c|-zero]"
        )
    variant, ablated = match["variant"], match["ablated"]
    if method == "full" and variant not in VARIANTS:
        refuse(variant or "", VARIANTS, f"row '{row}'", "variant of full")
    if method != "full" and (variant or ablated):
        raise UserError(f"row '{row}': {method} has neither variants nor context terms; write '{method}'")
    pairs = [pair.split("=", 1) for pair in match["overrides"].split("+")[1:]]
    overrides = {key: _value(text) for key, text in pairs}
    if len(overrides) < len(pairs):
        raise UserError(f"row '{row}' gives a parameter twice; give each once")
    if method == "kmeans" and "settings" in overrides:
        raise UserError(f"row '{row}': kmeans reads no settings; write 'kmeans'")
    terms = {"-without-n": ["L_c"], "-without-c": ["L_n"]}.get(ablated, ["L_n", "L_c"])
    return method, variant, overrides, terms, terms if ablated == "-zero" else []


def identity(parameters: dict[str, Any], split_hash: str = "", code: str = "") -> str:
    """Sixteen hex digits over the resolved parameters (their row name aside), the split and the training code."""
    own = {key: value for key, value in parameters.items() if key != "row"}
    text = json.dumps([own, split_hash, code], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def short_hash(*texts: str) -> str:
    """Eight hex digits over some texts."""
    return hashlib.sha256("\0".join(texts).encode()).hexdigest()[:8]


def parameters_hash(parameters: dict[str, Any]) -> str:
    """Eight hex digits over a run's parameters as they are asked for: where K is estimated, without its number."""
    own = {key: value for key, value in parameters.items() if key != "K" or parameters.get("K_source") != ESTIMATED}
    return short_hash(json.dumps(own, sort_keys=True))


def code_hash(parts: Iterable[str] = TRAINING_CODE) -> str:
    """Sixteen hex digits over the source of rooms or modules of this package."""
    root = Path(__file__).parent
    digest = hashlib.sha256()
    for part in parts:
        path = root / part
        for file in sorted(path.rglob("*.py")) if path.is_dir() else [path]:
            digest.update(file.relative_to(root).as_posix().encode() + b"\0" + file.read_bytes())
    return digest.hexdigest()[:16]


@lru_cache
def _own_data(benchmark: str, section: str) -> str:
    """The fingerprint of a user's own images, once a process: every run of theirs asks for it."""
    return data_fingerprint(benchmark, json.loads(section))


def assumed_k(entry: Benchmark, asked: Any, where: str) -> tuple[int | str, str]:
    """The K that a run assumes and its source: true, given or estimated; an estimated K is a file's, not known here."""
    if asked is True:
        return k_of(entry), "true"
    if asked == "estimated":
        return ESTIMATED, "estimated"
    old = 1 if isinstance(entry, Own) else len(old_classes(entry))
    if not isinstance(asked, int) or asked < max(2, old):
        raise UserError(f"{where}: K is {asked}; give true, estimated or a number of at least {max(2, old)} classes")
    return asked, "given"


def estimate_of(params: Params, benchmark: str) -> dict[str, int]:
    """How a benchmark's K is estimated: seed, restarts, most, threads."""
    return params.estimate.model_dump() | {"threads": protocol_of(params, benchmark).threads}


def estimate_file(benchmark: str) -> Path:
    """Where a benchmark's estimated K stands."""
    return Path(f"results/estimates/{benchmark}.json")


def read_estimate(path: Path) -> int:
    """The K that estimate_k wrote. Raises UserError for a file that holds none."""
    k = read_object(path, "K")["K"]
    if type(k) is not int or k < 2:
        raise UserError(f"{path} holds no estimate of K; delete it and run the same command again")
    return k


def old_classes(entry: Official) -> tuple[int, ...]:
    """The old classes of an official benchmark, known without any data."""
    old = load_class_list(entry.class_list, entry.classes).old
    return old[: (len(old) + 1) // 2] if entry.trial else old


def k_of(entry: Benchmark) -> int:
    """Number of classes, old and new together, known without any data."""
    if isinstance(entry, Own):
        return entry.classes
    listed = load_class_list(entry.class_list, entry.classes)
    return len(listed.old) if entry.trial else listed.k  # a trial divides the old classes alone


def active_epochs(parameters: dict[str, Any]) -> int:
    """Number of epochs in which the context terms of a `full` run act."""
    return max(0, parameters["epochs"] - parameters["T_warm"] - parameters["context_delay"])


def check_possible(resolved: dict[str, Any], images: int) -> None:
    """Refuse a run that needs more training images than there are.

    images: number of training images, D^l and D^u together.
    """
    where = f"benchmark {resolved['benchmark']}, row {resolved['row']}"
    if resolved["K"] != ESTIMATED and resolved["K"] > images:
        raise UserError(
            f"{where}: K is {resolved['K']} but there are only {images} training images; give fewer classes"
        )
    if resolved["method"] == "kmeans":
        return
    if resolved["batch_size"] > images:
        raise UserError(
            f"{where}: batch_size {resolved['batch_size']} exceeds the {images} training images, so no step would be "
            "made; give a smaller batch_size"
        )
    if resolved["method"] != "full":
        return
    k, around = resolved["k"], resolved["neighbour_images"]
    if k > images:
        raise UserError(
            f"{where}: k is {k} (the query included) but there are only {images} training images; give a smaller k"
        )
    if around // k > images:
        raise UserError(f"{where}: neighbour_images {around} asks for more queries than there are images; give fewer")


def limits_of(params: Params, asked: Iterable[Run]) -> str:
    """What `check_asked` reads of the runs whose number of images only their split tells, as JSON."""
    own = {(run.benchmark, run.row) for run in asked if params.benchmarks[run.benchmark].images == "any"}
    names = ("benchmark", "row", "method", "K", "batch_size", "k", "neighbour_images")
    found = [resolve(params, benchmark, row, 0) for benchmark, row in sorted(own)]
    return json.dumps([{name: one[name] for name in names if name in one} for one in found])


def check_asked(benchmark: str, images: int) -> None:
    """Refuse the first impossible run of a benchmark that the workflow leaves in the environment variable CTXGCD_RUNS.

    So a run that its training would refuse is refused before any image is packed.
    """
    for resolved in json.loads(os.environ.get("CTXGCD_RUNS", "[]")):
        if resolved["benchmark"] == benchmark:
            check_possible(resolved, images)


def _check_values(resolved: dict[str, Any]) -> None:
    """Refuse values of `full` that are well formed but could not train or would silently train something else."""
    if resolved["method"] != "full":
        return
    where = f"benchmark {resolved['benchmark']}, row {resolved['row']}"
    k, around = resolved["k"], resolved["neighbour_images"]
    if k > around:
        raise UserError(
            f"{where}: k is {k} (the query included) but must be at most neighbour_images ({around}); give a smaller k"
        )
    if resolved["variant"] == "released" and resolved["reciprocal"] == "dataset":
        raise UserError(f"{where}: reciprocal 'dataset' has no meaning in variant released; use 'batch'")
    if resolved["tail_blocks"] == 0:
        raise UserError(
            f"{where}: tail_blocks is 0, so the feature that is classified never changes and the context losses, which "
            "train the projections, could not change a prediction; set tail_blocks to 1 or more"
        )
    weights = {term: resolved[f"lambda_{term[-1]}"] for term in resolved["context_terms"]}
    if any(weights.values()) and active_epochs(resolved) == 0:
        raise UserError(
            f"{where}: {' and '.join(t for t, w in weights.items() if w)} would never act, because the context terms "
            f"start at epoch {resolved['T_warm'] + resolved['context_delay']} of {resolved['epochs']}; lower T_warm or "
            "train longer"
        )


def _value(text: str) -> Any:
    """A number where the text is one (also 1e-05, which YAML 1.1 reads as a string), else a word, true or false.

    Other numbers of YAML stay texts and are refused later: 060 would be 48 there.
    """
    try:
        return json.loads(text)
    except json.JSONDecodeError:
        value = yaml.safe_load(text)
        return value if isinstance(value, bool) else text


def refuse(name: str, valid: Iterable[str], where: str, kind: str) -> None:
    """Raise a UserError that lists the valid names unless `name` is one of them."""
    try:
        require(name, valid, where, kind)
    except ValueError as error:
        raise UserError(str(error)) from None
