"""Parameter groups for weight decay."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from torch import nn


def parameter_groups(
    named_parameters: Iterable[tuple[str, nn.Parameter]], weight_decay: float, decays_all: bool = False
) -> list[dict[str, Any]]:
    """Return two optimiser groups: decayed, then not decayed (biases and 1-d parameters, norm weights too).

    Source: SimGCD's released code; GCD's decays all parameters. Frozen parameters are excluded; the order within a
    group is that of the input. Both groups always exist, even if empty, so that a saved optimiser state can be loaded.
    """
    decayed: list[nn.Parameter] = []
    plain: list[nn.Parameter] = []
    for name, parameter in named_parameters:
        if parameter.requires_grad:
            is_plain = not decays_all and (name.split(".")[-1] == "bias" or parameter.ndim <= 1)
            (plain if is_plain else decayed).append(parameter)
    return [
        {"params": decayed, "weight_decay": weight_decay},
        {"params": plain, "weight_decay": 0.0},
    ]
