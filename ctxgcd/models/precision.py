"""What a run's `precision` means for the network; losses and searches stay in float32 (losses/precision.py)."""

from __future__ import annotations

import torch

KEPT = {"float32": torch.float32, "bf16": torch.float16}  # how the trunk's output is kept


def computing(precision: str, device: torch.device) -> torch.autocast:
    """The context in which a network computes its output: for bf16, torch's autocast to bfloat16."""
    return torch.autocast(device.type, torch.bfloat16, enabled=precision == "bf16")


def kept(rows: torch.Tensor, precision: str) -> torch.Tensor:
    """The trunk's output as it is kept: for bf16 in float16, which holds more digits than the bfloat16 it came from."""
    return rows.to(KEPT[precision])
