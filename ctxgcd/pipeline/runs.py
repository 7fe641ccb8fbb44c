"""One training: benchmark, row and seed, with the folder of its files."""

from __future__ import annotations

import re
from dataclasses import dataclass

from ctxgcd.config import SEEDS
from ctxgcd.errors import UserError


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
