"""Synthetic images in a store, and the same images resized by PIL."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from PIL import Image
from torchvision import transforms
from torchvision.transforms import InterpolationMode

from ctxgcd.images.pack import pack
from ctxgcd.images.store import Store, open_store
from ctxgcd.images.views import Cropper

MEAN, STD = [0.485, 0.456, 0.406], [0.229, 0.224, 0.225]


SHAPES = [(36, 36), (24, 40), (40, 24), (500, 37), (37, 500), (1, 1), (1, 40), (40, 1), (2, 3), (35, 36), (36, 100)]
SHAPES += [(37, 36), (101, 53)]


def paint(height: int, width: int, mode: str = "RGB", seed: int = 0) -> Image.Image:
    draw = np.random.RandomState(seed + 1000 * height + width)
    image = Image.fromarray(draw.randint(0, 256, (height, width, 3), dtype=np.uint8))
    return image.quantize(16) if mode == "P" else image.convert(mode)


def write(folder: Path, images: list[Image.Image], suffixes: list[str] | None = None) -> list[str]:
    """Save images and return their paths below the folder."""
    folder.mkdir(exist_ok=True)
    names = [f"{i:03d}{suffixes[i] if suffixes else '.png'}" for i in range(len(images))]
    for name, image in zip(names, images, strict=True):
        image.save(folder / name)
    return names


def reference(path: Path, size: int) -> Image.Image:
    """Return torchvision's Resize of the decoded PIL image."""
    with Image.open(path) as image:
        return transforms.Resize(size, InterpolationMode.BICUBIC, antialias=True)(image.convert("RGB"))


def unpacked(store: Store, i: int) -> np.ndarray:
    height, width, start = (int(t[i]) for t in (store.heights, store.widths, store.offsets))
    return store.pixels[start : start + height * width].view(height, width, 3).numpy()


NORMALISE = transforms.Compose([transforms.ToTensor(), transforms.Normalize(MEAN, STD)])


def cropper_of(packed: Path, crop: int) -> Cropper:
    return Cropper(open_store(packed), crop, MEAN, STD)


def pil(packed: Path, i: int) -> Image.Image:
    return reference(packed.parent / "images" / f"{i:03d}.png", 36)


def pack_shapes(folder: Path) -> Path:
    """Pack a small store of odd shapes at 36 pixels."""
    names = write(folder / "images", [paint(*shape) for shape in SHAPES])
    pack("cub", folder / "images", names, 36, folder / "store.npz", 1)
    return folder / "store.npz"
