"""Images that occur in more than one of D^l, D^u and the test part: equal, or nearly so."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from PIL import Image
from scipy.fft import dct
from scipy.spatial import cKDTree

from ctxgcd.images.store import Store
from ctxgcd.progress import Progress

SIDE = 16  # pixels of a thumbnail
# Root mean square difference of two thumbnails, of 255 levels, up to which images count as nearly equal. Chosen here:
# it finds copies that were compressed again or scaled a little, and not those that were mirrored, cut or recoloured.
NEAR = 4.0
LOW = 4  # lowest frequencies along each side by which candidates are sought
BLOCK = 2048  # images whose candidates are looked for at once, which bounds the memory
COLUMNS = ["first", "second", "kind", "difference"]


def thumbnails(store: Store) -> NDArray[np.uint8]:
    """Return uint8 [N, 256]: the mean grey levels of the cells of a 16 x 16 grid over every packed image."""
    out = np.empty((len(store), SIDE * SIDE), np.uint8)
    progress = Progress("compared", len(store))
    for i in range(len(store)):
        grey = Image.fromarray(store.image(i).numpy()).convert("L")
        out[i] = np.asarray(grey.resize((SIDE, SIDE), Image.Resampling.BOX)).ravel()
        progress.add()
    return out


def find(store: Store, thumbs: NDArray[np.uint8], groups: NDArray[np.int64]) -> pd.DataFrame:
    """Return all pairs of equal or nearly equal images of different groups.

    Exact for its definition: equal are images of the same packed pixels, nearly equal those whose thumbnails differ by
    at most NEAR.

    Args:
        thumbs: uint8 [N, 256] of `thumbnails`.
        groups: int64 [N].

    Returns:
        Columns first, second (ids, first < second), kind (`equal` or `near`) and difference (levels), sorted.
    """
    unique, of_image = np.unique(thumbs, axis=0, return_inverse=True)
    order = np.argsort(of_image.ravel(), kind="stable")
    starts = np.searchsorted(of_image.ravel()[order], np.arange(len(unique) + 1))
    found: list[tuple[int, int, str, float]] = []
    for one, other, difference in _close(unique):
        for i in order[starts[one] : starts[one + 1]]:
            others = order[starts[other] : starts[other + 1]]
            for j in others[(groups[others] != groups[i]) & ((others > i) if one == other else True)]:
                kind = "equal" if difference == 0 and _same(store, int(i), int(j)) else "near"
                found.append((int(min(i, j)), int(max(i, j)), kind, difference))
    frame = pd.DataFrame(found, columns=COLUMNS)
    return frame.sort_values(["first", "second"], ignore_index=True)


def counts(pairs: pd.DataFrame, groups: NDArray[np.int64]) -> dict[tuple[int, int], dict[str, int]]:
    """Return, for each two groups a < b, how many images of b have an equal, or else a near, partner in a."""
    ends = pairs[["first", "second"]].to_numpy("int64")
    swap = groups[ends[:, 0]] > groups[ends[:, 1]]
    lower, upper = np.where(swap[:, None], ends[:, ::-1], ends).T
    of = pairs.assign(a=groups[lower], b=groups[upper], image=upper)
    of = of.sort_values("kind").drop_duplicates(["a", "b", "image"])  # equal before near
    found: dict[tuple[int, int], dict[str, int]] = {}
    for a, b, kind in zip(of["a"], of["b"], of["kind"], strict=True):
        found.setdefault((int(a), int(b)), {"equal": 0, "near": 0})[kind] += 1
    return dict(sorted(found.items()))


def _close(thumbs: NDArray[np.uint8]) -> Iterator[tuple[int, int, float]]:
    """Yield (i, j, difference) for i <= j of distinct thumbnails that differ by at most NEAR, each i with itself."""
    # The transform keeps distances, so those over a few of its coefficients never exceed those over all.
    starts = range(0, len(thumbs), BLOCK)
    low = np.concatenate([_low(thumbs[start : start + BLOCK]) for start in starts])
    tree = cKDTree(low)
    for start in starts:
        near = tree.query_ball_point(low[start : start + BLOCK], NEAR * 1.001, workers=-1)
        for i, candidates in enumerate(near, start=start):
            others = np.array([j for j in candidates if j >= i])
            differences = np.sqrt(((thumbs[others].astype(np.float32) - thumbs[i]) ** 2).mean(axis=1))
            yield from ((i, int(j), float(d)) for j, d in zip(others, differences, strict=True) if d <= NEAR)


def _low(thumbs: NDArray[np.uint8]) -> NDArray[np.float32]:
    """Return float32 [n, 16]: the coefficients of the lowest frequencies, scaled to levels."""
    levels = thumbs.astype(np.float32).reshape(-1, SIDE, SIDE)
    both = dct(dct(levels, axis=1, norm="ortho"), axis=2, norm="ortho")
    return both[:, :LOW, :LOW].reshape(len(thumbs), -1) / SIDE


def _same(store: Store, i: int, j: int) -> bool:
    one, other = store.image(i), store.image(j)
    return one.shape == other.shape and bool((one == other).all())
