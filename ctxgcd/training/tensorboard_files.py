"""TensorBoard files of running trainings, where they are asked for."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ctxgcd.errors import UserError

FOLDER = "CTXGCD_TENSORBOARD"  # environment variable: the folder to write to; not set: nothing is written


@contextmanager
def board(title: str, first: int) -> Iterator[Callable[[Mapping[str, Any]], None]]:
    """Give a function that writes an epoch's row of history.csv, a scalar a column, below FOLDER.

    Args:
        title: of the run, as `fashion simgcd seed 0`.
        first: the epoch that the training begins with; what an interrupted call has written of it and later is hidden.

    Raises:
        UserError: the package `tensorboard` is not installed.
    """
    if not (folder := os.environ.get(FOLDER)):
        yield lambda row: None
        return
    if importlib.util.find_spec("tensorboard") is None:
        raise UserError(f"{FOLDER} is set, but TensorBoard is not installed; pip install tensorboard, or unset it")
    from torch.utils.tensorboard import SummaryWriter

    place = Path(folder, *title.replace("seed ", "seed").split())
    with SummaryWriter(str(place), purge_step=first) as writer:

        def add(row: Mapping[str, Any]) -> None:
            for name, value in row.items():
                if name != "epoch":
                    writer.add_scalar(name, value, row["epoch"])
            writer.flush()

        yield add
