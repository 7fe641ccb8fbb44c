"""Make the embedded subset of Fashion-MNIST from the official files: one PNG sheet per part and labels.csv.

The official files (train-images-idx3-ubyte.gz and so on) are in Debian's package dataset-fashion-mnist;
torchvision downloads them too. The same seed gives the same files; with the same Pillow version, byte for byte.
"""

from __future__ import annotations

import argparse
import gzip
from pathlib import Path

import numpy as np
import pandas as pd
from PIL import Image

from ctxgcd.benchmarks.places import embedded
from ctxgcd.benchmarks.readers.png_sheet import PER_LINE

SIDE = 28  # pixels
IMAGES_PER_CLASS = {"train": 200, "test": 50}
PREFIX = {"train": "train", "test": "t10k"}
CLASS_NAMES = (
    "T-shirt/top",
    "Trouser",
    "Pullover",
    "Dress",
    "Coat",
    "Sandal",
    "Shirt",
    "Sneaker",
    "Bag",
    "Ankle boot",
)


def read_idx(path: Path, header: int) -> np.ndarray:
    """Return the bytes of an official idx file after its header (16 bytes for images, 8 for labels)."""
    return np.frombuffer(gzip.decompress(path.read_bytes()), np.uint8, offset=header)


def draw(labels: np.ndarray, per_class: int, seed: int) -> np.ndarray:
    """Return ascending indices of `per_class` images of each class."""
    random = np.random.RandomState(seed)
    classes = range(len(CLASS_NAMES))
    return np.sort(np.concatenate([random.permutation(np.flatnonzero(labels == c))[:per_class] for c in classes]))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--source", type=Path, required=True, help="folder of the official .gz files")
    parser.add_argument("--out", type=Path, default=embedded("fashion"))
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    tables = []
    for part, prefix in PREFIX.items():
        images = read_idx(arguments.source / f"{prefix}-images-idx3-ubyte.gz", 16).reshape(-1, SIDE, SIDE)
        labels = read_idx(arguments.source / f"{prefix}-labels-idx1-ubyte.gz", 8)
        chosen = draw(labels, IMAGES_PER_CLASS[part], arguments.seed)
        rows = images[chosen].reshape(-1, PER_LINE, SIDE, SIDE).transpose(0, 2, 1, 3)
        sheet = Image.fromarray(np.ascontiguousarray(rows).reshape(-1, PER_LINE * SIDE))
        sheet.save(arguments.out / f"{part}.png", optimize=True)
        columns = {"part": part, "position": range(len(chosen)), "original_index": chosen}
        names = [CLASS_NAMES[label] for label in labels[chosen]]
        tables.append(pd.DataFrame({**columns, "class_id": labels[chosen], "class_name": names}))
    pd.concat(tables).to_csv(arguments.out / "labels.csv", index=False, lineterminator="\n")


if __name__ == "__main__":
    main()
