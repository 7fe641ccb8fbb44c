"""Write tiny folders in the official layouts, so that every reader can be tested without the real data."""

from __future__ import annotations

import os
import pickle
import shutil
from collections.abc import Callable
from functools import cache
from pathlib import Path

import numpy as np
from PIL import Image
from scipy.io import savemat

from ctxgcd.benchmarks import class_lists

OFFICIAL = ("cifar10", "cifar100", "cub", "scars", "aircraft", "herbarium_19", "imagenet")


@cache
def look_of(class_id: int) -> tuple[np.ndarray, np.ndarray, int]:
    """Return the two colours of a class and the width of its stripes."""
    look = np.random.RandomState(class_id)
    first, second = look.randint(30, 226, (2, 3))
    return first, second, look.randint(2, 6)


class Painter:
    """Draws noisy images whose colour and stripes depend on their class, so that a training can learn it."""

    def __init__(self, seed: int) -> None:
        self.random = np.random.RandomState(seed)

    def pixels(self, class_id: int, height: int, width: int) -> np.ndarray:
        """Return one image of a class as uint8 (height, width, 3)."""
        first, second, stripes = look_of(class_id)
        stripe = (np.arange(width) // stripes % 2)[None, :, None]
        noise = self.random.randint(-25, 26, (height, width, 3))
        image: np.ndarray = np.clip(np.where(stripe, first, second) + noise, 0, 255).astype(np.uint8)
        return image

    def save(self, path: Path, class_id: int, small: int, large: int) -> None:
        """Write one image with sides of small..large pixels."""
        path.parent.mkdir(parents=True, exist_ok=True)
        height, width = self.random.randint(small, large + 1, 2)
        Image.fromarray(self.pixels(class_id, height, width)).save(path)


def write_fixture(
    benchmark: str, root: Path, *, seed: int = 0, train_per_class: int = 4, test_per_class: int = 1
) -> dict[str, int]:
    """Write root/BENCHMARK (root/imagenet for both ImageNets) and return its counts of train and test images.

    All classes are there. ImageNet has `train_per_class` images in the 100 classes of imagenet_100, at most
    2 in the others; for `imagenet_100` the returned counts are of its 100 classes.
    """
    writers: dict[str, Callable[[Path, Painter, int, int], None]] = {
        "cifar10": _cifar10,
        "cifar100": _cifar100,
        "cub": _cub,
        "scars": _scars,
        "aircraft": _aircraft,
        "herbarium_19": _herbarium_19,
        "imagenet": _imagenet,
    }
    name = "imagenet" if benchmark.startswith("imagenet") else benchmark
    writers[name](root / name, Painter(seed), train_per_class, test_per_class)
    if benchmark in ("imagenet", "imagenet_1k"):
        return {"train": 100 * train_per_class + 900 * min(2, train_per_class), "test": 1000 * test_per_class}
    k = class_lists.load(benchmark).num_classes
    return {"train": k * train_per_class, "test": k * test_per_class}


def copied(folder: Path, to: Path) -> Path:
    """Copy a layout, whose images a test may remove or rename but not edit: they are links, which takes less time."""

    def copy(source: str, target: str) -> None:
        (os.link if Path(source).suffix in (".jpg", ".JPEG") else shutil.copy2)(source, target)

    return Path(shutil.copytree(folder, to, copy_function=copy))


def _shuffled(painter: Painter, classes: int, per_class: int) -> list[int]:
    """Return class ids in a mixed order, as in the official lists of most benchmarks."""
    return [int(c) for c in painter.random.permutation(np.repeat(np.arange(classes), per_class))]


def _batch(path: Path, painter: Painter, labels: list[int], key: str) -> None:
    images = np.array([painter.pixels(label, 32, 32).transpose(2, 0, 1).ravel() for label in labels], np.uint8)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(pickle.dumps({"data": images.reshape(-1, 3072), key: labels}, protocol=2))


def _cifar10(folder: Path, painter: Painter, train: int, test: int) -> None:
    base = folder / "cifar-10-batches-py"
    for number, labels in enumerate(np.array_split(_shuffled(painter, 10, train), 5), start=1):
        _batch(base / f"data_batch_{number}", painter, labels.tolist(), "labels")
    _batch(base / "test_batch", painter, _shuffled(painter, 10, test), "labels")
    names = ["airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"]
    (base / "batches.meta").write_bytes(pickle.dumps({"label_names": names}, protocol=2))


def _cifar100(folder: Path, painter: Painter, train: int, test: int) -> None:
    base = folder / "cifar-100-python"
    for part, per_class in (("train", train), ("test", test)):
        _batch(base / part, painter, _shuffled(painter, 100, per_class), "fine_labels")
    names = [f"class_{number}" for number in range(100)]
    (base / "meta").write_bytes(pickle.dumps({"fine_label_names": names}, protocol=2))


def _cub(folder: Path, painter: Painter, train: int, test: int) -> None:
    base = folder / "CUB_200_2011"
    lines: dict[str, list[str]] = {
        "images": [],
        "image_class_labels": [],
        "train_test_split": [],
        "classes": [],
    }
    number = 0
    for class_id in range(200):
        name = f"{class_id + 1:03d}.Bird_{class_id + 1}"
        lines["classes"].append(f"{class_id + 1} {name}")
        for is_training in painter.random.permutation([1] * train + [0] * test):
            number += 1
            file = f"{name}/Bird_{number:05d}.jpg"
            lines["images"].append(f"{number} {file}")
            lines["image_class_labels"].append(f"{number} {class_id + 1}")
            lines["train_test_split"].append(f"{number} {is_training}")
            painter.save(base / "images" / file, class_id, 24, 40)
    for stem, content in lines.items():
        (base / f"{stem}.txt").write_text("\n".join(content) + "\n", encoding="utf-8")


def _scars(folder: Path, painter: Painter, train: int, test: int) -> None:
    (folder / "devkit").mkdir(parents=True, exist_ok=True)
    mats = {
        "cars_train": ("devkit/cars_train_annos.mat", train),
        "cars_test": ("cars_test_annos_withlabels.mat", test),
    }
    fields = ("bbox_x1", "bbox_y1", "bbox_x2", "bbox_y2", "class", "fname")
    for part, (mat, per_class) in mats.items():
        labels = _shuffled(painter, 196, per_class)
        annotations = np.zeros((1, len(labels)), [(field, object) for field in fields])
        for row, label in enumerate(labels):
            file = f"{row + 1:05d}.jpg"
            annotations[0, row] = (1, 1, 20, 20, label + 1, file)
            painter.save(folder / part / file, label, 24, 40)
        savemat(folder / mat, {"annotations": annotations})
    names = np.array([[f"Car {number} 2012" for number in range(1, 197)]], object)
    savemat(folder / "devkit/cars_meta.mat", {"class_names": names})


def _aircraft(folder: Path, painter: Painter, train: int, test: int) -> None:
    data = folder / "data"
    names = [f"Type {number}" for number in range(100)]
    class_of = {name: class_id for class_id, name in enumerate(sorted(names))}
    number = 0
    for part, per_class in (("trainval", train), ("test", test)):
        lines = []
        for place in _shuffled(painter, 100, per_class):
            number += 1
            lines.append(f"{number:07d} {names[place]}")
            painter.save(data / "images" / f"{number:07d}.jpg", class_of[names[place]], 24, 40)
        (data / f"images_variant_{part}.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")
    (data / "variants.txt").write_text("\n".join(names) + "\n", encoding="utf-8")


def _herbarium_19(folder: Path, painter: Painter, train: int, test: int) -> None:
    names = sorted(str(number) for number in range(683))  # sorted as strings: 0, 1, 10, 100, ...
    for part, per_class in (("small-train", train), ("small-validation", test)):
        for class_id, name in enumerate(names):
            (folder / part / name).mkdir(parents=True, exist_ok=True)
            for number in range(per_class):
                painter.save(folder / part / name / f"{number}.jpg", class_id, 24, 32)


def wnids() -> list[str]:
    """Return 1,000 sorted folder names in which the 100 listed classes have their real names and places."""
    listed = class_lists.load("imagenet_100")
    real = dict(zip(listed.old + listed.new, listed.names, strict=True))
    names = [f"n{int(real[1][1:]) - 1:08d}"]
    for place in range(1, 1000):
        names.append(real.get(place) or f"n{int(names[-1][1:]) + 1:08d}")
    return names


def _imagenet(folder: Path, painter: Painter, train: int, test: int) -> None:
    listed = class_lists.load("imagenet_100")
    for class_id, name in enumerate(wnids()):
        images = train if class_id in listed.old + listed.new else min(2, train)
        (folder / "train" / name).mkdir(parents=True, exist_ok=True)
        for number in range(images):
            painter.save(folder / "train" / name / f"{name}_{number}.JPEG", class_id, 14, 18)
        for number in range(test):
            painter.save(folder / "val" / name / f"val_{class_id}_{number}.JPEG", class_id, 14, 18)
