"""The steps of a discovery, from a folder of images and a few labels to the classes of all images.

Each step is cached, and an interrupted discovery is resumed.
"""

from __future__ import annotations

import json
import os
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
import yaml

from ctxgcd.benchmarks.readers.own_images import FOLDER, misnamed
from ctxgcd.benchmarks.readers.reader import store_bytes
from ctxgcd.clustering.estimate import estimate_k
from ctxgcd.discover import model as models
from ctxgcd.discover import self_check
from ctxgcd.discover.checks import Request
from ctxgcd.discover.classes import Classes
from ctxgcd.discover.found import Found
from ctxgcd.discover.label import refreshed
from ctxgcd.discover.model import Model
from ctxgcd.discover.output import CORRECTIONS, Output, read_record
from ctxgcd.discover.presets import cores, estimate_of
from ctxgcd.discover.results import Results
from ctxgcd.discover.sentences import on_check
from ctxgcd.discover.show import Pictures, write_shown
from ctxgcd.discover.wanted import wanted_of
from ctxgcd.errors import UserError
from ctxgcd.images.pack import pack
from ctxgcd.images.packed import left_out
from ctxgcd.methods.build import method_of
from ctxgcd.models.backbone import Backbone
from ctxgcd.models.features import extract_test_view, extract_view_bank, load_kept
from ctxgcd.models.weights import prepare
from ctxgcd.names import counted
from ctxgcd.pipeline import run_cache
from ctxgcd.pipeline.code import classes_of, reached
from ctxgcd.pipeline.few_images import fitted
from ctxgcd.pipeline.identity import content_hash, identity
from ctxgcd.pipeline.possible import check_k
from ctxgcd.training import checkpoint
from ctxgcd.training.checkpoint import owned
from ctxgcd.training.devices import borrowed_devices, make_deterministic
from ctxgcd.training.load import load_backbone, open_cropper
from ctxgcd.training.train import run
from ctxgcd.training.views import BATCH
from ctxgcd.utils.files import clear_unfinished, read_object, read_rows, write_rows, write_text
from ctxgcd.utils.user_tables import listed

TRAINING = 3, 20_000_000  # times the backbone's weights and bytes: two checkpoints, the run twice, and the results
PACKING = (
    "ctxgcd.images.pack",
    "ctxgcd.benchmarks.readers.decoding",
)  # modules that steps start from, as pipeline/code.py
FEATURES = ("ctxgcd.models.features", "ctxgcd.training.load", "ctxgcd.models.weights")
TRAINING_CODE = (*PACKING, *FEATURES, "ctxgcd.training.train")


def discover(request: Request) -> dict[str, Any]:
    """Run a discovery; see api.discover."""
    output = request.output
    created = output.claim()
    with owned(output.work), output.undone_if_refused(created), borrowed_devices(1) as [device]:
        output.begin()
        code = reached("ctxgcd.discover.discovery", PACKING[1], *classes_of(request.values["method"])).hash
        if facts := _complete(request, output, code):
            print(f"{output.out} is up to date", flush=True)
            return facts
        for line in request.notes:
            print(f"note: {line}", flush=True)
        torch.set_num_threads(cores())  # for the features, which do not depend on it; the training sets its own
        make_deterministic(device)
        clear_unfinished(request.out)
        return _Work(request.folder, output, request.values, device, code).discover(request)


def _complete(request: Request, output: Output, code: str) -> dict[str, Any] | None:
    """Return the facts of the results in OUT if they are those of the request, without using OUT/work; else None.

    Raises UserError if other results replaced those from which the request continues.
    """
    if (again := request.continued) is None:
        return _placed(output.finished(code), output, request.folder)
    results = again.results
    if read_record(results.out) != results.record:
        raise UserError(f"{results.out} was changed by another call meanwhile; run the same command again")
    if not again.unchanged:
        return None
    facts: dict[str, Any] = results.record["facts"]
    whole = all((results.out / name).is_file() for name in results.record["files"])
    if whole and facts["corrected"] == results.state.said:
        return _placed(facts, output, request.folder)
    return refreshed(results, _relative(request.folder, results.out))


def _placed(facts: dict[str, Any] | None, output: Output, folder: Path) -> dict[str, Any] | None:
    """Return the facts of the results in OUT, written again if OUT was moved away from the folder of the images."""
    place = _relative(folder, output.out)
    if facts and (results := Results.there(output.out)) and results.record["folder"] != place:
        return refreshed(results, place)
    return facts


def _relative(folder: Path, out: Path) -> str:
    return Path(os.path.relpath(folder.resolve(), out.resolve())).as_posix()


@dataclass(frozen=True)
class _Work:
    """One discovery. Its folders OUT/work/images-*/features-*/run-* are named by hashes of their contents."""

    folder: Path
    out: Output
    values: dict[str, Any]
    device: torch.device
    code: str  # of all results in OUT

    def discover(self, request: Request) -> dict[str, Any]:
        v, paths, notes = self.values, request.paths, list(request.notes)
        packed_by = reached(*PACKING).hash
        content = content_hash([request.images, v["resize"], str(self.folder.resolve()), packed_by])
        place = self.out.work / f"images-{content}"
        # Prepare the weights first, so that weights that do not fit are reported before the long steps.
        weights = prepare(v["model"], v["weights"], v["crop"], place / "weights.pt", v["sha256"])
        place = self.out.folder(place)
        store = place / "images.npz"
        if not store.exists():
            self.out.require_space(int(store_bytes(FOLDER, len(paths), v["resize"])), f"packing {len(paths):,} images")
        digest = pack("folder", self.folder, paths, v["resize"], store, cores(), leave_out=True)
        undecodable = left_out(store)
        if unreadable := misnamed(self.folder) | undecodable:
            notes.append(
                f"{counted(len(unreadable), 'image')} cannot be read: {listed(unreadable)}; see unreadable.csv"
            )
            print(f"note: {notes[-1]}", flush=True)
        wanted = wanted_of(request, [path for path in paths if path not in undecodable])
        split, known, classes, notes = wanted.split, wanted.known, request.classes, [*notes, *wanted.notes]
        for line in wanted.notes:
            print(f"note: {line}", flush=True)

        place, files = self._features(place, store, weights, len(split))
        how = None
        if classes is None:
            classes, how = self._estimate(place, files, split, known)
        source = wanted.source or ("estimated" if how else "given")
        parameters, smaller = fitted(v | {"K": classes, "K_source": source, **wanted.origin}, len(split))
        for line in smaller:
            print(f"note: {line}", flush=True)
        split_hash = content_hash([digest, split.to_csv()])
        trained_by = reached(*TRAINING_CODE, *wanted.code, *classes_of(v["method"])).hash
        own = identity(parameters, split_hash, trained_by)
        state = self.out.folder(place / f"run-{own}")
        if facts := _placed(self.out.finished(self.code, state), self.out, self.folder):
            print(f"{self.out.out} is up to date", flush=True)
            return facts
        trained = self.out.work / "run"
        if not run_cache.give(state, trained):
            times, more = TRAINING
            self.out.require_space(times * files["weights"].stat().st_size + more, "training")
            hashes = {"identity": own, "split_sha256": split_hash, "code": trained_by}
            check_k(parameters, split)
            method = wanted.method(method_of(parameters))
            run(parameters, method=method, split=split, files=files, state=state, device=self.device, about=hashes)
            run_cache.give(state, trained)
        checked = wanted.checked or self._check(place, files, split, estimated=how is not None)
        assigned = read_rows(trained / "assignments.csv", usecols=["predicted"])["predicted"]
        named = wanted.named(assigned, classes)
        corrections = wanted.corrections(named)
        folder = _relative(self.folder, self.out.out)
        about = {
            "folder": folder,
            "numbers": named.stored(),
            "taken": corrections.digest,
        }
        kept = [CORRECTIONS] * bool(request.continued)
        with self.out.replaced(state, self.code, kept, **about) as (new, facts):
            if unreadable:
                rows = ({"path": path, "reason": reason} for path, reason in unreadable.items())
                write_rows(new / "unreadable.csv", ("path", "reason"), rows)
            made, found = self._results(trained, files, split, parameters, named, set(wanted.given), new)
            facts |= {
                "unreadable": len(unreadable),
                "known": known,
                "K": classes,
                "K_source": source,
                "tried": how,
                "threshold": made.threshold,
                "check": checked,
                "notes": notes,
                "adapted": smaller,
                "changed": wanted.changed(named, found, corrections),
            }
            pictures = Pictures(store, dict(zip(split["path"], split["id"], strict=True)), folder)
            labels = {path: request.labels[path] for path in split["path"] if path in wanted.given}
            write_shown(made, found, named, corrections, labels, facts, pictures, new)
        return facts

    def _features(self, place: Path, store: Path, weights: str, images: int) -> tuple[Path, dict[str, Path]]:
        """Cache the trunk's outputs; return their folder and the input files of the training.

        weights: hash of the weights.
        """
        v, device, prepared = self.values, self.device, place / "weights.pt"
        of_backbone, of_protocol = ("model", "blocks", "crop", "mean", "std"), ("tail", "tail_blocks")
        of = (*of_backbone, *of_protocol, "view_bank", "view_bank_seed", "precision")
        made_by = reached(*FEATURES).hash
        content = content_hash([weights, made_by, *(v[key] for key in of if key in v)])
        place = self.out.folder(place / f"features-{content}")
        files = {"store": store, "weights": prepared, "test_view": place / "test_view.npy"}
        if v["view_bank"]:
            files["view_bank"] = place / "view_bank.npy"
        if not all(file.exists() for file in files.values()):
            cropper = open_cropper(v, store, device)
            trunk = self._backbone(prepared)
            if not files["test_view"].exists():
                extract_test_view(trunk, cropper, v["precision"], files["test_view"])
            if "view_bank" in files and not files["view_bank"].exists():
                bank = (v["view_bank"], v["view_bank_seed"], v["precision"], files["view_bank"])
                extract_view_bank(trunk, cropper, images, *bank)
        return place, files

    def _backbone(self, prepared: Path) -> Backbone:
        v = self.values
        return load_backbone(v, method_of(v).cut, v["precision"], prepared, self.device)

    @torch.no_grad()
    def _frozen(self, files: Mapping[str, Path], images: int) -> torch.Tensor:
        """Return the features of the backbone before training, float32 [images, d] on the host."""
        kept = load_kept(files["test_view"], (images,))
        if self.values.get("tail") == "adapter":  # which is after the whole backbone
            return kept.float()
        tail = self._backbone(files["weights"]).tail
        return torch.cat([tail(rows.to(self.device).float()).float().cpu() for rows in kept.split(BATCH)])

    def _estimate(
        self, place: Path, files: Mapping[str, Path], split: pd.DataFrame, known: int
    ) -> tuple[int, dict[int, float]]:
        """Return the estimated K and the accuracy of every K tried, from the features before training."""
        v = self.values
        how = estimate_of(len(split), known, v["threads"])
        content = content_hash([how, split.to_csv(), reached("ctxgcd.clustering.estimate").hash])
        file = place / f"estimate-{content}.json"
        if not file.exists():
            frozen = self._frozen(files, len(split)).numpy()
            labels = split["class_id"].to_numpy("int64")
            best, tried = estimate_k(frozen, labels, **how)
            write_text(file, json.dumps({"K": best, "tried": tried}))
        found = read_object(file, "K", "tried")
        print(f"estimated K: {found['K']}", flush=True)
        return found["K"], {int(classes): accuracy for classes, accuracy in found["tried"].items()}

    def _check(self, place: Path, files: Mapping[str, Path], split: pd.DataFrame, *, estimated: bool) -> dict[str, Any]:
        """Return the result of the check on the labels, with sentences `said`."""
        v = self.values
        if reason := self_check.skipped(v, split):
            return {"skipped": reason, "said": [f"Check on your labels: skipped, because {reason}."]}
        trial, ids = self_check.hidden_half(split)
        code = reached("ctxgcd.discover.self_check", *classes_of(v["method"])).hash
        own = {key: value for key, value in v.items() if key != "benchmark"}
        file = place / f"check-{content_hash([own, trial.to_csv(), ids.tolist(), code])}.json"
        if not file.exists():
            print(f"check on your labels: {counted(len(trial), 'image')}, half of the classes hidden", flush=True)
            bank = load_kept(files["view_bank"], (v["view_bank"] * len(split),))
            bank = bank.view(v["view_bank"], len(split), *bank.shape[1:])[:, ids].to(self.device)
            test_view = load_kept(files["test_view"], (len(split),))[ids].to(self.device)
            frozen = self._frozen(files, len(split))[ids]
            found = self_check.check(v, trial, bank, test_view, frozen, files["weights"])
            write_text(file, json.dumps(found, indent=1) + "\n")
        found = read_object(file, "images", "classes", "hidden", "hidden_images", "scores")
        return found | {"said": on_check(found, estimated=estimated)}

    def _results(
        self,
        trained: Path,
        files: Mapping[str, Path],
        split: pd.DataFrame,
        parameters: dict[str, Any],
        classes: Classes,
        given: Collection[str],
        to: Path,
    ) -> tuple[Model, Found]:
        """Write the model of a finished training and what it finds in all images but the given ones."""
        final = checkpoint.load(trained / "final.pt", "ctxgcd-model")
        state = torch.load(files["weights"], map_location="cpu", weights_only=True)
        network, centres = final["network"], final.get("centres")
        made = models.build(parameters, state, network, names=classes.names, known=classes.known, centres=centres).to(
            self.device
        )

        def found(model: Model, ids: np.ndarray) -> Found:
            kept = load_kept(files["test_view"], (len(split),))
            batches = (kept[part].to(self.device) for part in torch.from_numpy(ids).split(BATCH))
            return model.find(batches, split["path"].iloc[ids].tolist(), ids)

        labelled = np.flatnonzero(split["role"] == "labelled")
        if len(labelled):
            examples = torch.from_numpy(found(made, labelled).features)
            made = replace(made, examples=split["path"].iloc[labelled].tolist(), features=examples.to(self.device))
        others = found(made, np.flatnonzero(~split["path"].isin(given)))
        made = made.with_reference(self._frozen(files, len(split)))
        models.save(made, to / "model")
        others.save(to / "model")
        write_text(to / "model" / "params.yaml", yaml.safe_dump(parameters, sort_keys=False))
        return made, others
