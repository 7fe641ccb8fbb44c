"""Benchmarks for GPUs only: utilisation, kernel times, and waits between host and device."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import timm
import torch
from torch.profiler import ProfilerActivity, profile
from torch.utils.flop_counter import FlopCounterMode

from ctxgcd.bench.pictures import CROP, packed_photographs
from ctxgcd.bench.training import MODEL, epoch_of, prepared, step_of
from ctxgcd.bench.work import row_of
from ctxgcd.models.backbone import cut
from ctxgcd.training.loop import train_epoch
from ctxgcd.utils.files import write_text

# Dense bf16 operations per second from the vendor's data sheets, by a part of the device name.
PEAK = {"H200": 989e12, "H100": 989e12, "A100": 312e12, "L40S": 362e12}


def flops_of_view() -> int:
    """Return the operations per train view of the paper's model: trunk forward, CLS row of the tail in both directions.

    Heads and losses are not counted; they are less than one percent.
    """
    backbone = cut(timm.create_model(MODEL, pretrained=False, num_classes=0).eval().requires_grad_(False), 1)
    backbone = backbone.to(torch.device("meta"))
    with FlopCounterMode(display=False) as counter:
        with torch.no_grad():
            tokens = backbone.trunk(torch.empty(1, 3, CROP, CROP, device="meta"))
        backbone.tail(tokens).sum().backward()
    return int(counter.get_total_flops())


def utilisation(rows: Sequence[dict[str, Any]], device: torch.device, name: str) -> list[dict[str, Any]]:
    """Return benchmark rows with the bf16 utilisation of a device in exact steps; none for an unknown device.

    rows: the rows of `bench`; name: the device name.
    """
    peak = next((value for part, value in PEAK.items() if part in name), None)
    if peak is None:
        print(f"the peak performance of {name} is unknown, so its utilisation is not computed")
        return []
    percent = 100 * flops_of_view() / peak
    found = []
    for row in rows:
        if row["unit"] == "views/s" and "exact" in row["work"]:
            ours, reference = (float(row[key]) * percent for key in ("ours", "reference"))
            what = f"model-FLOP utilisation, {row['work']}"
            found.append(row_of(what, device, "%", ours, reference, ours / reference, 0.0, row["n"]))
    return found


def kernels(out: Path, device: torch.device, steps: int = 8) -> int:
    """Write a profile of contextual steps by kernel to `out`; return how often the host waited for the device.

    Waits are counted only on CUDA, in a separate epoch, with torch's debug mode.
    """
    on_cuda = device.type == "cuda"
    step = step_of(device, "bf16" if on_cuda else "float32", context=True)
    images = steps * step.p["batch_size"]
    with TemporaryDirectory() as name:
        packed_photographs(Path(name), images)
        row, source = prepared(step, Path(name), images, device, bank=False)
        epoch, waits = epoch_of(step, row, source), 0
        if on_cuda:
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                torch.cuda.set_sync_debug_mode("warn")
                train_epoch(row, source, epoch)
                torch.cuda.set_sync_debug_mode("default")
            waits = sum("synchronizing" in str(one.message) for one in caught)
        with profile(activities=[ProfilerActivity.CPU, *[ProfilerActivity.CUDA] * on_cuda]) as recorded:
            train_epoch(row, source, epoch)
    order = "self_cuda_time_total" if on_cuda else "self_cpu_time_total"
    table = recorded.key_averages().table(sort_by=order, row_limit=25, max_name_column_width=60)
    write_text(out, f"{steps} contextual steps of {step.views} views; the host waited {waits} times\n\n{table}\n")
    return waits
