"""What the jobs of a benchmark and of a run are called with: plain values and paths, which the rules write as words.

A cache's name holds a hash of all that it depends on. So a change asks for a file that is not there, and the runs that
read it are trained again, while a cache that was deleted and made again holds the same and trains nothing.
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
from ctxgcd.pipeline import code, targets
from ctxgcd.pipeline.available import Available, asked_for, available
from ctxgcd.pipeline.classes import class_list_hash
from ctxgcd.pipeline.data_check import problem_of
from ctxgcd.pipeline.data_fingerprint import data_fingerprint
from ctxgcd.pipeline.identity import ESTIMATED, parameters_hash, short_hash
from ctxgcd.pipeline.paths import MERGED_PARAMS, Features, estimate_file, features_folder, store_file, weights_file
from ctxgcd.pipeline.resolve import backbone_of, images_of, protocol_of, resolve, weights_of
from ctxgcd.pipeline.rows import parse_row
from ctxgcd.pipeline.runs import Run
from ctxgcd.utils.files import write_text


@dataclass(frozen=True)
class Jobs:
    """The jobs that params.yaml asks for."""

    params: Params

    # -- images ------------------------------------------------------------------------------------------------

    def section(self, benchmark: str) -> dict[str, Any]:
        """Which images a benchmark has and how they are split."""
        entry = self.params.benchmarks[benchmark]
        own = entry.model_dump(include={"reader", "folder", "images"}) | images_of(benchmark, entry)
        return {"benchmark": benchmark, **own, **self.params.split.model_dump()}

    def place(self, benchmark: str) -> dict[str, Any]:
        """Where a user's own images lie: no part of what a run is."""
        return self.params.benchmarks[benchmark].model_dump(include={"path", "listing", "labelled"})

    def reader(self, benchmark: str) -> str:
        return self.params.benchmarks[benchmark].reader

    def class_list(self, benchmark: str) -> str:
        """The hash of the benchmark's class list: an edit of the list makes its split again."""
        return class_list_hash(self.params.benchmarks[benchmark])

    def data(self, benchmark: str) -> str:
        """The fingerprint of what the split is made from: official list files, or a user's own images."""
        return data_fingerprint(benchmark, self.params.benchmarks[benchmark].model_dump())

    def check(self, benchmark: str) -> dict[str, Any]:
        """All that the data check tells of a benchmark."""
        protocol, backbone = protocol_of(self.params, benchmark), backbone_of(self.params, benchmark)
        kept = {"resize": protocol.resize, "backbone": protocol.backbone}
        weights = backbone.model_dump(include={"weights", "sha256"})
        return {**self.section(benchmark), **self.place(benchmark), **kept, **weights}

    def images(self, benchmark: str) -> dict[str, Any]:
        """Which images a store holds and how large; a new draw of the split leaves them alone, but for a trial."""
        section = self.section(benchmark)
        drawn = {} if section.get("trial") else {"seed", "labelled_share"}
        kept = {key: value for key, value in section.items() if key not in drawn}
        return kept | {"resize": protocol_of(self.params, benchmark).resize}

    def store(self, benchmark: str) -> str:
        """The index of a benchmark's image store."""
        return store_file(benchmark, self._images_hash(benchmark))

    def _images_hash(self, benchmark: str) -> str:
        """Which images, of which data: their split, which numbers them alike whatever it draws, is no part of it."""
        packed_by = code.pack(self.reader(benchmark)).hash
        return short_hash(json.dumps(self.images(benchmark)), self.data(benchmark), packed_by)

    # -- features ----------------------------------------------------------------------------------------------

    def seen(self, benchmark: str) -> dict[str, Any]:
        """How the benchmark's images are seen, and by which backbone."""
        crop, backbone = protocol_of(self.params, benchmark).crop, backbone_of(self.params, benchmark)
        return {"crop": crop, "weights": weights_of(backbone), **backbone.model_dump(include={"model", "mean", "std"})}

    def weights(self, benchmark: str) -> str:
        """The prepared weights of the benchmark's backbone."""
        protocol, backbone = protocol_of(self.params, benchmark), backbone_of(self.params, benchmark)
        content = short_hash(backbone.model, weights_of(backbone), code.script(code.WEIGHTS).hash)
        return weights_file(protocol.backbone, protocol.crop, content)

    def features(self, benchmark: str, of: Features) -> str:
        """A file of the benchmark's kept features."""
        content = short_hash(self._images_hash(benchmark), json.dumps(self.seen(benchmark)), code.features().hash)
        return f"{features_folder(benchmark, content)}/{of.name}.npy"

    def frozen_features(self, benchmark: str) -> str:
        """The whole backbone's features of the benchmark's test views, in its protocol's precision."""
        return self.features(benchmark, Features(0, protocol_of(self.params, benchmark).precision))

    # -- runs --------------------------------------------------------------------------------------------------

    def run(self, benchmark: str, row: str, seed: str) -> dict[str, Any]:
        """A run's parameters: what its job receives, and what makes it run again when they change."""
        return resolve(self.params, benchmark, row, int(seed))

    def inputs(self, benchmark: str, row: str, seed: str) -> dict[str, str]:
        """What a run reads beside its split, by name."""
        p = self.run(benchmark, row, seed)
        estimate = {"estimate": estimate_file(benchmark)} if p["K"] == ESTIMATED else {}
        if not METHODS[p["method"]].trains:
            return {"test_view": self.features(benchmark, Features(0, p["precision"])), **estimate}
        weights = {"weights": self.weights(benchmark)}
        if not p["view_bank"]:
            return {**weights, "store": self.store(benchmark), **estimate}
        of_tail = Features(p.get("tail_blocks", 0), p["precision"])
        bank = replace(of_tail, views=p["view_bank"], seed=p["view_bank_seed"])
        kept = {"test_view": self.features(benchmark, of_tail), "view_bank": self.features(benchmark, bank)}
        return {**weights, **kept, **estimate}

    def code(self, benchmark: str, row: str) -> str:
        """The hash of a run's code."""
        return code.of_row(self.reader(benchmark), parse_row(row)).hash

    # -- tables ------------------------------------------------------------------------------------------------

    @cached_property
    def at_hand(self) -> Available:
        """What the data at hand allows. It looks into every data folder: only for who asks for it."""
        return available(self.params, lambda benchmark: problem_of(self.check(benchmark)))

    def runs_behind(self, target: str) -> list[Run]:
        """Every run that a target needs."""
        return self.at_hand.runs_behind(target) if asked_for([target]) else targets.runs_behind(self.params, target)

    def table(self, table: str, absent: Sequence[str] = ()) -> dict[str, Any]:
        """What a table holds: its rows in order, its benchmarks, those that it lacks, its title and note."""
        benchmarks = targets.table_benchmarks(self.params, table)
        kind = table.partition("_")[0]
        rows = dict.fromkeys(row for b in benchmarks for row in targets.rows_in(self.params, table, b))
        notes = {backbone_of(self.params, b).note for b in benchmarks}
        return {
            **{"table": table, "kind": kind, "rows": list(rows), "benchmarks": benchmarks},
            "pairs": targets.table_pairs(self.params, kind, benchmarks[0]),
            **{"absent": list(absent), "note": " ".join(sorted(notes - {""}))},
        }

    def parameters_of(self, files: Iterable[str]) -> list[str]:
        """The hash of the parameters of each run of these metrics.json, as they are asked for now."""
        of = [run for file in files for run in targets.runs_behind(self.params, file)]
        return [parameters_hash(resolve(self.params, run.benchmark, run.row, run.seed)) for run in of]

    # -- all ---------------------------------------------------------------------------------------------------

    def weights_commands(self) -> str:
        """What fetches the weights of every backbone that has an address, as a shell command."""
        script = "python workflow/scripts/fetch_weights.py"
        commands = [
            f"{script} --weights {shlex.quote(backbone.weights)} --sha256 {backbone.sha256}"
            for backbone in self.params.backbones.values()
            if is_address(backbone.weights)
        ]
        return " && ".join(commands) or "echo no backbone has an address"


def job_words(files: Iterable[tuple[str, str]], minutes: int | None) -> str:
    """A training's files by name, and its time limit where one is set: a place and a limit are no part of a run."""
    words = [(name, file) for name, file in files if name != "pixels"]
    words += [("minutes", str(minutes))] if minutes is not None else []
    return " ".join(f"--{name.replace('_', '-')} {word}" for name, word in words)


def write_params(merged: Mapping[str, Any]) -> Path:
    """Write params.yaml, with what the command line changed, to a file that its content names; return its path."""
    text = json.dumps(merged)
    file = MERGED_PARAMS / f"{short_hash(text)}.json"
    if not file.is_file():
        write_text(file, text)
    return file


def read_params(file: Path) -> Params:
    """Read what `write_params` wrote."""
    return parse(json.loads(file.read_text(encoding="utf-8")))
