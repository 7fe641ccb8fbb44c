"""Wrong return values of hooks, and state that cannot be resumed, are refused."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from ctxgcd.errors import UserError
from ctxgcd.methods.method import Method
from ctxgcd.methods.step import Batch, Group, Look, Losses, Plan
from ctxgcd.models.network import TailNetwork
from tests.helpers.hooks import EVERY_IMAGE, Plain, changed_losses, extra_plan, whole_run
from tests.helpers.training import (
    IMAGES,
)

torch.set_num_threads(1)


WRONG = {  # (hook, what it returns in place of the right value) -> the sentence
    ("before_epoch", lambda plan: list(plan.steps)): r"before_epoch returns a list; return a Plan",
    ("before_epoch", lambda plan: None): r"before_epoch returns nothing; return a Plan",
    ("before_epoch", lambda plan: replace(plan, steps=[])): r"a plan without a step; give at least one",
    ("before_epoch", lambda plan: replace(plan, steps=[{}])): r"gives \{\} as a step; give a mapping",
    ("before_epoch", lambda plan: extra_plan(plan, EVERY_IMAGE)): r"gives a Tensor as group 'more' of a step",
    ("before_epoch", lambda plan: extra_plan(plan, Group(EVERY_IMAGE))): rf"'more' .* ids from 0 to {IMAGES - 1}",
    ("before_epoch", lambda plan: extra_plan(plan, Group(EVERY_IMAGE[:2] - 1))): r"that are not training images",
    (
        "before_epoch",
        lambda plan: replace(plan, logged={"health": 1.0}),
    ): r"logged number 'health', but logged is empty",
    ("learning_rate", lambda rate: None): r"learning_rate returns None; return a finite number",
    ("learning_rate", lambda rate: float("nan")): r"learning_rate returns nan",
    ("losses", lambda found: dict(found.terms)): r"losses returns a dict; return a Losses",
    (
        "losses",
        lambda found: changed_losses(found, clss=found.terms["cls"]),
    ): r"'clss', .* did you mean 'cls'\?; add it",
    ("losses", lambda found: changed_losses(found, cls=found.terms["cls"].expand(3))): r"shape \(3,\) as 'cls'",
    (
        "losses",
        lambda found: Losses({"cls": found.terms["cls"]}),
    ): r"losses gives no term 'info_nce', which acts from epoch 0",
    (
        "losses",
        lambda found: replace(found, logged={"health": found.terms["cls"]}),
    ): r"column 'health', but logged is empty",
    ("after_epoch", lambda numbers: None): r"after_epoch returns nothing; return a Mapping",
    ("after_epoch", lambda numbers: {"health": 1.0}): r"returns the column 'health', but logged is empty",
    ("weights", lambda weights: None): r"weights returns nothing; return a Mapping",
    ("weights", lambda weights: {"cls": 1.0}): r"losses returns the term 'info_nce', but weights\(\) has cls",
    ("optimisers", lambda made: made[0]): r"optimisers returns a SGD; return a list",
    ("optimisers", lambda made: [made]): r"optimisers returns a list; return a Optimizer",
}


@pytest.mark.parametrize(("hook", "change", "sentence"), [(*key, sentence) for key, sentence in WRONG.items()])
def test_wrong_return_values_of_hooks_are_refused(
    tmp_path: Path, hook: str, change: Callable[[Any], Any], sentence: str
) -> None:
    def wrong(self: Plain, *given: Any) -> Any:
        return change(getattr(super(kind, self), hook)(*given))

    kind = type("Wrong", (Plain,), {hook: wrong})
    with pytest.raises(UserError, match=rf"^Wrong\..*{sentence}"):
        whole_run(tmp_path, kind)
    assert not list(tmp_path.iterdir())


def test_images_that_loss_groups_do_not_divide_are_refused(tmp_path: Path) -> None:
    class Uneven(Plain):
        def before_epoch(self, network: Any, look: Look) -> Plan:
            return extra_plan(super().before_epoch(network, look), Group(EVERY_IMAGE[:7]))

    with pytest.raises(UserError, match=r"7 images as group 'more' of a step; give a multiple of its 2 loss groups"):
        whole_run(tmp_path, Uneven, loss_group=4)


class Late(Plain):
    """A buffer that does not exist from the beginning."""

    def before_epoch(self, network: Any, look: Look) -> Plan:
        network.register_buffer("bank", torch.zeros(3))
        return super().before_epoch(network, look)


class Grown(Plain):
    """A buffer that grows."""

    def network(self, tail: nn.Module, dim: int, old_classes: int) -> TailNetwork:
        made = super().network(tail, dim, old_classes)
        made.register_buffer("bank", torch.zeros(3))
        return made

    def after_step(self, network: Any, batch: Batch, kept: Mapping[str, Any]) -> None:
        network.bank = torch.zeros(len(network.bank) + 1)


@pytest.mark.parametrize("kind", [Late, Grown])
def test_state_that_cannot_be_resumed_is_refused(tmp_path: Path, kind: type[Method]) -> None:
    with pytest.raises(
        UserError, match=r"added, removed or resized bank of the network, so no run could resume; make all"
    ):
        whole_run(tmp_path, kind)
    assert not list(tmp_path.iterdir())
