"""Relative sizes of the loss terms, by value and by gradient."""

from __future__ import annotations

import math
from collections.abc import Mapping

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
