"""Train the trials of a grid of workflow/trials inside D^l; write their scores to results/trials.csv (docs/choices.md).

All rows of a trial are trained in one process from cached views. An interrupted call resumes from the rows already
written.
"""

from __future__ import annotations

import argparse
import itertools
import json
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import pandas as pd
import torch
import yaml
from torch.nn.functional import normalize

from ctxgcd.benchmarks.class_lists import load
from ctxgcd.benchmarks.places import folder_of
from ctxgcd.benchmarks.readers.registry import reader_of
from ctxgcd.benchmarks.split import make_split, trial_split
from ctxgcd.clustering.kmeans import kmeans
from ctxgcd.clustering.semi_kmeans import lloyd
from ctxgcd.config import Official, Params, read
from ctxgcd.discover.self_check import clusterings
from ctxgcd.evaluation.accuracy import v2
from ctxgcd.images.pack import pack
from ctxgcd.methods.build import method_of
from ctxgcd.models.features import extract_test_view, extract_view_bank, load_kept
from ctxgcd.models.weights import prepare
from ctxgcd.pipeline.few_images import length
from ctxgcd.pipeline.identity import content_hash
from ctxgcd.pipeline.resolve import protocol_of, resolve
from ctxgcd.training.devices import make_deterministic
from ctxgcd.training.in_memory import train_in_memory
from ctxgcd.training.load import load_backbone, open_cropper
from ctxgcd.training.row import Row
from ctxgcd.training.step_inputs import StepInputs
from ctxgcd.utils.reporting import reported

if TYPE_CHECKING:
    from ctxgcd.models.network import Network

RESULT, WORK = Path("results/trials.csv"), Path("work/trials")
DEVICE = torch.device("cpu")


@dataclass(frozen=True)
class Images:
    """The images of a trial benchmark with cached features of the frozen trunk."""

    split: pd.DataFrame
    weights: Path
    test_view: torch.Tensor
    bank: torch.Tensor

    @property
    def labels(self) -> torch.Tensor:
        return torch.tensor(self.split.class_id.where(self.split.role == "labelled", -1).to_numpy())

    def scores(self, assigned: np.ndarray) -> dict[str, float | None]:
        """Return the accuracy (v2, percent) of the classes of the unlabelled images."""
        own = self.split[self.split.role == "unlabelled"]
        score = v2(assigned, own.class_id.to_numpy(), own.old.to_numpy().astype(bool))
        return {"all": score.all, "old": score.old, "new": score.new}


def images_of(params: Params, benchmark: str, half: str, most_views: int) -> Images:
    """Pack the images of a trial benchmark and extract their features.

    half: which half of the labelled classes stays Old, first or last.
    """
    entry, protocol = params.benchmarks[benchmark], protocol_of(params, benchmark)
    assert isinstance(entry, Official)
    backbone = params.backbones[protocol.backbone]
    reader, folder = reader_of(entry.model_dump()), folder_of(entry.folder)
    draw = params.split.model_dump()
    listed = load(entry.class_list, entry.classes)
    split = make_split(reader.manifest(folder), listed, **draw, drawn_order=reader.drawn_order)
    if half == "last":
        split["class_id"] = split["class_id"].max() - split["class_id"]
    split = trial_split(split, **draw).sort_values("id")
    size = [
        backbone.model,
        protocol.resize,
        protocol.crop,
        protocol.tail,
        protocol.tail_blocks * (protocol.tail == "blocks"),
    ]
    place = WORK / f"{benchmark}-{content_hash([split.to_csv(), size])}"
    place.mkdir(parents=True, exist_ok=True)
    weights, store = place / "weights.pt", place / "images.npz"
    files = {"test_view": place / "test_view.npy", "bank": place / f"bank{most_views}.npy"}
    prepare(backbone.model, backbone.weights, protocol.crop, weights, backbone.sha256)
    if not files["bank"].exists():
        pack(entry.reader, folder, split.path.tolist(), protocol.resize, store, 1)
        values = resolve(params, benchmark, "simgcd", 0)
        cropper = open_cropper(values, store, DEVICE)
        trunk = load_backbone(values, method_of(values).cut, protocol.precision, weights, DEVICE)
        begun = time.monotonic()
        extract_test_view(trunk, cropper, protocol.precision, files["test_view"])
        extract_view_bank(trunk, cropper, len(split), most_views, 0, protocol.precision, files["bank"])
        print(f"{benchmark} {size}: {len(split)} images, features in {time.monotonic() - begun:.0f} s", flush=True)
    test_view = load_kept(files["test_view"], (len(split),))
    bank = load_kept(files["bank"], (most_views * len(split),))
    return Images(split, weights, test_view, bank.view(most_views, len(split), *bank.shape[1:]))


def trained(
    params: Params, benchmark: str, row: str, seed: int, images: Images
) -> tuple[dict[str, Any], Row, StepInputs]:
    """Train a row in memory."""
    method = method_of(resolve(params, benchmark, row, seed))
    bank, title = images.bank[: method.p["view_bank"]], f"{benchmark} {row} seed {seed}"
    run, inputs = train_in_memory(method, images.labels, bank, images.test_view, images.weights, title)
    return method.p, run, inputs


def unit(features: torch.Tensor) -> np.ndarray:
    return normalize(features.float(), dim=1).numpy()


def endings(images: Images, p: Mapping[str, Any], run: Row, inputs: StepInputs) -> dict[str, np.ndarray]:
    """Return the classes of D^u by the classifier, by clustering, and by both together; frozen: the baselines."""
    free, K, seed, old = images.labels < 0, p["K"], p["seed"], inputs.old_classes
    adapted = inputs.features(run.network, torch.arange(len(free)))
    features = {"adapted": adapted}
    if images.test_view.ndim == 2:
        features["frozen"] = images.test_view
        features["both"] = torch.cat([normalize(rows.float(), dim=1) for rows in features.values()], dim=1)
    with torch.no_grad():
        first = cast("Network", run.network).classify(adapted)[free].argmax(dim=1).numpy()
    found, new = {"classifier": first}, first >= old
    for name, rows in features.items():
        by = clusterings(rows, images.labels, K, seed)
        found |= {f"{name}_kmeans": by["k-means"], f"{name}_semi": by["semi-supervised k-means"]}
        means = torch.stack([rows[free][first == c].mean(dim=0) if (first == c).any() else rows[0] for c in range(K)])
        of = normalize(rows.float(), dim=1)
        found[f"classifier>{name}_semi"] = lloyd(of, images.labels, normalize(means, dim=1), 200)[1][free].numpy()
        if new.sum() >= K - old:
            joined = first.copy()
            joined[new] = old + kmeans(unit(rows[free])[new], K - old, restarts=10, seed=seed, threads=1)[0]
            found[f"classifier+{name}_kmeans"] = joined
    return found


def grid_of(stage: Mapping[str, Any], center: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield the values of a stage's trials: the center with every combination of the varied values."""
    for values in itertools.product(*stage.values()):
        yield {**center, **dict(zip(stage, values, strict=True))}


def row_of(values: Mapping[str, Any], images: int, batch_size: int) -> str:
    """Return the row of a trial's values; steps become epochs and warm-ups, as in `ctxgcd discover`."""
    own = dict(values)
    made = length(own.pop("steps"), images, batch_size)
    method = own.pop("method", "simgcd")
    if not method.startswith("full"):
        del made["T_warm"]
    return method + "".join(f"+{name}={value}" for name, value in (own | made).items())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--grid", type=Path, default=Path("workflow/trials/second.yaml"))
    parser.add_argument("--stage", required=True, help="a stage of the grid")
    parser.add_argument("--benchmarks", nargs="*", help="default: all of the grid")
    parser.add_argument("--size", type=int, nargs=2, action="append", help="resize and crop of a benchmark, in order")
    parser.add_argument("--chosen", type=json.loads, default={}, help="values chosen before, as JSON")
    parser.add_argument("--out", type=Path, default=RESULT)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    make_deterministic(DEVICE)
    grid = yaml.safe_load(arguments.grid.read_text(encoding="utf-8"))
    stage, center = grid["stages"][arguments.stage], grid["center"] | arguments.chosen
    names = arguments.benchmarks or list(grid["benchmarks"])
    sizes = {
        name: [arguments.size[place]] if arguments.size else grid["benchmarks"][name]["sizes"]
        for place, name in enumerate(names)
    }
    for name in names:
        for size, half in itertools.product(sizes[name], grid["halves"]):
            for values in grid_of(stage, center):
                one_setting(arguments.stage, name, half, size, values, grid, arguments.out)


def one_setting(
    stage: str, name: str, half: str, size: list[int], values: dict[str, Any], grid: Mapping[str, Any], out: Path
) -> None:
    """Train one setting with all seeds and append its scores."""
    own = dict(values)
    params = read(Path("params.yaml"))
    protocol = {"resize": size[0], "crop": size[1]} | {key: own.pop(key) for key in ("tail", "tail_lr_factor")}
    params.benchmarks[name].overrides.update(protocol | {"tail_blocks": 1})
    images = images_of(params, name, half, grid["views"] if protocol["tail"] == "adapter" else 4)
    row = row_of(own, len(images.split), 128)
    setting = f"{size[1]} px, {protocol['tail']} x {protocol['tail_lr_factor']}, {row}"
    columns = ["stage", "benchmark", "half", "crop", "tail", "tail_lr_factor", "row", "seed"]
    kept = set(pd.read_csv(out)[columns].itertuples(index=False, name=None)) if out.exists() else set()
    for seed in grid["seeds"]:
        if (key := (stage, name, half, size[1], protocol["tail"], protocol["tail_lr_factor"], row, seed)) in kept:
            continue
        begun = time.process_time()
        p, run, inputs = trained(params, name, row, seed, images)
        seconds = round(time.process_time() - begun, 1)
        found = endings(images, p, run, inputs)
        lines = [
            {**dict(zip(columns, key, strict=True)), "ending": ending, **images.scores(of), "seconds": seconds}
            for ending, of in found.items()
        ]
        pd.DataFrame(lines).to_csv(out, mode="a", header=not out.exists(), index=False, float_format="%.3f")
        told = ", ".join(f"{line['ending']} {line['all']:.1f}" for line in lines)
        print(f"{name} {half} half, {setting} seed {seed}: {told} ({seconds} s)", flush=True)


if __name__ == "__main__":
    with reported():
        main()
