"""What the workflow's steps cost here, each beside a plainly written reference in the same run."""

from __future__ import annotations

import csv
import multiprocessing
import os
import platform
import resource
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
from PIL import Image
from torchvision.transforms import InterpolationMode, transforms

from ctxgcd.benchmarks.class_lists import load
from ctxgcd.benchmarks.registry import SOURCES
from ctxgcd.benchmarks.source import read_manifest
from ctxgcd.benchmarks.split import make_split, write_split
from ctxgcd.files import write_rows
from ctxgcd.images.store import open_store, pack
from ctxgcd.images.streams import generator
from ctxgcd.images.views import Cropper

COLUMNS = ["work", "device", "unit", "ours", "reference", "ratio", "peak_memory_mb", "n"]
MEAN, STD = [0.485, 0.456, 0.406], [0.229, 0.224, 0.225]
RESIZE, CROP, BATCH = 256, 224, 128
IMAGENET = 1_281_167  # training images


@dataclass(frozen=True)
class Work:
    """A step and its plain reference: each does its work in the folder and returns the seconds it took."""

    name: str
    unit: str
    n: int
    prepare: Callable[[Path, int], None]
    ours: Callable[[Path, int], float]
    reference: Callable[[Path, int], float]


def bench(out: Path, scale: float) -> None:
    """Measure every work, each in a process of its own, print it and write `out`; `scale` shrinks or grows all n."""
    rows = []
    for work in WORKS:
        n = max(BATCH, round(work.n * scale))
        with TemporaryDirectory() as name:
            _measured(work.prepare, Path(name), n)
            (reference, _), (ours, memory) = (_measured(part, Path(name), n) for part in (work.reference, work.ours))
        row = {"work": work.name, "device": platform.processor() or platform.machine(), "unit": work.unit, "n": n}
        row |= {"ours": n / ours, "reference": n / reference, "ratio": reference / ours, "peak_memory_mb": memory}
        rows.append({key: f"{value:.4g}" if isinstance(value, float) else value for key, value in row.items()})
        print(
            f"{work.name:<44} {n / ours:>12,.1f} {work.unit:<10} reference {n / reference:>12,.1f}   "
            f"{reference / ours:>6.2f} x   {memory:,.0f} MiB",
            flush=True,
        )
    write_rows(out, COLUMNS, rows)


def _measured(part: Callable[[Path, int], Any], folder: Path, n: int) -> tuple[Any, float]:
    """Return what a function returns in a fresh process of one thread, and that process's peak memory in MiB."""
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
        return pool.submit(_with_memory, part, folder, n).result()


def _with_memory(part: Callable[[Path, int], Any], folder: Path, n: int) -> tuple[Any, float]:
    torch.set_num_threads(1)
    result = part(folder, n)
    return result, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def _timed(call: Callable[[], object]) -> float:
    begun = time.perf_counter()
    call()
    return time.perf_counter() - begun


# -- photographs -----------------------------------------------------------------------------------------


def _photographs(folder: Path, n: int) -> None:
    """Write n smooth made-up photographs of 500 x 375 pixels as JPEG."""
    draw = np.random.RandomState(0)
    (folder / "images").mkdir()
    for i in range(n):
        coarse = Image.fromarray(draw.randint(0, 256, (30, 40, 3)).astype(np.uint8))
        coarse.resize((500, 375), Image.Resampling.BICUBIC).save(folder / "images" / f"{i:05d}.jpg", quality=90)


def _names(n: int) -> list[str]:
    return [f"images/{i:05d}.jpg" for i in range(n)]


def _pack(folder: Path, n: int) -> float:
    return _timed(lambda: pack("cub", folder, _names(n), RESIZE, folder / "store.npz", 1))


def _decode_and_resize(folder: Path, n: int) -> float:
    resize = transforms.Resize(RESIZE, InterpolationMode.BICUBIC)

    def loop() -> None:
        for name in _names(n):
            np.asarray(resize(Image.open(folder / name).convert("RGB")))

    return _timed(loop)


def _packed_photographs(folder: Path, n: int) -> None:
    _photographs(folder, n)
    pack("cub", folder, _names(n), RESIZE, folder / "store.npz", 1)


def _views(folder: Path, n: int) -> float:
    cropper = Cropper(open_store(folder / "store.npz"), CROP, MEAN, STD)
    stream = generator(0, "views")

    def loop() -> None:
        for ids in torch.arange(n).split(BATCH):
            cropper.train_view(ids, stream)

    return _timed(loop)


AUGMENT = transforms.Compose(
    [
        transforms.Resize(RESIZE, InterpolationMode.BICUBIC),
        transforms.RandomCrop(CROP),
        transforms.RandomHorizontalFlip(),
        transforms.ToTensor(),
        transforms.Normalize(MEAN, STD),
    ]
)


def _decoded_views(folder: Path, n: int) -> float:
    def loop() -> None:
        for start in range(0, n, BATCH):
            torch.stack(
                [AUGMENT(Image.open(folder / name).convert("RGB")) for name in _names(n)[start : start + BATCH]]
            )

    return _timed(loop)


# -- images of 32 x 32 pixels ------------------------------------------------------------------------------


def _small(folder: Path, n: int) -> None:
    draw = np.random.RandomState(0)
    (folder / "images").mkdir()
    for i in range(n):
        Image.fromarray(draw.randint(0, 256, (32, 32, 3)).astype(np.uint8)).save(folder / "images" / f"{i:05d}.png")
    pack("cub", folder, [f"images/{i:05d}.png" for i in range(n)], RESIZE, folder / "store.npz", 1)


def _small_in_memory(folder: Path, n: int) -> float:
    images = [Image.open(folder / "images" / f"{i:05d}.png").convert("RGB") for i in range(n)]

    def loop() -> None:
        for start in range(0, n, BATCH):
            torch.stack([AUGMENT(image) for image in images[start : start + BATCH]])

    return _timed(loop)


# -- ImageNet's size ---------------------------------------------------------------------------------------


def _empty_files(folder: Path, n: int) -> None:
    """Write n empty image files in 1,000 class folders."""
    for place in range(1000):
        (folder / "train" / f"n{place:08d}").mkdir(parents=True)
        for number in range(n // 1000 + (place < n % 1000)):
            (folder / "train" / f"n{place:08d}" / f"n{place:08d}_{number}.JPEG").touch()


def _manifest_and_split(folder: Path, n: int) -> float:
    def work() -> None:
        SOURCES["imagenet"].manifest(folder).to_csv(folder / "manifest.csv", index=False)
        manifest, class_list = read_manifest(folder / "manifest.csv"), load("imagenet_1k")
        split = make_split(manifest, class_list, seed=0, labelled_share=0.5, drawn_order=True)
        write_split(split, folder / "split.csv", folder / "split.sha256")

    return _timed(work)


def _plain_split(folder: Path, n: int) -> float:
    """List, draw and write with lists and loops, as research scripts do."""

    def work() -> None:
        rows = [
            (f"{name}/{file}", class_id)
            for class_id, name in enumerate(sorted(os.listdir(folder / "train")))
            for file in sorted(os.listdir(folder / "train" / name))
        ]
        old = [i for i, (_, class_id) in enumerate(rows) if class_id < 500]
        drawn = {old[i] for i in np.random.RandomState(0).permutation(len(old))[: len(old) // 2]}
        with open(folder / "plain.csv", "w", newline="") as file:
            writer = csv.writer(file)
            for i, (path, class_id) in enumerate(rows):
                writer.writerow((i, path, "labelled" if i in drawn else "unlabelled", class_id, int(class_id < 500)))

    return _timed(work)


WORKS = (
    Work("packing photographs (1 core)", "images/s", 1500, _photographs, _pack, _decode_and_resize),
    Work("train views of 224 px, packed (1 core)", "views/s", 1500, _packed_photographs, _views, _decoded_views),
    Work("train views of 224 px, kept at 32 px (1 core)", "views/s", 1500, _small, _views, _small_in_memory),
    Work(
        "manifest and split of ImageNet's size", "images/s", IMAGENET, _empty_files, _manifest_and_split, _plain_split
    ),
)
