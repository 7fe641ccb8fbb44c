"""Neighbour images in the steps of trained rows, recorded in neighbours.csv for the benchmark of shared rows."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pandas as pd
import torch
from torch import Tensor

from ctxgcd.config import Params, read
from ctxgcd.methods.build import method_of
from ctxgcd.methods.method import Method
from ctxgcd.pipeline.resolve import resolve
from ctxgcd.training import checkpoint
from ctxgcd.training.one_run import OneRun
from ctxgcd.training.processes import ALONE
from ctxgcd.training.train import _loaded

FILE = Path(__file__).with_name("neighbours.csv")
COLUMNS = ("benchmark", "row", "batch_size", "step", "images")
BENCHMARK = "cub"  # whose batches the steps have
STEPS = 2  # recorded steps of each row
# Batches of a CPU are smaller. Their neighbours have about the same share in a batch, and rows with another k share
# about the same share of their queries, as with the paper's values.
SMALL = {"batch_size": 16, "neighbour_images": 16}
SMALL_K = {8: 4, 10: 4, 20: 8, 30: 16}
# Rows are recorded without the length of their training.
SHORTER = re.compile(r"\+(epochs|T_warm|teacher_warmup_epochs)=\d+")


def parameters(row: str, small: bool) -> dict[str, Any]:
    """Return the parameters of a row with the paper's batches; small: with those of a CPU."""
    p = resolve(_params(), BENCHMARK, row, 0)
    return {**p, **SMALL, **({"k": SMALL_K[p["k"]]} if "k" in p else {})} if small else p


@cache
def _params() -> Params:
    return read(Path("params.yaml"))


def recorded(benchmark: str, batch_size: int) -> dict[str, list[Tensor]]:
    """Return the neighbour images of each row in each step, int64 [n], by the row's name.

    The images of a step are numbered from 0, in the order of their ids.
    """
    table = pd.read_csv(FILE)
    table = table[(table.benchmark == benchmark) & (table.batch_size == batch_size)]
    steps: dict[str, list[Tensor]] = {row: [] for row in table.row}
    for _, of_step in table.groupby("step"):
        ids = [torch.tensor([int(image) for image in images.split()]) for images in of_step.images]
        _, numbers = torch.cat(ids).unique(return_inverse=True)
        for row, images in zip(of_step.row, numbers.split([len(each) for each in ids]), strict=True):
            steps[row].append(images)
    return steps


def record(one: OneRun, split: pd.DataFrame) -> Iterator[dict[str, Any]]:
    """Yield the lines of a finished run: the neighbours of its last epoch's first steps, for both sizes of a batch."""
    finished = one.finished()
    assert finished, f"{one.parameters['row']} is not finished"
    asked, device = one.asked(split), torch.device("cpu")
    backbone, inputs = _loaded(asked, split.sort_values("id"), device, ALONE)
    assert isinstance(asked.method, Method)
    network = asked.method.network(backbone.tail, backbone.dim, inputs.old_classes)
    network.load_state_dict(checkpoint.load(finished / "finished" / "final.pt", "ctxgcd-model")["network"])
    row = SHORTER.sub("", one.parameters["row"])
    for small in (False, True):
        of_batch = parameters(row, small)
        p = one.parameters | {name: of_batch[name] for name in ("batch_size", "neighbour_images", "k")}
        method = method_of(p)
        assert isinstance(method, Method)
        plan = method.before_epoch(network.eval(), inputs.look(network, p["epochs"] - 1))
        for number, step in enumerate(plan.steps[:STEPS]):
            images = " ".join(map(str, step["neighbours"].ids.tolist()))
            yield dict(zip(COLUMNS, (p["benchmark"], row, p["batch_size"], number, images), strict=True))
