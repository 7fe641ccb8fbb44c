"""Benchmarks of packing, views and splits."""

from __future__ import annotations

import csv
import os
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import nn
from torchvision.transforms import InterpolationMode, transforms

from ctxgcd.bench.work import Work, timed
from ctxgcd.benchmarks.class_lists import load
from ctxgcd.benchmarks.readers.reader import read_manifest
from ctxgcd.benchmarks.readers.registry import READERS
from ctxgcd.benchmarks.split import make_split
from ctxgcd.benchmarks.split_file import write_split
from ctxgcd.errors import UserError
from ctxgcd.images.pack import pack
from ctxgcd.images.store import open_store
from ctxgcd.images.views import Cropper
from ctxgcd.models.backbone import Backbone
from ctxgcd.models.features import extract_test_view
from ctxgcd.models.weights import build
from ctxgcd.training.devices import make_deterministic
from ctxgcd.utils.seeding import Stream, generator

MEAN, STD = [0.485, 0.456, 0.406], [0.229, 0.224, 0.225]
RESIZE, CROP, BATCH = 256, 224, 128
IMAGENET = 1_281_167  # training images


# -- photographs -----------------------------------------------------------------------------------------


IMAGES = "CTXGCD_BENCH_IMAGES"  # folder of JPEGs to use instead of synthetic images


def jpegs(folder: Path) -> list[Path]:
    """Return all JPEGs below a folder. Raises UserError if there are none, or if one cannot be decoded."""
    if not folder.is_dir():
        raise UserError(f"{folder} is not a folder; give a folder of photographs")
    found = sorted(path for path in folder.rglob("*") if path.suffix.lower() in (".jpg", ".jpeg"))
    if not found:
        raise UserError(f"{folder} contains no .jpg or .jpeg file; give a folder of photographs")
    for path in found:
        try:
            Image.open(path).close()
        except OSError:
            raise UserError(f"{path} cannot be decoded as an image; remove it from the folder") from None
    return found


def _photographs(folder: Path, n: int) -> None:
    """Write n photographs: from IMAGES (repeated if it has fewer), or smooth synthetic images of 500 x 375 pixels."""
    draw = np.random.RandomState(0)
    (folder / "images").mkdir()
    if given := os.environ.get(IMAGES):
        found = jpegs(Path(given))
        for i in range(n):
            (folder / "images" / f"{i:05d}.jpg").symlink_to(found[i % len(found)])
        return
    for i in range(n):
        coarse = Image.fromarray(draw.randint(0, 256, (30, 40, 3)).astype(np.uint8))
        coarse.resize((500, 375), Image.Resampling.BICUBIC).save(folder / "images" / f"{i:05d}.jpg", quality=90)


def names(n: int) -> list[str]:
    """Return the paths of the photographs."""
    return [f"images/{i:05d}.jpg" for i in range(n)]


def _pack(folder: Path, n: int, device: torch.device) -> float:
    return timed(lambda: pack("cub", folder, names(n), RESIZE, folder / "store.npz", 1), device)


def _decode_and_resize(folder: Path, n: int, device: torch.device) -> float:
    resize = transforms.Resize(RESIZE, InterpolationMode.BICUBIC)

    def loop() -> None:
        for name in names(n):
            np.asarray(resize(Image.open(folder / name).convert("RGB")))

    return timed(loop, device)


def packed_photographs(folder: Path, n: int) -> None:
    _photographs(folder, n)
    pack("cub", folder, names(n), RESIZE, folder / "store.npz", 1)


def _views(folder: Path, n: int, device: torch.device) -> float:
    make_deterministic(device)  # as in training
    cropper = Cropper(open_store(folder / "store.npz").to(device), CROP, MEAN, STD, device)
    stream = Stream(generator(0, "views"))

    def loop() -> None:
        for ids in torch.arange(n).split(BATCH):
            cropper.train_view(ids.to(device), stream)

    return timed(loop, device)


AUGMENT = transforms.Compose(
    [
        transforms.Resize(RESIZE, InterpolationMode.BICUBIC),
        transforms.RandomCrop(CROP),
        transforms.RandomHorizontalFlip(),
        transforms.ToTensor(),
        transforms.Normalize(MEAN, STD),
    ]
)


def _decoded_views(folder: Path, n: int, device: torch.device) -> float:
    def loop() -> None:
        for start in range(0, n, BATCH):
            torch.stack([AUGMENT(Image.open(folder / name).convert("RGB")) for name in names(n)[start : start + BATCH]])

    return timed(loop, device)


def _frozen() -> nn.Module:
    return build("tf_efficientnet_lite0", CROP).eval().requires_grad_(False)  # whose weights do not change the speed


def _features(folder: Path, n: int, device: torch.device) -> float:
    cropper = Cropper(open_store(folder / "store.npz").to(device), CROP, MEAN, STD, device)
    backbone = Backbone(_frozen().to(device), nn.Identity(), 1280)
    return timed(lambda: extract_test_view(backbone, cropper, "float32", folder / "features.npy"), device)


def _features_in_large_batches(folder: Path, n: int, device: torch.device) -> float:
    cropper = Cropper(open_store(folder / "store.npz").to(device), CROP, MEAN, STD, device)
    net = _frozen().to(device)

    @torch.no_grad()
    def loop() -> None:
        torch.cat([net(cropper.test_view(ids)) for ids in torch.arange(n, device=device).split(BATCH)])

    return timed(loop, device)


# -- images of 32 x 32 pixels ------------------------------------------------------------------------------


def _small(folder: Path, n: int) -> None:
    draw = np.random.RandomState(0)
    (folder / "images").mkdir()
    for i in range(n):
        Image.fromarray(draw.randint(0, 256, (32, 32, 3)).astype(np.uint8)).save(folder / "images" / f"{i:05d}.png")
    pack("cub", folder, [f"images/{i:05d}.png" for i in range(n)], RESIZE, folder / "store.npz", 1)


def _small_in_memory(folder: Path, n: int, device: torch.device) -> float:
    images = [Image.open(folder / "images" / f"{i:05d}.png").convert("RGB") for i in range(n)]

    def loop() -> None:
        for start in range(0, n, BATCH):
            torch.stack([AUGMENT(image) for image in images[start : start + BATCH]])

    return timed(loop, device)


# -- ImageNet's size ---------------------------------------------------------------------------------------


def _empty_files(folder: Path, n: int) -> None:
    """Write n empty image files in 1,000 class folders."""
    for place in range(1000):
        (folder / "train" / f"n{place:08d}").mkdir(parents=True)
        for number in range(n // 1000 + (place < n % 1000)):
            (folder / "train" / f"n{place:08d}" / f"n{place:08d}_{number}.JPEG").touch()


def _manifest_and_split(folder: Path, n: int, device: torch.device) -> float:
    def work() -> None:
        READERS["imagenet"].manifest(folder).to_csv(folder / "manifest.csv", index=False)
        manifest, class_list = read_manifest(folder / "manifest.csv"), load("imagenet_1k")
        split = make_split(manifest, class_list, seed=0, labelled_share=0.5, drawn_order=True)
        write_split(split, folder / "split.csv", folder / "split.sha256")

    return timed(work, device)


def _plain_split(folder: Path, n: int, device: torch.device) -> float:
    """List, sample and write images with lists and loops, as in research scripts."""

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

    return timed(work, device)


WORKS = (
    Work("packing photographs (1 core)", "images/s", (500,), _photographs, _pack, _decode_and_resize),
    Work("train views of 224 px, packed (1 core)", "views/s", (500,), packed_photographs, _views, _decoded_views),
    Work(
        "features of 224 px, EfficientNet-lite0 (2 cores)",
        "images/s",
        (500,),
        packed_photographs,
        _features,
        _features_in_large_batches,
        threads=2,
    ),
    Work("train views of 224 px, kept at 32 px (1 core)", "views/s", (500,), _small, _views, _small_in_memory),
    Work(
        "manifest and split of ImageNet's size",
        "images/s",
        (IMAGENET,),
        _empty_files,
        _manifest_and_split,
        _plain_split,
        least=2_000,  # two images per class
    ),
)
