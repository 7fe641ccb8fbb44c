"""Parameters and input paths of the jobs of benchmarks and runs, as plain values for the rules.

The name of a cached file contains a hash of everything that it depends on. After a change, the new name is missing, so
the file is made and the runs that read it are trained again. A cache that is deleted and made again trains nothing.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from ctxgcd.catalogue.entries import METHODS
from ctxgcd.config import Params, parse
from ctxgcd.models.pretrained import is_address
from ctxgcd.pipeline import code, tables, targets
from ctxgcd.pipeline.available import Available, available, depends_on_data
from ctxgcd.pipeline.classes import class_list_hash
from ctxgcd.pipeline.data_check import problem_of
from ctxgcd.pipeline.data_fingerprint import data_fingerprint
from ctxgcd.pipeline.identity import ESTIMATED, parameters_hash, short_hash
from ctxgcd.pipeline.paths import MERGED_PARAMS, Features, estimate_file, features_folder, store_file, weights_file
from ctxgcd.pipeline.resolve import backbone_name, backbone_values, images_of, protocol_of, resolve, weights_of
from ctxgcd.pipeline.rows import parse_row
from ctxgcd.pipeline.runs import Run
from ctxgcd.pipeline.why import cached
from ctxgcd.utils.files import write_text


@dataclass(frozen=True)
class Jobs:
    """The jobs of params.yaml."""

    params: Params

    # -- images ------------------------------------------------------------------------------------------------

    def section(self, benchmark: str) -> dict[str, Any]:
        """Return which images a benchmark has and how they are split."""
        entry = self.params.benchmarks[benchmark]
        own = entry.model_dump(include={"reader", "folder", "images"}) | images_of(benchmark, entry)
        return {"benchmark": benchmark, **own, **self.params.split.model_dump()}

    def place(self, benchmark: str) -> dict[str, Any]:
        """Return the location of a user's own images, which is not part of a run's identity."""
        return self.params.benchmarks[benchmark].model_dump(include={"path", "listing", "labelled"})

    def reader(self, benchmark: str) -> str:
        return self.params.benchmarks[benchmark].reader

    def class_list(self, benchmark: str) -> str:
        """Return the hash of the benchmark's class list; if the list changes, the split is made again."""
        return class_list_hash(self.params.benchmarks[benchmark])

    def data(self, benchmark: str) -> str:
        """Return the fingerprint of the data behind the split: official list files, or a user's own images."""
        return data_fingerprint(benchmark, self.params.benchmarks[benchmark].model_dump())

    def check(self, benchmark: str) -> dict[str, Any]:
        """Return the section that the data check of a benchmark reads."""
        protocol = protocol_of(self.params, benchmark)
        kept = {"resize": protocol.resize, "backbone": protocol.backbone}
        weights = self.params.backbones[protocol.backbone].model_dump(include={"model", "weights", "sha256"})
        return {**self.section(benchmark), **self.place(benchmark), **kept, **weights}

    def images(self, benchmark: str) -> dict[str, Any]:
        """Return which images a store contains and their size; only for a trial do they depend on the split's draw."""
        section = self.section(benchmark)
        drawn = {} if section.get("trial") else {"seed", "labelled_share"}
        kept = {key: value for key, value in section.items() if key not in drawn}
        return kept | {"resize": protocol_of(self.params, benchmark).resize}

    def store(self, benchmark: str) -> str:
        """Return the path of a benchmark's image store index."""
        return store_file(benchmark, self._images_hash(benchmark))

    def _images_hash(self, benchmark: str) -> str:
        """Return a hash of the images and their data, without the split, which does not change their numbers."""
        packed_by = code.pack(self.reader(benchmark)).hash
        return short_hash(json.dumps(self.images(benchmark)), self.data(benchmark), packed_by)

    # -- features ----------------------------------------------------------------------------------------------

    def preprocessing(self, benchmark: str, backbone: str) -> dict[str, Any]:
        """Return the crop, normalisation and backbone of features of the benchmark."""
        crop, of = protocol_of(self.params, benchmark).crop, self.params.backbones[backbone]
        own = {key: value for key, value in backbone_values(of).items() if key in ("model", "mean", "std", "blocks")}
        return {"crop": crop, "weights": weights_of(of), **own}

    def weights(self, benchmark: str, backbone: str) -> str:
        """Return the path of the prepared weights of a backbone for the benchmark's crop."""
        of = self.params.backbones[backbone]
        content = short_hash(of.model, weights_of(of), code.script(code.WEIGHTS).hash)
        return weights_file(backbone, protocol_of(self.params, benchmark).crop, content)

    def features(self, benchmark: str, backbone: str, of: Features) -> str:
        """Return the path of cached features of the benchmark."""
        return f"{features_folder(benchmark, self._features_hash(benchmark, backbone))}/{of.name}.npy"

    def backbone_of(self, benchmark: str, content: str) -> str:
        """Return the name of the backbone whose features of the benchmark are in the folder with this hash."""
        own = protocol_of(self.params, benchmark).backbone
        every = dict.fromkeys([own, *self.params.backbones])
        return next((name for name in every if self._features_hash(benchmark, name) == content), own)

    def _features_hash(self, benchmark: str, backbone: str) -> str:
        preprocessing = json.dumps(self.preprocessing(benchmark, backbone))
        return short_hash(self._images_hash(benchmark), preprocessing, code.features().hash)

    def frozen_features(self, benchmark: str) -> str:
        """Return the path of the whole backbone's features of the test views, in the protocol's precision."""
        protocol = protocol_of(self.params, benchmark)
        return self.features(benchmark, protocol.backbone, Features(0, protocol.precision))

    def tail_input(self, benchmark: str, content: str, kind: str) -> str:
        """Return the path of the cached tail input from which cached features of the whole backbone are made.

        Empty for features that are made from the images: those of a tail or a bank, and all of a protocol whose runs
        have no cached tail input.
        """
        of, protocol = Features.of(kind), protocol_of(self.params, benchmark)
        reads_input = protocol.view_bank and protocol.tail == "blocks" and protocol.tail_blocks
        if of.tail or of.views or not reads_input:
            return ""
        backbone = self.backbone_of(benchmark, content)
        return self.features(benchmark, backbone, replace(of, tail=protocol.tail_blocks))

    # -- runs --------------------------------------------------------------------------------------------------

    def run(self, benchmark: str, row: str, seed: str) -> dict[str, Any]:
        """Return a run's parameters. The run's job receives them and runs again if they change."""
        return resolve(self.params, benchmark, row, int(seed))

    def inputs(self, benchmark: str, row: str, seed: str) -> dict[str, str]:
        """Return the inputs of a run except its split, by name."""
        p, backbone = self.run(benchmark, row, seed), backbone_name(self.params, benchmark, row)
        estimate = {"estimate": estimate_file(benchmark)} if p["K"] == ESTIMATED else {}
        if not METHODS[p["method"]].trains:
            return {"test_view": self.features(benchmark, backbone, Features(0, p["precision"])), **estimate}
        weights = {"weights": self.weights(benchmark, backbone)}
        if not p["view_bank"]:
            return {**weights, "store": self.store(benchmark), **estimate}
        of_tail = Features(p.get("tail_blocks", 0), p["precision"])
        bank = replace(of_tail, views=p["view_bank"], seed=p["view_bank_seed"])
        kept = {
            name: self.features(benchmark, backbone, of) for name, of in (("test_view", of_tail), ("view_bank", bank))
        }
        return {**weights, **kept, **estimate}

    def code(self, benchmark: str, row: str) -> str:
        """Return the hash of a run's code."""
        return code.of_row(self.reader(benchmark), parse_row(row)).hash

    def gpus(self, benchmark: str, row: str, seed: str) -> int:
        """Return the GPUs of a run: none if it is only copied from the run cache."""
        return int(not cached(self.params, Run(benchmark, row, int(seed))))

    def caches(self, runs: Iterable[Run]) -> list[str]:
        """Return the unique inputs of runs of one benchmark, except the split."""
        return sorted({file for run in runs for file in self.inputs(run.benchmark, run.row, str(run.seed)).values()})

    def trained_together(self, runs: Sequence[Run], at: Sequence[str]) -> list[dict[str, Any]]:
        """Return the parameters, code and inputs of runs that one job trains.

        at: the path of each of `caches` in the job.
        """
        places = dict(zip(self.caches(runs), at, strict=True))
        return [
            {
                "parameters": self.run(*own),
                "code": self.code(run.benchmark, run.row),
                "files": {name: places[file] for name, file in self.inputs(*own).items()},
            }
            for run in runs
            for own in [(run.benchmark, run.row, str(run.seed))]
        ]

    # -- tables ------------------------------------------------------------------------------------------------

    @cached_property
    def available_tables(self) -> Available:
        """Return the available tables. Computing them reads every data folder, so it is done only if requested."""
        return available(self.params, lambda benchmark: problem_of(self.check(benchmark)))

    def runs_behind(self, target: str) -> list[Run]:
        """Return every run that a target needs."""
        if depends_on_data([target]):
            return self.available_tables.runs_behind(target)
        return targets.runs_behind(self.params, target)

    def table(self, table: str, absent: Sequence[str] = ()) -> dict[str, Any]:
        """Return the content of a table: rows in order, benchmarks, missing benchmarks, pairs of rows and note."""
        benchmarks = tables.table_benchmarks(self.params, table)
        kind = table.partition("_")[0]
        rows = dict.fromkeys(row for b in benchmarks for row in tables.rows_in(self.params, table, b))
        return {
            **{"table": table, "kind": kind, "rows": list(rows), "benchmarks": benchmarks},
            "pairs": tables.table_pairs(self.params, kind, benchmarks[0]),
            **{"absent": list(absent), "note": tables.backbone_note(self.params, table)},
        }

    def parameters_of(self, files: Iterable[str]) -> list[str]:
        """Return the hash of the current parameters of each run of these metrics.json files."""
        of = [run for file in files for run in targets.runs_behind(self.params, file)]
        return [parameters_hash(resolve(self.params, run.benchmark, run.row, run.seed)) for run in of]

    # -- all ---------------------------------------------------------------------------------------------------

    def weights_commands(self) -> str:
        """Return a shell command that downloads the weights of every backbone with a URL that params.yaml uses."""
        used, script = tables.backbones_in(self.params), "python workflow/scripts/fetch_weights.py"
        commands = [
            f"{script} --weights {shlex.quote(backbone.weights)} --sha256 {backbone.sha256}"
            for name, backbone in self.params.backbones.items()
            if name in used and is_address(backbone.weights)
        ]
        return " && ".join(commands) or "echo no backbone has a URL"


def job_words(files: Iterable[tuple[str, str]], minutes: int | None) -> str:
    """Return the options of a training: files by name and, if set, the time limit. Neither is part of its identity."""
    words = [(name, file) for name, file in files if name != "pixels"]
    words += [("minutes", str(minutes))] if minutes is not None else []
    return " ".join(f"--{name.replace('_', '-')} {word}" for name, word in words)


def write_params(merged: Mapping[str, Any]) -> Path:
    """Write the merged parameters (params.yaml and command line) to a file named by their hash; return its path."""
    text = json.dumps(merged)
    file = MERGED_PARAMS / f"{short_hash(text)}.json"
    if not file.is_file():
        write_text(file, text)
    return file


def read_params(file: Path) -> Params:
    """Read a file of `write_params`."""
    return parse(json.loads(file.read_text(encoding="utf-8")))


def metrics_of(runs: Iterable[Run]) -> list[str]:
    """Return the files with the scores of runs."""
    return [run.file("metrics.json") for run in runs]


def predictions_of(runs: Iterable[Run]) -> list[str]:
    """Return the files with the predictions of runs, which a table reads from the folders of their metrics."""
    return [run.file("predictions.csv") for run in runs]
