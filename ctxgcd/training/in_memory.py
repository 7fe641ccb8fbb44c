"""Training of one run in memory, from cached views and without a checkpoint."""

from __future__ import annotations

from pathlib import Path

from torch import Tensor

from ctxgcd.methods.method import Method
from ctxgcd.training.load import load_backbone
from ctxgcd.training.loop import train_epoch
from ctxgcd.training.row import Row
from ctxgcd.training.step_inputs import StepInputs
from ctxgcd.training.views import BankViews


def train_in_memory(
    method: Method, labels: Tensor, bank: Tensor, test_view: Tensor, weights: Path, title: str
) -> tuple[Row, StepInputs]:
    """Train a method without a stage on the device of the labels; return its state and the inputs.

    Args:
        labels: int64 [N], the class of each image of D^l, -1 for D^u.
        bank, test_view: the trunk's outputs for the views, [V, N, ...] and [N, ...].
        weights: the backbone's prepared weights.
        title: prefix of progress lines.
    """
    p = method.p
    backbone = load_backbone(p, method.cut, p["precision"], weights, labels.device)
    inputs = StepInputs(BankViews(bank, test_view), labels, p["precision"], p["seed"])
    network = method.network(backbone.tail, backbone.dim, inputs.old_classes).to(labels.device)
    row = Row(method, network.eval(), Path(), title, {})
    method.prepare(network, inputs.look(network, 0))
    for epoch in range(row.epochs):
        train_epoch(row, inputs, epoch)
    return row, inputs
