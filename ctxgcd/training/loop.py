"""The training loop: one epoch after another, resumable after any of them."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import normalize

from ctxgcd.clustering.neighbours import nearest
from ctxgcd.context.batches import query_batch
from ctxgcd.errors import UserError
from ctxgcd.images.sampler import draw_batches
from ctxgcd.images.streams import generator
from ctxgcd.methods.method import Batch, Method
from ctxgcd.models.network import TailNetwork
from ctxgcd.models.precision import computing
from ctxgcd.names import LOSS_TERMS
from ctxgcd.training import checkpoint
from ctxgcd.training.optimiser import parameter_groups
from ctxgcd.training.processes import ALONE, Processes
from ctxgcd.training.schedules import cosine_lr, teacher_temperature
from ctxgcd.training.shares import shares
from ctxgcd.training.views import BATCH, Views

HISTORY = ("epoch", "lr", "teacher_temperature", "loss", *LOSS_TERMS)


@dataclass
class Trainer:
    """One run's state.

    Attributes:
        labels: int64 [N], the class of each image of D^l, -1 for D^u: no label of D^u ever enters.
        history: one row of means an epoch, by HISTORY.
        shares: how large each term is beside the others, in the first batch of a few epochs (training/shares.py).
        state_file: the rolling checkpoint; an epoch that it holds is not trained again.
        title: what progress lines start with.
        about: the hashes that tell this run from any other; a state of another one is refused.
    """

    parameters: dict[str, Any]
    method: Method
    network: TailNetwork
    views: Views
    labels: Tensor
    state_file: Path
    title: str
    about: Mapping[str, str]
    processes: Processes = ALONE
    history: list[dict[str, Any]] = field(default_factory=list)
    shares: list[dict[str, Any]] = field(default_factory=list)
    seconds: float = 0.0

    def __post_init__(self) -> None:
        p = self.parameters
        named = list(self.network.named_parameters())
        tail = [(name, parameter) for name, parameter in named if name.startswith("tail.")]
        heads = [(name, parameter) for name, parameter in named if not name.startswith("tail.")]
        groups = [
            {**group, "factor": factor}
            for part, factor in ((tail, p["tail_lr_factor"]), (heads, 1.0))
            for group in parameter_groups(part, p["weight_decay"], self.method.decays_all)
        ]
        self.optimiser = torch.optim.SGD(groups, lr=p["lr"], momentum=p["momentum"], fused=True)

    def train(self) -> None:
        """Train the epochs that are still missing."""
        self._resume()
        self.processes.together()  # before any of them writes what another one would resume from
        first, begun, said = len(self.history), time.monotonic(), 0.0
        epochs, before = self.parameters["epochs"], self.seconds
        for epoch in range(first, epochs):
            row = self._epoch(epoch)
            if not math.isfinite(row["loss"]):
                kept = f"the state after epoch {epoch - 1} is kept" if epoch else "nothing is kept"
                raise UserError(
                    f"{self.title}: the loss is {row['loss']} in epoch {epoch}, so training diverged; {kept}; "
                    "lower lr or the weights of the context losses"
                )
            self.history.append(row)
            now = time.monotonic()
            self.seconds = before + now - begun
            self._save()
            if self.processes.first and (now - said > 5 or epoch == epochs - 1):
                said = now
                left = (now - begun) / (epoch + 1 - first) * (epochs - epoch - 1)
                print(
                    f"{self.title}  epoch {epoch + 1}/{epochs}  loss {row['loss']:.3f}  {_clock(left)} left", flush=True
                )
        if self.processes.first:
            print(f"{self.title}  {self._summary()}", flush=True)

    @torch.no_grad()
    def features(self, ids: Tensor) -> Tensor:
        """Backbone features of the test view, float32 [n, dim], of at least one image."""
        own = ids[self.processes.share(len(ids))]
        with computing(self.parameters["precision"], ids.device):
            rows = torch.cat([self.network.tail(self.views.test(part)).float() for part in own.split(BATCH)])
        return self.processes.gather(rows, len(ids))

    def _epoch(self, epoch: int) -> dict[str, Any]:
        p, seed, device = self.parameters, self.parameters["seed"], self.labels.device
        lr = cosine_lr(epoch, p["epochs"], p["lr"], p["lr_floor"])
        for group in self.optimiser.param_groups:
            group["lr"] = lr * group["factor"]
        teacher = None
        if self.method.has_teacher:
            teacher = teacher_temperature(
                epoch,
                p["teacher_warmup_epochs"],
                p["teacher_temperature_start"],
                p["teacher_temperature_end"],
                p["teacher_schedule"],
            )
        # Separate streams: SimGCD and every variant of one seed see the same sampled images and views.
        sampler, views, queries, query_views = (
            generator(seed, stream, epoch) for stream in ("sampler", "views", "queries", "query_views")
        )
        lists = self._neighbour_lists() if self.method.needs_neighbours(epoch) else None
        sums: dict[str, Tensor] = {}
        measured = epoch in {*self.method.active_from().values(), p["epochs"] - 1}
        batches = draw_batches(self.labels.cpu() >= 0, p["batch_size"], sampler).to(device)
        for ids in batches:
            with computing(p["precision"], device):
                batch = Batch(self.views.pair(ids, views), self.labels[ids])
                if lists is not None:
                    around = query_batch(lists[:, : p["k"] - 1], p["neighbour_images"] // p["k"], queries)
                    batch = Batch(
                        batch.sampled,
                        batch.labels,
                        self.views.pair(around, query_views),
                        torch.cat([ids, around]),
                        lists,
                    )
                terms = self.method.losses(self.network, batch, teacher)
            if measured:
                self.shares.append({"epoch": epoch, "terms": shares(self.network, terms, self.method.weights())})
                measured = False
            self.optimiser.zero_grad(set_to_none=True)
            terms["loss"].backward()
            self.optimiser.step()
            for name, value in terms.items():  # summed on the device: no synchronisation in a step
                sums[name] = sums.get(name, 0.0) + value.detach()
        means = {name: float(total) / len(batches) for name, total in sums.items()}
        return {"epoch": epoch, "lr": lr, "teacher_temperature": teacher, **means}

    def _summary(self) -> str:
        """When each term started, and its shares of loss and gradient in the last epoch, in one line."""
        started, last = self.method.active_from(), self.shares[-1]["terms"]
        loss_and_gradient = {name: f"{of['loss_share']:.1%} / {of['gradient_share']:.1%}" for name, of in last.items()}
        said = [
            f"{name} {text}" + f" (from epoch {started[name]})" * (started[name] > 0)
            for name, text in loss_and_gradient.items()
        ]
        return f"share of loss / gradient in epoch {self.shares[-1]['epoch']}: {', '.join(said)}"

    def _neighbour_lists(self) -> Tensor:
        """Each image's nearest others over all training images, by the test view's features as they are now."""
        images, k = len(self.labels), self.parameters["k"]
        features = normalize(self.features(torch.arange(images, device=self.labels.device)), dim=1)
        own = nearest(
            features, k if self.parameters["reciprocal"] == "dataset" else k - 1, self.processes.share(images)
        )
        return self.processes.gather(own, images)

    def _save(self) -> None:
        content = {
            **self.about,
            "parameters": self.parameters,
            "network": self.network.state_dict(),
            "optimiser": self.optimiser.state_dict(),
            "history": self.history,
            "shares": self.shares,
            "seconds": self.seconds,
        }
        if self.processes.first:
            checkpoint.save(self.state_file, "ctxgcd-state", content)

    def _resume(self) -> None:
        if not self.state_file.exists():
            return
        state = checkpoint.load(self.state_file, "ctxgcd-state")
        if {key: state[key] for key in self.about} != self.about or state["parameters"] != self.parameters:
            raise UserError(f"{self.state_file} is the state of another run; delete it to start that run anew")
        self.network.load_state_dict(state["network"])
        self.optimiser.load_state_dict(state["optimiser"])
        self.history, self.shares, self.seconds = state["history"], state["shares"], state["seconds"]
        if self.processes.first:
            print(f"{self.title}  goes on after epoch {len(self.history)}", flush=True)


def _clock(seconds: float) -> str:
    hours, rest = divmod(round(seconds), 3600)
    return f"{hours}:{rest // 60:02d}:{rest % 60:02d}"
