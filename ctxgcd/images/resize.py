"""PIL's bicubic resize of 8-bit images in exact arithmetic, so that small images are enlarged on the device."""

from __future__ import annotations

import math

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

BITS = 22  # PIL rounds its weights to integers of 2 ** -22 ...
HALF = 1 << (BITS - 1)  # ... and each pass to bytes, halves upwards
SUPPORT = 2  # pixels to either side that bicubic interpolation reads
A = -0.5  # PIL's bicubic kernel


def enlarging_weights(side: int, size: int) -> NDArray[np.float64]:
    """Return the weights [size, side] by which PIL makes `size` pixels of `side` <= size ones, times 2 ** 22.

    They are whole numbers, as PIL's 8-bit code has them.
    """
    scale = side / size
    weights = np.zeros((size, side))
    for place in range(size):
        centre = (place + 0.5) * scale
        first = max(0, int(centre - SUPPORT + 0.5))
        last = min(side, int(centre + SUPPORT + 0.5))
        kernel = [_bicubic(x - centre + 0.5) for x in range(first, last)]
        total = sum(kernel)
        for x, value in zip(range(first, last), kernel, strict=True):
            exact = value / total * (1 << BITS)
            weights[place, x] = math.trunc(exact + math.copysign(0.5, exact))  # halves away from zero
    return weights


def enlarge(pixels: Tensor, rows: Tensor, columns: Tensor) -> Tensor:
    """Return parts of enlarged images, bit-equal to PIL's resize of the whole.

    All sums are of whole numbers below 2 ** 53, so float64 is exact in any order of summation, on any device.

    Args:
        pixels: uint8 [b, side, side, 3].
        rows, columns: float64 [b, height, side] and [b, width, side], rows of `enlarging_weights`.

    Returns:
        int64 [b, height, width, 3] of 0..255.
    """
    b, side = pixels.shape[:2]
    # Along the rows first, as PIL does: each pass ends in bytes.
    wide = _to_bytes(columns[:, None] @ pixels.double())  # [b, side, width, 3]
    high = _to_bytes(rows @ wide.reshape(b, side, -1))
    return high.view(b, rows.shape[1], columns.shape[1], 3).long()


def _to_bytes(sums: Tensor) -> Tensor:
    return torch.floor_(sums.add_(HALF).div_(1 << BITS)).clamp_(0, 255)


def _bicubic(x: float) -> float:
    x = abs(x)
    if x < 1:
        return ((A + 2) * x - (A + 3)) * x * x + 1
    return (((x - 5) * x + 8) * x - 4) * A if x < 2 else 0.0
