"""Optional TensorBoard files of trainings."""

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
    """Yield a function that writes an epoch's row of history.csv below FOLDER, one scalar per column.

    Args:
        title: title of the run, as `fashion simgcd seed 0`.
        first: first epoch of this call; values of this and later epochs from an interrupted call are hidden.

    Raises:
        UserError: the package `tensorboard` is not installed.
    """
    if not (folder := os.environ.get(FOLDER)):
        yield lambda row: None
        return
    if importlib.util.find_spec("tensorboard") is None:
        raise UserError(
            f"{FOLDER} is set, but TensorBoard is not installed; run `pip install tensorboard` or unset the variable"
        )
    from torch.utils.tensorboard import SummaryWriter

    place = Path(folder, *title.replace("seed ", "seed").split())
    with SummaryWriter(str(place), purge_step=first) as writer:

        def add(row: Mapping[str, Any]) -> None:
            for name, value in row.items():
                if name != "epoch":
                    writer.add_scalar(name, value, row["epoch"])
            writer.flush()

        yield add
