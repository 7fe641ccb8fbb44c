"""Time of each part of a training step, in our loop (exact views and view bank) and in the plain loop."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch

from ctxgcd.bench.pictures import packed_photographs
from ctxgcd.bench.training import Step, epoch_of, plain_loop, prepared, step_of
from ctxgcd.bench.work import row_of, timed
from ctxgcd.training.loop import train_epoch
from ctxgcd.training.views import BankViews, FreshViews
from ctxgcd.utils.files import write_rows

BUDGET_COLUMNS = ["way", "part", "milliseconds", "views"]
STEP_PARTS = ("views", "trunk", "forward and losses", "backward", "optimiser", "neighbour lists", "other")


class Clock:
    """Sums the seconds of wrapped calls by part, excluding nested wrapped calls."""

    def __init__(self, device: torch.device) -> None:
        self.device, self.inner = device, 0.0
        self.seconds: defaultdict[str, float] = defaultdict(float)

    def wrap(self, part: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def wrapped(*arguments: Any, **named: Any) -> Any:
            outside, self.inner, result = self.inner, 0.0, []
            taken = timed(lambda: result.append(call(*arguments, **named)), self.device)
            self.seconds[part] += taken - self.inner
            self.inner = outside + taken
            return result[0]

        return wrapped


class _ClockedCropper:
    """A cropper that measures the time of its train views."""

    def __init__(self, cropper: Any, clock: Clock) -> None:
        self.cropper, self.drawn_view = cropper, clock.wrap("views", cropper.drawn_view)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.cropper, name)


def budget(out: Path, device: torch.device) -> list[dict[str, Any]]:
    """Write the milliseconds of each part of a contextual step to `out`; return the row for the share of the views."""
    precision = "bf16" if device.type == "cuda" else "float32"
    step, plain = step_of(device, precision, context=True), step_of(device, "float32", context=True)
    steps = 8 if device.type == "cuda" else 1
    images, rows = steps * step.p["batch_size"], []
    with TemporaryDirectory() as name:
        folder = Path(name)
        packed_photographs(folder, images)
        for way, bank in (("exact", False), ("view bank", True)):
            rows += _rows(way, step, steps, _ours(step, folder, images, device, bank))
        clock = Clock(device)
        loop = plain_loop(plain, folder, images, device, clock.wrap)
        clock.seconds["other"] = timed(loop, device) - sum(clock.seconds.values())
        rows += _rows("reference", plain, steps, clock)
    write_rows(out, BUDGET_COLUMNS, rows)
    ours, reference = (_share(rows, way, "views") for way in ("exact", "reference"))
    return [row_of("share of a step that reads views", device, "%", ours, reference, reference / ours, 0.0, steps)]


def _ours(step: Step, folder: Path, images: int, device: torch.device, bank: bool) -> Clock:
    (row, source), clock = prepared(step, folder, images, device, bank), Clock(device)
    epoch = epoch_of(step, row, source)
    views, method, [optimiser] = source.views, row.method, row.optimisers
    if isinstance(views, BankViews):
        views._pair = clock.wrap("views", views._pair)  # type: ignore[method-assign]
    elif isinstance(views, FreshViews):
        views.outputs = clock.wrap("trunk", views.outputs)  # type: ignore[method-assign]
        views.cropper = _ClockedCropper(views.cropper, clock)  # type: ignore[assignment]
    method.losses = clock.wrap("forward and losses", method.losses)  # type: ignore[method-assign]
    optimiser.step = clock.wrap("optimiser", optimiser.step)  # type: ignore[method-assign]
    method.before_epoch = clock.wrap("neighbour lists", method.before_epoch)  # type: ignore[method-assign]
    backward = torch.Tensor.backward
    torch.Tensor.backward = clock.wrap("backward", backward)  # type: ignore[method-assign]
    try:
        whole = timed(lambda: train_epoch(row, source, epoch), device)
    finally:
        torch.Tensor.backward = backward  # type: ignore[method-assign]
    clock.seconds["other"] = whole - sum(clock.seconds.values())
    return clock


def _rows(way: str, step: Step, steps: int, clock: Clock) -> list[dict[str, Any]]:
    return [
        {"way": way, "part": part, "milliseconds": f"{clock.seconds[part] / steps * 1000:.4g}", "views": step.views}
        for part in STEP_PARTS
        if clock.seconds[part]
    ]


def _share(rows: list[dict[str, Any]], way: str, part: str) -> float:
    """Return the percentage of a training mode's time that a part takes."""
    times = {row["part"]: float(row["milliseconds"]) for row in rows if row["way"] == way}
    return 100 * times[part] / sum(times.values())
