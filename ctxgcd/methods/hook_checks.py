"""Checks of the return values of a method's hooks; the error message names the hook and the problem."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from numbers import Real
from typing import Any, NoReturn

import torch
from torch import Tensor, nn

from ctxgcd.errors import UserError, nearest
from ctxgcd.methods.step import Group, Losses, Plan


def returned(method: object, hook: str, value: Any, kind: type[Any]) -> Any:
    """Return the value of a hook. Raises UserError unless it is a `kind`."""
    if not isinstance(value, kind):
        _refuse(method, hook, f"returns {_type(value)}; return a {kind.__name__}")
    return value


def known(method: object, hook: str, names: Iterable[str], valid: Iterable[str], what: str, where: str) -> None:
    """Raise UserError for a name that is not among those that the method states in `where`."""
    valid = list(valid)
    for name in names:
        if name not in valid:
            has = f"has {', '.join(valid)}{nearest(name, valid)}" if valid else "is empty"
            _refuse(method, hook, f"returns the {what} '{name}', but {where} {has}; add it there or correct the name")


def check_rate(method: object, value: Any) -> None:
    """Raise UserError unless a learning rate is a finite number of at least 0."""
    if isinstance(value, bool) or not isinstance(value, Real) or not 0 <= float(value) < math.inf:
        _refuse(method, "learning_rate", f"returns {value!r}; return a finite number of at least 0")


def check_plan(method: Any, plan: Any, images: int) -> None:
    """Raise UserError unless the value is a plan with groups of training images and logged columns.

    images: number of training images; ids are below it.
    """
    returned(method, "before_epoch", plan, Plan)
    known(method, "before_epoch", plan.logged, method.logged, "logged number", "logged")
    if not plan.steps:
        _refuse(method, "before_epoch", "returns a plan without a step; give at least one")
    ids: dict[str, list[Tensor]] = {}
    for step in plan.steps:
        if not isinstance(step, Mapping) or not step:
            _refuse(
                method, "before_epoch", f"gives {step!r:.40} as a step; give a mapping of at least one Group by name"
            )
        for name, group in step.items():
            if not isinstance(group, Group):
                _refuse(
                    method, "before_epoch", f"gives {_type(group)} as group '{name}' of a step; give a Group of ids"
                )
            if len(group.ids) % method.loss_groups:
                fault = f"gives {len(group.ids)} images as group '{name}' of a step"
                _refuse(method, "before_epoch", f"{fault}; give a multiple of its {method.loss_groups} loss groups")
            ids.setdefault(name, []).append(group.ids)
    for name, of_steps in ids.items():
        every = torch.cat(of_steps)
        if bool(((every < 0) | (every >= images)).any()):
            fault = f"gives ids in group '{name}' that are not training images; give ids from 0 to {images - 1}"
            _refuse(method, "before_epoch", fault)


def check_losses(method: Any, found: Any, weights: Any) -> None:
    """Raise UserError unless terms, weights and further columns are those declared by the method."""
    returned(method, "losses", found, Losses)
    returned(method, "weights", weights, Mapping)
    known(method, "losses", found.terms, method.terms(), "term", "terms()")
    known(method, "losses", found.terms, weights, "term", "weights()")
    known(method, "losses", found.logged, method.logged, "column", "logged")
    for name, value in {**found.terms, **found.logged}.items():
        if not isinstance(value, Tensor) or value.ndim:
            shape = f"a tensor of shape {tuple(value.shape)}" if isinstance(value, Tensor) else _type(value)
            _refuse(method, "losses", f"returns {shape} as '{name}'; return a tensor without dimensions")


def check_after_epoch(method: Any, numbers: Any) -> Mapping[str, float]:
    """Return the numbers of an epoch. Raises UserError unless they are numbers of the method's further columns."""
    returned(method, "after_epoch", numbers, Mapping)
    known(method, "after_epoch", numbers, method.logged, "column", "logged")
    for name, value in numbers.items():
        if not isinstance(value, Real):
            _refuse(method, "after_epoch", f"returns {_type(value)} as '{name}'; return a number")
    found: Mapping[str, float] = numbers
    return found


def shapes(network: nn.Module) -> dict[str, tuple[int, ...]]:
    """Return the shape of each tensor in the checkpoint."""
    return {name: tuple(value.shape) for name, value in network.state_dict().items()}


def check_epoch(
    method: Any,
    epoch: int,
    row: Mapping[str, Any],
    initial: Mapping[str, tuple[int, ...]],
    now: Mapping[str, tuple[int, ...]],
) -> None:
    """Raise UserError if an active term is missing, or if the checkpoint cannot be loaded again.

    row: the epoch's row of history.csv; initial, now: `shapes` of the network before and after the epoch.
    """
    for term, start in method.terms().items():
        if epoch >= start and term not in row:
            _refuse(method, "losses", f"gives no term '{term}', which acts from epoch {start} on by terms(); give it")
    if changed := sorted(name for name in initial.keys() | now.keys() if initial.get(name) != now.get(name)):
        fault = f"added, removed or resized {', '.join(changed)} of the network, so no run could resume"
        _refuse(method, "before_epoch or after_step", f"{fault}; make all in network(), and only change values")


def _type(value: Any) -> str:
    return "nothing" if value is None else f"a {type(value).__name__}"


def _refuse(method: object, hook: str, fault: str) -> NoReturn:
    raise UserError(f"{type(method).__name__}.{hook} {fault} (docs/add_method.md)")
