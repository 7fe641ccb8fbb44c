"""Bicubic resizing of images, with PIL or with PIL's integer arithmetic on a device."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from PIL import Image
from torch import Tensor

BITS = 22  # PIL rounds its weights to multiples of 2 ** -22
HALF = 1 << (BITS - 1)  # PIL rounds each pass to bytes, halves upwards
SUPPORT = 2  # pixels to either side that bicubic interpolation reads
A = -0.5  # PIL's bicubic kernel


@dataclass(frozen=True)
class Taps:
    """The source pixels and weights of each pixel of an enlarged line.

    Attributes:
        places: int64 [size, t], indices of source pixels.
        weights: int32 [size, t], scaled by 2 ** 22; 0 for unused taps. All sums are below 2 ** 31.
    """

    places: Tensor
    weights: Tensor

    def __getitem__(self, wanted: Tensor) -> Taps:
        return Taps(self.places[wanted], self.weights[wanted])

    def to(self, device: torch.device) -> Taps:
        return Taps(self.places.to(device), self.weights.to(device))


def enlarging_taps(side: int, size: int) -> Taps:
    """Return the taps with which PIL enlarges a line of `side` pixels to `size` >= side pixels."""
    scale, count = side / size, min(side, 2 * SUPPORT + 1)
    places, weights = torch.zeros(size, count, dtype=torch.int64), torch.zeros(size, count, dtype=torch.int32)
    for place in range(size):
        centre = (place + 0.5) * scale
        first = max(0, int(centre - SUPPORT + 0.5))
        last = min(side, int(centre + SUPPORT + 0.5))
        kernel = [_bicubic(x - centre + 0.5) for x in range(first, last)]
        total = sum(kernel)
        for tap, (x, value) in enumerate(zip(range(first, last), kernel, strict=True)):
            exact = value / total * (1 << BITS)
            places[place, tap] = x
            weights[place, tap] = math.trunc(exact + math.copysign(0.5, exact))  # rounds halves away from zero
    return Taps(places, weights)


def enlarge(pixels: Tensor, rows: Taps, columns: Taps) -> Tensor:
    """Return parts of enlarged images, bit-equal to PIL's resize of the whole.

    Args:
        pixels: uint8 [b, side, side, 3].
        rows, columns: taps of the requested rows [b, height, t] and columns [b, width, t].

    Returns:
        uint8 [b, height, width, 3].
    """
    b, side = pixels.shape[:2]
    # Rows first, as in PIL; each pass rounds to bytes.
    wide = _pass(pixels.transpose(1, 2).reshape(b, side, -1), columns)  # [b, width, side * 3]
    wide = wide.view(b, -1, side, 3).transpose(1, 2).reshape(b, side, -1)  # [b, side, width * 3]
    return _pass(wide, rows).view(b, rows.places.shape[1], -1, 3)


def _pass(lines: Tensor, taps: Taps) -> Tensor:
    """Interpolate lines uint8 [b, side, c] to [b, size, c], with separate taps [b, size, t] for each image."""
    (b, side, c), size = lines.shape, taps.places.shape[1]
    first = torch.arange(0, b * side, side, device=lines.device)[:, None]
    lines = lines.reshape(b * side, c).int()
    total = torch.full((b * size, c), HALF, dtype=torch.int32, device=lines.device)
    for places, weights in zip(taps.places.unbind(2), taps.weights.unbind(2), strict=True):
        total.addcmul_(lines.index_select(0, (first + places).view(-1)), weights.reshape(-1, 1))
    return total.bitwise_right_shift_(BITS).clamp_(0, 255).byte().view(b, size, c)


def _bicubic(x: float) -> float:
    x = abs(x)
    if x < 1:
        return ((A + 2) * x - (A + 3)) * x * x + 1
    return (((x - 5) * x + 8) * x - 4) * A if x < 2 else 0.0


def resize_shorter(image: Image.Image, size: int) -> Image.Image:
    """Resize the shorter side to `size` pixels, bicubic and antialiased, as torchvision's Resize does on PIL."""
    width, height = image.size
    scaled = (size, size * height // width) if width <= height else (size * width // height, size)
    return image if image.size == scaled else image.resize(scaled, Image.Resampling.BICUBIC)
