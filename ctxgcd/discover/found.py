"""What the model of a discovery finds in its images, before corrections: OUT/model/found.npz.

Without torch, so that corrections are checked before it is loaded.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ctxgcd.utils.files import replacing, undamaged

FILE = "found.npz"
ARRAYS = ("ids", "classes", "cosines", "example", "similarity", "features")
AGAIN = "run `ctxgcd discover` with the same --out again"


@dataclass(frozen=True)
class Found:
    """What a model finds in n images.

    Attributes:
        ids: int64 [n], ids of the images in the packed store.
        classes: int64 [n], the class with the largest cosine.
        cosines: float32 [n, K], between the features and the classes.
        example: int64 [n], the labelled example with the most similar features.
        similarity: float32 [n], the cosine with the most similar training image, before training; NaN if not known.
        features: float32 [n, d], L2-normalised, with the precision of float16.
    """

    paths: Sequence[str]
    ids: NDArray[np.int64]
    classes: NDArray[np.int64]
    cosines: NDArray[np.float32]
    example: NDArray[np.int64]
    similarity: NDArray[np.float32]
    features: NDArray[np.float32]

    def save(self, folder: Path) -> None:
        """Write to the folder of the model."""
        arrays = {name: getattr(self, name) for name in ARRAYS} | {"features": self.features.astype(np.float16)}
        paths = np.frombuffer("\0".join(self.paths).encode(), np.uint8)
        with replacing(folder / FILE) as temporary:
            np.savez(temporary, paths=paths, **arrays)

    @classmethod
    def load(cls, folder: Path) -> Found:
        """Read what `save` wrote. Raises UserError if it is damaged."""
        with undamaged(folder / FILE, AGAIN), np.load(folder / FILE) as arrays:
            parts = {name: arrays[name] for name in ARRAYS}
            return cls(_paths(arrays), **parts | {"features": parts["features"].astype(np.float32)})


def classes_of(folder: Path) -> dict[str, int]:
    """Return path -> class of what `save` wrote. Raises UserError if it is damaged."""
    with undamaged(folder / FILE, AGAIN), np.load(folder / FILE) as arrays:
        return dict(zip(_paths(arrays), arrays["classes"].tolist(), strict=True))


def _paths(arrays: Mapping[str, NDArray[np.uint8]]) -> list[str]:
    text = arrays["paths"].tobytes().decode()
    return text.split("\0") if text else []
