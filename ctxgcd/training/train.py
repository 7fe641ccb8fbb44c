"""Training of one run, from the split and cached files to predictions."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
import yaml
from numpy.typing import NDArray

from ctxgcd.catalogue.entries import METHODS
from ctxgcd.errors import UserError
from ctxgcd.methods.hook_checks import returned
from ctxgcd.methods.method import Clustering, Discovery, Method
from ctxgcd.models.backbone import Backbone
from ctxgcd.models.features import load_kept
from ctxgcd.models.network import TailNetwork
from ctxgcd.models.precision import has_bf16
from ctxgcd.pipeline import run_cache
from ctxgcd.training import checkpoint
from ctxgcd.training.devices import make_deterministic
from ctxgcd.training.load import load_backbone, open_cropper, placed
from ctxgcd.training.loop import train_rows
from ctxgcd.training.processes import ALONE, Processes
from ctxgcd.training.provenance import commit, environment, peak_memory_mb
from ctxgcd.training.row import Row
from ctxgcd.training.step_inputs import StepInputs
from ctxgcd.training.views import BankViews, FreshViews
from ctxgcd.utils.files import clear_unfinished, replacing, write_rows, write_text

SAMPLE = 2000  # images of D^u whose features are stored for the embedding figure


@dataclass(frozen=True, eq=False)
class Asked:
    """A run to train.

    Attributes:
        parameters: the resolved parameters of the run (pipeline.resolve).
        method: the method of these parameters.
        files: cached inputs by name: store, weights, test_view, view_bank, depending on method and view bank.
        state: folder of the checkpoint and of the finished run, unique to the run's identity.
        about: identity and hashes of the run, recorded in every file.
        provenance: further entries of run.json.
    """

    parameters: dict[str, Any]
    method: Method | Clustering
    files: Mapping[str, Path]
    state: Path
    about: Mapping[str, str]
    provenance: Mapping[str, Any] = field(default_factory=dict)


Parts = Callable[[Sequence[Row], StepInputs], Iterable[Sequence[Row]]]


@dataclass(frozen=True)
class Found:
    """The outcome of a training or a clustering.

    Attributes:
        clusters, of_test: predicted classes of D^u and of the test part.
        features: float32 [n, dim] of the sample of D^u.
        columns, history: the rows of history.csv.
        final: content of final.pt.
        facts: entries of run.json.
    """

    clusters: NDArray[np.int64]
    of_test: NDArray[np.int64]
    features: NDArray[np.floating]
    columns: Sequence[str]
    history: Sequence[dict[str, Any]]
    final: Mapping[str, Any]
    facts: Mapping[str, Any]


def run(
    parameters: dict[str, Any],
    *,
    method: Method | Clustering,
    split: pd.DataFrame,
    files: Mapping[str, Path],
    state: Path,
    device: torch.device,
    about: Mapping[str, str],
    provenance: Mapping[str, Any] | None = None,
    processes: Processes = ALONE,
) -> None:
    """Train one run and write run.json, history.csv, params.yaml, final.pt, assignments.csv and embeddings.npz.

    split: the benchmark's split; only the classes of D^l are read. processes: processes that share the work; the first
    one writes the files. The other arguments are those of `Asked`.
    """
    run_one(Asked(parameters, method, files, state, about, provenance or {}), split, device, processes)


def run_one(asked: Asked, split: pd.DataFrame, device: torch.device, processes: Processes = ALONE) -> None:
    """Train one run, as `run`."""
    for _, error in run_rows([asked], split, device, processes):
        if error:
            raise error


def run_rows(
    asked: Sequence[Asked],
    split: pd.DataFrame,
    device: torch.device,
    processes: Processes = ALONE,
    parts: Parts = lambda rows, inputs: [rows],
) -> Iterator[tuple[Asked, UserError | None]]:
    """Train one run, or several whose rows share the trunk (training/shared.py), and write their files.

    Yields each run when it has ended, with the error that ended it. An error of a row is raised in every process alike;
    one of a single process, as a full disk, ends the training of all rows.

    parts: divides the rows into those that are trained at a time.
    """
    start, p = time.monotonic(), asked[0].parameters
    torch.set_num_threads(p["threads"])
    make_deterministic(device)
    if processes.first and p["precision"] == "bf16" and not has_bf16(device):
        print("warning: this device has no bfloat16 instructions; precision float32 is faster", flush=True)
    if processes.first:
        for one in asked:
            clear_unfinished(one.state)
    images = _Images(split)
    try:
        if not isinstance(asked[0].method, Method):
            [one] = asked
            found = images.clustered(one)  # in every process, as the others would have to wait for the first
            if processes.first:
                images.write(one, found, device, start)
            yield one, None
            return
        backbone, inputs = _loaded(asked[0], images.by_id, device, processes)
    except UserError as error:
        yield from ((one, error) for one in asked)
        return
    tails = [backbone.tail, *(deepcopy(backbone.tail) for _ in asked[1:])]  # before a row changes its own
    of: dict[Row, Asked] = {}
    for one, tail in zip(asked, tails, strict=True):
        try:
            of[_row(one, replace(backbone, tail=tail), inputs)] = one
        except UserError as error:
            yield one, error
    loading = (time.monotonic() - start) / len(asked)
    for part in parts(list(of), inputs) if of else ():
        for row in train_rows(part, inputs):
            one = of.pop(row)
            with row.ending():
                if row.error is None:
                    begun = start if len(asked) == 1 else time.monotonic() - row.seconds - loading
                    found = images.discovered(row, inputs)
                    if processes.first:
                        images.write(one, found, device, begun)
            yield one, row.error


class _Images:
    """The images of a split, and the outcome of a run on them."""

    def __init__(self, split: pd.DataFrame) -> None:
        self.by_id = split.sort_values("id")
        self.unlabelled, self.test = (split.loc[split.role == role, "id"].to_numpy() for role in ("unlabelled", "test"))
        self.sample = np.sort(np.random.RandomState(0).permutation(self.unlabelled)[:SAMPLE])

    def clustered(self, one: Asked) -> Found:
        """Return the outcome of a method without training."""
        assert not isinstance(one.method, Method)
        frozen = load_kept(one.files["test_view"], (len(self.by_id),)).float().numpy()
        labelled = self.by_id[self.by_id.role == "labelled"]
        clusters, of_test, centres = one.method.cluster(
            frozen[self.unlabelled],
            frozen[self.test],
            frozen[labelled.id.to_numpy()],
            labelled.class_id.to_numpy("int64"),
        )
        facts: dict[str, Any] = {"epoch": 0, "active_from": {}, "shares": [], "trainable": {}}
        final = {"centres": torch.from_numpy(centres)}
        return Found(clusters, of_test, frozen[self.sample], ("epoch", "loss"), [], final, facts)

    def discovered(self, row: Row, inputs: StepInputs) -> Found:
        """Return the outcome of a training."""
        features_of, method, history = partial(inputs.features, row.network), row.method, row.history
        ids = [torch.tensor(part, device=inputs.labels.device) for part in (self.unlabelled, self.test, self.sample)]
        discovery = method.discover(row.network, features_of, inputs.labels, *ids[:2])
        returned(method, "discover", discovery, Discovery)
        facts = {
            "epoch": row.epochs - 1,
            "active_from": method.terms(),
            "shares": row.shares,
            "collapsed": method.collapsed(history[-1]),
            "trainable": {n: list(q.shape) for n, q in row.network.named_parameters() if q.requires_grad},
            "training_seconds": round(row.seconds, 2),
            "steps_per_second": round(row.steps / max(row.seconds, 1e-9), 2),
            "processes": inputs.processes.count,
            **({"together": row.together} if row.together > 1 else {}),
            **({"idle": idle} if (idle := method.idle(history)) else {}),
        }
        if inputs.processes.first:
            _warn(row.title, facts)
        return Found(
            discovery.unlabelled.cpu().numpy(),
            discovery.test.cpu().numpy(),
            features_of(ids[2]).cpu().numpy(),
            tuple(method.columns()),
            history,
            {"network": row.network.state_dict(), **discovery.found},
            facts,
        )

    def write(self, one: Asked, found: Found, device: torch.device, start: float) -> None:
        """Write the files of a run that has begun at this time, and keep it in the run cache."""
        made = run_cache.draft(one.state)
        write_rows(made / "history.csv", found.columns, found.history)
        ids, classes = np.concatenate([self.unlabelled, self.test]), np.concatenate([found.clusters, found.of_test])
        pairs = zip(ids, classes, strict=True)
        write_rows(made / "assignments.csv", ("id", "predicted"), ({"id": i, "predicted": c} for i, c in pairs))
        write_text(made / "params.yaml", yaml.safe_dump(one.parameters, sort_keys=False))
        with replacing(made / "embeddings.npz") as temporary:
            np.savez_compressed(temporary, ids=self.sample, features=found.features.astype(np.float16))
        checkpoint.save(made / "final.pt", "ctxgcd-model", {"parameters": one.parameters, **one.about, **found.final})
        facts = {
            **found.facts,
            **one.about,
            **one.provenance,
            "seconds": round(time.monotonic() - start, 2),
            **peak_memory_mb(device),
            "environment": environment(device, METHODS[one.parameters["method"]].package),
            "commit": commit(),
            "parameters": one.parameters,
        }
        write_text(made / "run.json", json.dumps(facts, indent=1) + "\n")
        run_cache.keep(one.state)
        for left in (*one.state.glob("*last.pt"), *one.state.glob("*last_history.csv")):  # of the stage too
            left.unlink(missing_ok=True)


def _warn(title: str, facts: Mapping[str, Any]) -> None:
    if facts["collapsed"]:
        print(
            f"warning: {title}: the projections have collapsed, so the losses on them have almost no effect; try a "
            "wider projector or a smaller lr",
            flush=True,
        )
    if facts.get("idle"):
        print(f"warning: {title}: {facts['idle']}", flush=True)


def _loaded(one: Asked, by_id: pd.DataFrame, device: torch.device, processes: Processes) -> tuple[Backbone, StepInputs]:
    """Return the backbone and the inputs of a run."""
    assert isinstance(one.method, Method)
    training = by_id[by_id.part == "train"]
    labels = torch.tensor(training.class_id.where(training.role == "labelled", -1).to_numpy(), device=device)
    parameters, files, precision = one.method.p, one.files, one.method.p["precision"]
    backbone = load_backbone(parameters, one.method.cut, precision, files["weights"], device)
    if bank_size := parameters["view_bank"]:
        if type(one.method).cut is not Method.cut:
            raise UserError(
                f"benchmark {parameters['benchmark']}, row {parameters['row']}: the method overrides `cut`, so cached "
                "views cannot be used; set view_bank to 0"
            )
        bank = placed(load_kept(files["view_bank"], (bank_size * len(labels),)), "cached views", device)
        test_view = placed(load_kept(files["test_view"], (len(by_id),)), "cached test views", device)
        views: BankViews | FreshViews = BankViews(bank.view(bank_size, len(labels), *bank.shape[1:]), test_view)
    else:
        cropper = open_cropper(parameters, files["store"], device)
        views = FreshViews(cropper, backbone, precision, one.state, processes)
    return backbone, StepInputs(views, labels, precision, parameters["seed"], processes)


def _row(one: Asked, backbone: Backbone, inputs: StepInputs) -> Row:
    method, device, p = one.method, inputs.labels.device, one.parameters
    assert isinstance(method, Method)
    if fault := METHODS[p["method"]].too_narrow(p, backbone.dim):
        raise UserError(f"benchmark {p['benchmark']}, row {p['row']}: {fault}")
    own = method.network(backbone.tail, backbone.dim, inputs.old_classes)
    network = returned(method, "network", own, TailNetwork).to(device)
    title = f"{p['benchmark']} {p['row']} seed {p['seed']}"
    return Row(method, network.eval(), one.state / "last.pt", title, one.about)
