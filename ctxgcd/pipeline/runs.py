"""A run: one training with a benchmark, row and seed, and its folder."""

from __future__ import annotations

import re
from dataclasses import dataclass

from ctxgcd.config import SEEDS
from ctxgcd.errors import UserError


@dataclass(frozen=True, order=True)
class Run:
    """One training, the unit of work, resuming and averaging."""

    benchmark: str
    row: str
    seed: int

    @property
    def folder(self) -> str:
        return f"results/runs/{self.benchmark}/{self.row}/seed{self.seed}"

    def file(self, name: str) -> str:
        return f"{self.folder}/{name}"


def read_seed(text: str) -> int:
    """Parse the seed in the name of a run's folder. Raises UserError for an invalid seed or spelling."""
    if not re.fullmatch("0|[1-9][0-9]{0,9}", text) or int(text) >= SEEDS:
        raise UserError(
            f"seed{text} is not a valid folder of a run; write seed and an integer from 0 to {SEEDS - 1}, as in seed1"
        )
    return int(text)
