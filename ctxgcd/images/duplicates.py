"""Search for equal and nearly equal images in different parts of a split: D^l, D^u and test."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from PIL import Image
from scipy.fft import dct
from scipy.spatial import cKDTree

from ctxgcd.images.store import Store
from ctxgcd.utils.progress import Progress

SIDE = 16  # pixels of a thumbnail
# Maximum root mean square difference of two thumbnails (0..255) of nearly equal images. This value, chosen here, finds
# copies that were recompressed or slightly scaled, but not mirrored, cropped or recoloured copies.
NEAR = 4.0
LOW = 4  # number of lowest frequencies along each side, used to find candidates
BLOCK = 256  # images whose candidates are searched at once, which limits the memory
COLUMNS = ["first", "second", "kind", "difference"]


def thumbnails(store: Store) -> NDArray[np.uint8]:
    """Return uint8 [N, 256], the mean grey levels of a 16 x 16 grid over every packed image."""
    out = np.empty((len(store), SIDE * SIDE), np.uint8)
    progress = Progress("compared", len(store))
    for i in range(len(store)):
        grey = Image.fromarray(store.image(i).numpy()).convert("L")
        out[i] = np.asarray(grey.resize((SIDE, SIDE), Image.Resampling.BOX)).ravel()
        progress.add()
    return out


def find(store: Store, thumbs: NDArray[np.uint8], groups: NDArray[np.int64]) -> pd.DataFrame:
    """Return, for every image and every group before its own, the equal or closest image in that group.

    The search is exact: equal images have the same packed pixels, thumbnails of nearly equal images differ by at most
    NEAR; of several equally close images, the first one is returned. Only one image per group is returned, because
    thousands of equal images (blank scans) have millions of pairs.

    Args:
        thumbs: uint8 [N, 256] of `thumbnails`.
        groups: int64 [N], 0 or more.

    Returns:
        Columns first, second (ids, first < second), kind (`equal` or `near`) and difference (levels), sorted.
    """
    unique, of_image = np.unique(thumbs, axis=0, return_inverse=True)
    of_image = of_image.ravel()
    contents = _contents(store, of_image)
    before: dict[tuple[int, int], int] = {}  # the first image of each content in each group
    for i, content in enumerate(contents.tolist()):
        before.setdefault((int(groups[i]), content), i)
    found: list[tuple[int, int, str, float]] = []
    closest = _closest(unique, of_image, groups)
    for i, (group, thumb, content) in enumerate(
        zip(groups.tolist(), of_image.tolist(), contents.tolist(), strict=True)
    ):
        for other in range(group):
            if (j := before.get((other, content))) is not None:
                found.append((min(i, j), max(i, j), "equal", 0.0))
            elif (near := closest.get((thumb, other))) is not None:
                found.append((min(i, near[1]), max(i, near[1]), "near", near[0]))
    frame = pd.DataFrame(found, columns=COLUMNS)
    return frame.sort_values(["first", "second"], ignore_index=True)


def counts(pairs: pd.DataFrame, groups: NDArray[np.int64]) -> dict[tuple[int, int], dict[str, int]]:
    """Return, for each pair of groups a < b, the number of images of b with an equal or nearly equal image in a."""
    ends = pairs[["first", "second"]].to_numpy("int64")
    swap = groups[ends[:, 0]] > groups[ends[:, 1]]
    lower, upper = np.where(swap[:, None], ends[:, ::-1], ends).T
    of = pairs.assign(a=groups[lower], b=groups[upper], image=upper)
    of = of.sort_values("kind").drop_duplicates(["a", "b", "image"])  # equal before near
    found: dict[tuple[int, int], dict[str, int]] = {}
    for a, b, kind in zip(of["a"], of["b"], of["kind"], strict=True):
        found.setdefault((int(a), int(b)), {"equal": 0, "near": 0})[kind] += 1
    return dict(sorted(found.items()))


def _contents(store: Store, of_image: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return int64 [N], equal for images with the same pixels. Only images with equal thumbnails are read."""
    shared = np.bincount(of_image)[of_image] > 1
    known: dict[tuple[object, ...], int] = {}
    contents = np.empty(len(of_image), np.int64)
    for i in range(len(of_image)):
        key: tuple[object, ...] = (i,)
        if shared[i]:
            image = store.image(i)
            key = (*image.shape, hashlib.sha256(image.numpy().tobytes()).digest())
        contents[i] = known.setdefault(key, i)
    return contents


def _closest(
    thumbs: NDArray[np.uint8], of_image: NDArray[np.int64], groups: NDArray[np.int64]
) -> dict[tuple[int, int], tuple[float, int]]:
    """Return (difference, image) by (distinct thumbnail, group): the group's image closest to it, if within NEAR."""
    count = len(of_image)
    firsts = np.full((len(thumbs), int(groups.max(initial=0)) + 1), count)
    np.minimum.at(firsts, (of_image, groups), np.arange(count))  # the first image of each thumbnail in each group
    closest: dict[tuple[int, int], tuple[float, int]] = {}
    for i, others, differences in _close(thumbs):
        around = firsts[others]
        if (around < count).any(axis=0).sum() < 2:  # for most thumbnails, no image of another group is near
            continue
        for group, images in enumerate(around.T):
            best = np.lexsort((images, np.where(images < count, differences, np.inf)))[0]
            if images[best] < count:
                closest[i, group] = float(differences[best]), int(images[best])
    return closest


def _close(thumbs: NDArray[np.uint8]) -> Iterator[tuple[int, NDArray[np.int64], NDArray[np.float32]]]:
    """Yield, for every distinct thumbnail, the thumbnails within NEAR of it and their differences."""
    # The transform preserves distances, so distances over some of its coefficients never exceed the full distances.
    starts = range(0, len(thumbs), BLOCK)
    low = np.concatenate([_low(thumbs[start : start + BLOCK]) for start in starts])
    tree = cKDTree(low)
    for start in starts:
        near = tree.query_ball_point(low[start : start + BLOCK], NEAR * 1.001, workers=-1)
        for i, candidates in enumerate(near, start=start):
            others = np.array(candidates)
            differences = np.sqrt(((thumbs[others].astype(np.float32) - thumbs[i]) ** 2).mean(axis=1))
            kept = differences <= NEAR
            yield i, others[kept], differences[kept]


def _low(thumbs: NDArray[np.uint8]) -> NDArray[np.float32]:
    """Return float32 [n, 16]: the coefficients of the lowest frequencies, scaled to levels."""
    levels = thumbs.astype(np.float32).reshape(-1, SIDE, SIDE)
    both = dct(dct(levels, axis=1, norm="ortho"), axis=2, norm="ortho")
    return both[:, :LOW, :LOW].reshape(len(thumbs), -1) / SIDE
