"""The state of one run in training: method, network, optimisers, history and checkpoint."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ctxgcd.config import completed
from ctxgcd.errors import UserError
from ctxgcd.methods.hook_checks import (
    check_after_epoch,
    check_epoch,
    check_losses,
    check_plan,
    check_rate,
    returned,
    shapes,
)
from ctxgcd.methods.method import Method
from ctxgcd.methods.step import Batch, Look, Plan, means, weighted
from ctxgcd.models.network import TailNetwork
from ctxgcd.models.precision import computing
from ctxgcd.training import checkpoint
from ctxgcd.training.processes import ProcessEnded
from ctxgcd.training.term_sizes import shares
from ctxgcd.utils.files import write_rows


@dataclass(eq=False)
class Row:
    """One run's state.

    Attributes:
        history: one row of means for each epoch, by the method's columns.
        shares: relative sizes of the loss terms in the first batch of some epochs (training/term_sizes.py).
        state_file: the rolling checkpoint, from which the run is resumed.
        seconds, steps: time and steps of the training so far, including its stage.
        together: largest number of rows, this one included, that took the same steps.
        own_seconds: time spent for this row alone since the process started.
        title: prefix of progress lines.
        about: hashes that identify this run; the checkpoint of another run is refused.
        error: why the training of the row has ended early, or None.
    """

    method: Method
    network: TailNetwork
    state_file: Path
    title: str
    about: Mapping[str, str]
    history: list[dict[str, Any]] = field(default_factory=list)
    shares: list[dict[str, Any]] = field(default_factory=list)
    seconds: float = 0.0
    steps: int = 0
    together: int = 1
    own_seconds: float = 0.0
    error: UserError | None = None

    def __post_init__(self) -> None:
        self.parameters = self.method.p
        self.optimisers = self._new_optimisers()
        self.measured_in = frozenset({*self.method.terms().values(), self.epochs - 1})

    @property
    def epochs(self) -> int:
        epochs: int = self.parameters["epochs"]
        return epochs

    @property
    def epoch_due(self) -> int | None:
        """Return the next epoch, or None if the training has ended."""
        return len(self.history) if self.error is None and len(self.history) < self.epochs else None

    @contextmanager
    def ending(self) -> Iterator[None]:
        """Keep a UserError as the error of this row, except that of another process, and measure the time."""
        start = time.monotonic()
        try:
            yield
        except ProcessEnded:
            raise
        except UserError as error:
            self.error = error.with_traceback(None)  # whose frames would keep the tensors of the step
        finally:
            self.own_seconds += time.monotonic() - start

    def begin(self, look: Look) -> Plan:
        """Set the learning rates of an epoch and return the plan of its steps."""
        self.shapes = shapes(self.network)
        plan = self.method.before_epoch(self.network, look)
        check_plan(self.method, plan, len(look.labels))
        if plan.fresh_optimiser:
            self.optimisers = self._new_optimisers()
        self.epoch, lr = look.epoch, self.method.learning_rate(look.epoch)
        check_rate(self.method, lr)
        self.method.schedule(self.optimisers, look.epoch)
        self.logged = {"epoch": look.epoch, "lr": lr, **plan.logged}
        self.sums: dict[str, Tensor] = {}
        self.finite: dict[str, Tensor] = {}  # steps before the sum of a term is not finite
        self.network.train()
        return plan

    def learn(self, batch: Batch) -> None:
        """Take one step. The terms are the means over the groups of `loss_group`."""
        parts = batch.parts(self.method.loss_groups)
        with computing(self.parameters["precision"], next(self.network.parameters()).device):
            of_parts, weights = [self.method.losses(self.network, part) for part in parts], self.method.weights(batch)
            for found in of_parts:
                check_losses(self.method, found, weights)
            terms, logged = means([found.terms for found in of_parts]), means([found.logged for found in of_parts])
            loss = weighted(terms, weights)
        if batch.step == 0 and self.epoch in self.measured_in:
            self.shares.append({"epoch": self.epoch, "terms": shares(self.network, terms, weights)})
        for optimiser in self.optimisers:
            optimiser.zero_grad(set_to_none=True)
        loss.backward()
        for optimiser in self.optimisers:
            optimiser.step()
        with torch.no_grad():
            for part, found in zip(parts, of_parts, strict=True):
                self.method.after_step(self.network, part, found.kept)
        for name, value in {"loss": loss, **terms, **logged}.items():
            # Summed on the device: no synchronisation in a step.
            self.sums[name] = self.sums.get(name, 0.0) + value.detach()
            self.finite[name] = self.finite.get(name, 0) + self.sums[name].isfinite()

    def end(self, steps: int) -> None:
        """Add the epoch to the history. Raises UserError if the loss is not finite or the method violates a rule."""
        self.network.eval()
        row = {**self.logged, **{name: float(total) / steps for name, total in self.sums.items()}}
        if not math.isfinite(row["loss"]):
            kept = f"the checkpoint of epoch {self.epoch - 1} is kept" if self.epoch else "no checkpoint is kept"
            raise UserError(
                f"{self.title}: the loss is {row['loss']} in epoch {self.epoch}{self._first_not_finite()}, so training "
                f"diverged; {kept}; decrease lr or the weights of the losses"
            )
        row |= check_after_epoch(self.method, self.method.after_epoch(self.network))
        check_epoch(self.method, self.epoch, row, self.shapes, shapes(self.network))
        self.history.append(row)
        self.steps += steps

    def save(self) -> None:
        """Write the checkpoint, and the history as a CSV that can be read during the training."""
        content = {
            **self.about,
            "parameters": self.parameters,
            "network": self.network.state_dict(),
            "optimisers": [optimiser.state_dict() for optimiser in self.optimisers],
            "history": self.history,
            "shares": self.shares,
            "seconds": self.seconds,
            "steps": self.steps,
            "together": self.together,
        }
        checkpoint.save(self.state_file, "ctxgcd-state", content)
        write_rows(
            self.state_file.with_name(f"{self.state_file.stem}_history.csv"), self.method.columns(), self.history
        )

    def resume(self) -> bool:
        """Load the checkpoint; return False if there is none."""
        if not self.state_file.exists():
            return False
        state = checkpoint.load(self.state_file, "ctxgcd-state")
        if {key: state[key] for key in self.about} != self.about or completed(state["parameters"]) != self.parameters:
            raise UserError(f"{self.state_file} is the checkpoint of another run; delete it to restart the training")
        for name, buffer in self.network.named_buffers():  # `prepare` may have given it the size of the training set
            if name in state["network"]:
                buffer.resize_(state["network"][name].shape)
        self.network.load_state_dict(state["network"])
        self.optimisers = self._new_optimisers()
        for optimiser, own in zip(self.optimisers, state["optimisers"], strict=True):
            optimiser.load_state_dict(own)
        self.history, self.shares = state["history"], state["shares"]
        self.seconds, self.steps, self.together = state["seconds"], state["steps"], state.get("together", 1)
        return True

    def _first_not_finite(self) -> str:
        """Return the first step with a loss that is not finite, and the terms that are not finite in it."""
        step = int(self.finite["loss"])
        terms = [name for name in self.method.terms() if int(self.finite.get(name, step + 1)) <= step]
        return f" from step {step} on (not finite there: {', '.join(terms) or 'none of the terms'})"

    def _new_optimisers(self) -> list[torch.optim.Optimizer]:
        made = returned(self.method, "optimisers", self.method.optimisers(self.network), list)
        return [returned(self.method, "optimisers", one, torch.optim.Optimizer) for one in made]
