"""CIFAR-10 and CIFAR-100 as the official Python pickles."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from PIL import Image

from ctxgcd.benchmarks.readers.decoding import missing
from ctxgcd.benchmarks.readers.reader import Reader, as_manifest, present, require
from ctxgcd.benchmarks.readers.unpickle import load_pickle
from ctxgcd.errors import UserError

SIDE = 32  # pixels


@dataclass(frozen=True, kw_only=True)
class Cifar(Reader):
    """`data_batch_1#17` is row 17 of that batch; the last of `files` contains the class names."""

    labels: str
    label_names: str
    classes: int

    def manifest(self, folder: Path) -> pd.DataFrame:
        require(folder, self.files)
        *batches, meta = self.files
        names = load_pickle(folder / meta).get(self.label_names)
        if not isinstance(names, list) or len(names) != self.classes:
            raise UserError(
                f"{folder / meta} has no list {self.label_names!r} of {self.classes} names; download it again"
            )
        paths: list[str] = []
        class_ids: list[int] = []
        parts: list[str] = []
        for part, part_files in (("train", batches), ("test", self.test_files)):
            for file in present(folder, part_files):
                labels = _batch(file, self.labels, len(names))[self.labels]
                paths += [f"{file.name}#{row}" for row in range(len(labels))]
                class_ids += labels
                parts += [part] * len(labels)
        return as_manifest(paths, class_ids, [str(names[class_id]) for class_id in class_ids], parts)

    def list_files(self, folder: Path) -> list[Path]:
        return present(folder, self.files + self.test_files)

    def images(self, folder: Path, paths: Sequence[str]) -> Iterator[Image.Image]:
        base = (folder / self.files[0]).parent
        for path in paths:
            name, _, row = path.partition("#")
            if not (base / name).is_file():
                raise missing(base / name)
            pixels = _pixels(base / name, self.labels, (base / name).stat().st_mtime_ns)
            yield Image.fromarray(np.ascontiguousarray(pixels[int(row)]))


@lru_cache(maxsize=1)
def _pixels(path: Path, label_key: str, _modified: int) -> np.ndarray:
    """Return uint8 [n, 32, 32, 3], cached because packing reads a batch in many parts."""
    planes = _batch(path, label_key)["data"].reshape(-1, 3, SIDE, SIDE)  # red, green, blue
    return planes.transpose(0, 2, 3, 1)


def _batch(path: Path, label_key: str, classes: int | None = None) -> dict[str, Any]:
    """Return one batch with `data` (n, 3072) uint8 and n labels. Raises UserError for an invalid batch."""
    batch = load_pickle(path)
    data, labels = batch.get("data"), batch.get(label_key)
    if not (isinstance(data, np.ndarray) and data.dtype == np.uint8 and data.shape[1:] == (3 * SIDE * SIDE,)):
        raise UserError(f"{path} has no uint8 array 'data' of shape (n, 3072); download it again")
    if not (isinstance(labels, list) and len(labels) == len(data)):
        raise UserError(f"{path} has no list {label_key!r} of {len(data)} labels; download it again")
    if classes and not all(isinstance(label, int) and 0 <= label < classes for label in labels):
        raise UserError(f"{path} has labels outside 0..{classes - 1}; download it again")
    return batch


CIFAR10 = Cifar(
    files=tuple(f"cifar-10-batches-py/{name}" for name in (*(f"data_batch_{i}" for i in range(1, 6)), "batches.meta")),
    test_files=("cifar-10-batches-py/test_batch",),
    how_to_get=(
        "`snakemake fetch_cifar10` (no account); manually: extract "
        "https://www.cs.toronto.edu/~kriz/cifar-10-python.tar.gz "
        "(md5 c58f30108f718f92721af3b95e74349a) in this folder"
    ),
    drawn_order=True,
    packed=True,
    side=SIDE,
    gigabytes=0.2,
    labels="labels",
    label_names="label_names",
    classes=10,
)

CIFAR100 = Cifar(
    files=("cifar-100-python/train", "cifar-100-python/meta"),
    test_files=("cifar-100-python/test",),
    how_to_get=(
        "`snakemake fetch_cifar100` (no account); manually: extract "
        "https://www.cs.toronto.edu/~kriz/cifar-100-python.tar.gz "
        "(md5 eb9058c3a382ffc7106e4002c42a8d85) in this folder"
    ),
    drawn_order=True,
    packed=True,
    side=SIDE,
    gigabytes=0.2,
    labels="fine_labels",
    label_names="fine_label_names",
    classes=100,
)
