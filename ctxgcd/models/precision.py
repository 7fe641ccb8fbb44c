"""The precision of the network; losses and searches are always computed in float32 (losses/full_precision.py)."""

from __future__ import annotations

import torch

from ctxgcd.errors import UserError

KEPT = {"float32": torch.float32, "bf16": torch.float16}  # dtype of the trunk's cached outputs


def has_bf16(device: torch.device) -> bool:
    """Return whether a device has bfloat16 instructions; without them, bf16 is slower than float32."""
    if device.type == "cuda":
        return torch.cuda.is_bf16_supported(including_emulation=False)
    of_cpu = torch.cpu.get_capabilities()
    return any(of_cpu.get(name, False) for name in ("avx512_bf16", "amx_bf16", "bf16"))


def computing(precision: str, device: torch.device) -> torch.autocast:
    """Return the context in which a network computes its output: for bf16, autocast to bfloat16."""
    return torch.autocast(device.type, torch.bfloat16, enabled=precision == "bf16")


def kept(rows: torch.Tensor, precision: str) -> torch.Tensor:
    """Return the trunk's output in the dtype of the cache: float16 for bf16, as it has more mantissa bits.

    Raises UserError if a value is not finite, for example beyond float16's maximum of 65,504.
    """
    held = rows.to(KEPT[precision])
    if not held.isfinite().all():
        raise UserError(f"the outputs of the backbone are not finite in {KEPT[precision]}; set precision to float32")
    return held
