"""Training of one run, from the split and cached files to predictions."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
import yaml

from ctxgcd.catalogue.entries import METHODS
from ctxgcd.errors import UserError
from ctxgcd.methods.hook_checks import returned
from ctxgcd.methods.method import Clustering, Discovery, Method
from ctxgcd.models.features import load_kept
from ctxgcd.models.network import TailNetwork
from ctxgcd.models.precision import has_bf16
from ctxgcd.pipeline import run_cache
from ctxgcd.training import checkpoint
from ctxgcd.training.devices import make_deterministic
from ctxgcd.training.load import load_backbone, open_cropper, placed
from ctxgcd.training.loop import train
from ctxgcd.training.processes import ALONE, Processes
from ctxgcd.training.provenance import commit, environment, peak_memory_mb
from ctxgcd.training.row import Row
from ctxgcd.training.step_inputs import StepInputs
from ctxgcd.training.views import BankViews, FreshViews
from ctxgcd.utils.files import clear_unfinished, replacing, write_rows, write_text

SAMPLE = 2000  # images of D^u whose features are stored for the embedding figure


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

    Args:
        parameters: the resolved parameters of the run (pipeline.resolve).
        method: the method of these parameters.
        split: the benchmark's split; only the classes of D^l are read.
        files: cached inputs by name: store, weights, test_view, view_bank, depending on method and view bank.
        state: folder of the checkpoint and of the finished run, unique to the run's identity.
        about: identity and hashes of the run, recorded in every file.
        provenance: further entries of run.json.
        processes: processes that share the work; the first one writes the files.
    """
    torch.set_num_threads(parameters["threads"])
    make_deterministic(device)
    if processes.first and parameters["precision"] == "bf16" and not has_bf16(device):
        print("warning: this device has no bfloat16 instructions; precision float32 is faster", flush=True)
    if processes.first:
        clear_unfinished(state)
    start = time.monotonic()
    by_id = split.sort_values("id")
    unlabelled, test = (split.loc[split.role == role, "id"].to_numpy() for role in ("unlabelled", "test"))
    sample = np.sort(np.random.RandomState(0).permutation(unlabelled)[:SAMPLE])
    if not isinstance(method, Method):
        frozen = load_kept(files["test_view"], (len(split),)).float().numpy()
        labelled = by_id[by_id.role == "labelled"]
        clusters, of_test, centres = method.cluster(
            frozen[unlabelled], frozen[test], frozen[labelled.id.to_numpy()], labelled.class_id.to_numpy("int64")
        )
        history, features = [], frozen[sample]
        columns: tuple[str, ...] = ("epoch", "loss")
        final: dict[str, Any] = {"centres": torch.from_numpy(centres)}
        facts: dict[str, Any] = {"epoch": 0, "active_from": {}, "shares": [], "trainable": {}}
    else:
        row, inputs = _prepared(method, by_id, files, state, device, about, processes)
        train(row, inputs)
        features_of = partial(inputs.features, row.network)
        ids = [torch.tensor(part, device=device) for part in (unlabelled, test, sample)]
        discovery = row.method.discover(row.network, features_of, inputs.labels, *ids[:2])
        returned(row.method, "discover", discovery, Discovery)
        clusters, of_test = (part.cpu().numpy() for part in (discovery.unlabelled, discovery.test))
        features, columns = features_of(ids[2]).cpu().numpy(), tuple(row.method.columns())
        history, final = row.history, {"network": row.network.state_dict(), **discovery.found}
        facts = {
            "epoch": parameters["epochs"] - 1,
            "active_from": row.method.terms(),
            "shares": row.shares,
            "collapsed": row.method.collapsed(history[-1]),
            "trainable": {n: list(q.shape) for n, q in row.network.named_parameters() if q.requires_grad},
            "training_seconds": round(row.seconds, 2),
            "steps_per_second": round(row.steps / max(row.seconds, 1e-9), 2),
            "processes": processes.count,
            **({"idle": idle} if (idle := row.method.idle(history)) else {}),
        }
    if not processes.first:
        return
    if facts.get("collapsed"):
        print(
            f"warning: {row.title}: the projections have collapsed, so the losses on them have almost no effect; try a "
            "wider projector or a smaller lr",
            flush=True,
        )
    if facts.get("idle"):
        print(f"warning: {row.title}: {facts['idle']}", flush=True)
    made = run_cache.draft(state)
    write_rows(made / "history.csv", columns, history)
    pairs = zip(np.concatenate([unlabelled, test]), np.concatenate([clusters, of_test]), strict=True)
    write_rows(made / "assignments.csv", ("id", "predicted"), ({"id": i, "predicted": c} for i, c in pairs))
    write_text(made / "params.yaml", yaml.safe_dump(parameters, sort_keys=False))
    with replacing(made / "embeddings.npz") as temporary:
        np.savez_compressed(temporary, ids=sample, features=features.astype(np.float16))
    checkpoint.save(made / "final.pt", "ctxgcd-model", {"parameters": parameters, **about, **final})
    facts |= {
        **about,
        **(provenance or {}),
        "seconds": round(time.monotonic() - start, 2),
        **peak_memory_mb(device),
        "environment": environment(device),
        "commit": commit(),
        "parameters": parameters,
    }
    write_text(made / "run.json", json.dumps(facts, indent=1) + "\n")
    run_cache.keep(state)
    for left in (*state.glob("*last.pt"), *state.glob("*last_history.csv")):  # of the stage too
        left.unlink(missing_ok=True)


def _prepared(
    method: Method,
    by_id: pd.DataFrame,
    files: Mapping[str, Path],
    state: Path,
    device: torch.device,
    about: Mapping[str, str],
    processes: Processes,
) -> tuple[Row, StepInputs]:
    training = by_id[by_id.part == "train"]
    labels = torch.tensor(training.class_id.where(training.role == "labelled", -1).to_numpy(), device=device)
    parameters, precision = method.p, method.p["precision"]
    backbone = load_backbone(parameters, method.cut, precision, files["weights"], device)
    if fault := METHODS[parameters["method"]].too_narrow(parameters, backbone.dim):
        raise UserError(f"benchmark {parameters['benchmark']}, row {parameters['row']}: {fault}")
    if bank_size := parameters["view_bank"]:
        if type(method).cut is not Method.cut:
            raise UserError(
                f"benchmark {parameters['benchmark']}, row {parameters['row']}: the method overrides `cut`, so cached "
                "views cannot be used; set view_bank to 0"
            )
        bank = placed(load_kept(files["view_bank"], (bank_size * len(labels),)), "cached views", device)
        test_view = placed(load_kept(files["test_view"], (len(by_id),)), "cached test views", device)
        views: BankViews | FreshViews = BankViews(bank.view(bank_size, len(labels), *bank.shape[1:]), test_view)
    else:
        cropper = open_cropper(parameters, files["store"], device)
        views = FreshViews(cropper, backbone, precision, state, processes)
    inputs = StepInputs(views, labels, precision, parameters["seed"], processes)
    own = method.network(backbone.tail, backbone.dim, inputs.old_classes)
    network = returned(method, "network", own, TailNetwork).to(device)
    title = f"{parameters['benchmark']} {parameters['row']} seed {parameters['seed']}"
    return Row(method, network.eval(), state / "last.pt", title, about), inputs
