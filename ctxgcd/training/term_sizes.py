"""Relative sizes of the loss terms, by value and by gradient."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from ctxgcd.names import TERM_SIZES


def shares(
    network: nn.Module, terms: Mapping[str, Tensor], weights: Mapping[str, float]
) -> dict[str, dict[str, float]]:
    """Return, by term, its weight, its sizes and their shares of the sum over all terms (0..1).

    The sizes are names.TERM_SIZES: the weighted value, the norm of its gradient over all trained parameters, and the
    norm over the parameters of the tail, through which a term changes the classified features. Gradients may have
    opposite directions, so a share measures the size of a term and not its effect. A term without a graph has gradient
    0. The graph is retained and `.grad` is not changed.

    terms: scalars; those without a weight are ignored.
    """
    trained = {name: value for name, value in network.named_parameters() if value.requires_grad}
    found: dict[str, dict[str, float]] = {}
    for name, weight in weights.items():
        if name not in terms:
            continue
        term, norms = weight * terms[name], dict.fromkeys(trained, 0.0)
        if term.requires_grad:
            gradients = torch.autograd.grad(term, list(trained.values()), retain_graph=True, allow_unused=True)
            norms |= {key: float(g.double().norm()) for key, g in zip(trained, gradients, strict=True) if g is not None}
        of_tail = [norm for key, norm in norms.items() if key.startswith("tail.")]
        sizes = (float(term.detach()), math.hypot(*norms.values()), math.hypot(*of_tail))
        found[name] = {"weight": weight, **dict(zip(TERM_SIZES, sizes, strict=True))}
    for size in TERM_SIZES:
        total = sum(abs(of[size]) for of in found.values())
        for of in found.values():
            of[f"{size}_share"] = abs(of[size]) / total if total else 0.0
    return found


def summary(run: Mapping[str, Any]) -> str:
    """Return one line with each term's shares of loss and gradient in the last epoch, and its first epoch.

    run: the content of run.json of a trained run.
    """
    last, start = run["shares"][-1], run["active_from"]
    terms = [
        f"{name} {of['loss_share']:.1%} / {of['gradient_share']:.1%}"
        + f" (from epoch {start[name]})" * (start[name] > 0)
        for name, of in last["terms"].items()
    ]
    return f"share of loss / gradient in epoch {last['epoch']}: {', '.join(terms)}"
