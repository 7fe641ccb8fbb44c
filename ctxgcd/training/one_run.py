"""One run of a training job: its identity, its finished files and its training. Imports torch only for a training."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ctxgcd.pipeline import run_cache
from ctxgcd.pipeline.code import Code, refuse_changed
from ctxgcd.pipeline.code import run as run_code
from ctxgcd.pipeline.identity import identity, read_estimate
from ctxgcd.pipeline.possible import check_installed, check_split

if TYPE_CHECKING:
    import pandas as pd
    import torch

    from ctxgcd.training.processes import Processes
    from ctxgcd.training.train import Asked


@dataclass(frozen=True)
class OneRun:
    """One run.

    Attributes:
        parameters: resolved parameters (pipeline.resolve), with the number of an estimated K.
        split_hash: SHA-256 of the split.
        code: the run's code.
        files: cached inputs by name: store, weights, test_view, view_bank, depending on method and view bank.
        work: the run cache.
    """

    parameters: dict[str, Any]
    split_hash: str
    code: Code
    files: Mapping[str, Path]
    work: Path

    @classmethod
    def of(
        cls,
        parameters: dict[str, Any],
        *,
        files: Mapping[str, Path],
        split_hash: Path,
        code: str,
        reader: str,
        work: Path,
    ) -> OneRun:
        """Return a run as a job is given it.

        Args:
            files: cached inputs by name, and estimate: the file with the estimated K, if the run uses it.
            split_hash: file with the SHA-256 of the split.
            code: hash of the planned code.
            reader: the benchmark's reader.

        Raises UserError if the code changed after it was planned, or if the estimate cannot be read.
        """
        now = run_code(reader, parameters["method"], parameters.get("modifiers", ()))
        refuse_changed(code, now)
        k = {"K": read_estimate(files["estimate"])} if "estimate" in files else {}
        inputs = {name: file for name, file in files.items() if name != "estimate"}
        return cls(parameters | k, split_hash.read_text(encoding="utf-8").strip(), now, inputs, work)

    @cached_property
    def identity(self) -> str:
        return identity(self.parameters, self.split_hash, self.code.hash)

    @property
    def state(self) -> Path:
        """Return the folder of the run's checkpoint and finished files."""
        return run_cache.folder_of(self.work, self.identity, self.parameters["row"])

    def finished(self) -> Path | None:
        """Return the folder of the finished run in the run cache, also of equal code, or None."""
        return run_cache.kept(self.work, self.parameters, self.split_hash, self.code.hash)

    def give(self, out: Path) -> bool:
        """Copy the run to `out` and return True if it is finished and undamaged."""
        found = self.finished()
        if not found or not run_cache.give(found, out):
            return False
        by = "" if found == self.state else " by equal code"
        print(f"this run is already finished{by}; copied from {found}", flush=True)
        return True

    def train(self, split: pd.DataFrame, device: torch.device, processes: Processes) -> None:
        """Train the run and keep it in the run cache. Raises UserError as `asked`, or if the training diverges."""
        from ctxgcd.training.train import run_one

        run_one(self.asked(split), split, device, processes)

    def asked(self, split: pd.DataFrame) -> Asked:
        """Return what the training of the run needs.

        Raises UserError if the split has too few images for it, or if a package is missing.
        """
        from ctxgcd.methods.build import method_of
        from ctxgcd.training.train import Asked

        check_installed(self.parameters)
        check_split(self.parameters, split)
        return Asked(
            self.parameters,
            method_of(self.parameters),
            self.files,
            self.state,
            about={"identity": self.identity, "split_sha256": self.split_hash, "code": self.code.hash},
            provenance={"true_code": self.code.true_hash, "modules": self.code.modules},
        )
