"""Counts how often the host waits for a device."""

from __future__ import annotations

from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode


class Counter(TorchDispatchMode):
    """Counts operations for which the host waits for a GPU: values read by Python, and shapes that depend on values."""

    def __init__(self) -> None:
        super().__init__()
        self.waits = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        by_mask = func is torch.ops.aten.index.Tensor and any(i is not None and i.dtype == torch.bool for i in args[1])
        names = {"_local_scalar_dense", "nonzero", "masked_select", "equal", "_unique2", "unique_dim"}
        self.waits += by_mask or func.overloadpacket.__name__ in names
        return func(*args, **kwargs or {})
