"""Embedding: the features of D^u in two dimensions, by true class and by predicted class."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

import matplotlib as mpl
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from numpy.typing import NDArray
from sklearn.manifold import TSNE
from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]

from ctxgcd.errors import UserError
from ctxgcd.evaluation.score_run import PREDICTION_COLUMNS
from ctxgcd.plots.palette import CLASS_PALETTE, class_colors, in_places
from ctxgcd.plots.style import GREY, figure, plain
from ctxgcd.utils.files import read_rows, undamaged

MAX_LEGEND = len(CLASS_PALETTE)
UNMATCHED = "unmatched cluster"


def read_features(predictions: Path, embeddings: Path) -> tuple[pd.DataFrame, pd.DataFrame, NDArray[np.float32]]:
    """Return a run's predictions, those with stored features by id, and these features, float32 [n, d].

    Raises UserError for a damaged file."""
    rows = read_rows(predictions, usecols=PREDICTION_COLUMNS, keep_default_na=False, dtype={"path": "str"})
    with undamaged(embeddings), np.load(embeddings) as arrays:
        return rows, rows.set_index("id").loc[arrays["ids"]], arrays["features"].astype(np.float32)


def project(features: NDArray[np.floating], seed: int) -> NDArray[np.float32]:
    """Project features[n, d] to [n, 2] by t-SNE (PCA initialisation, perplexity 30, or less for few points).

    Runs on one thread, because the order of sums on several threads changes the result. Raises UserError for fewer
    than 4 points or 2 dimensions, and for values that are not finite."""
    if features.ndim != 2 or features.shape[0] < 4 or features.shape[1] < 2:
        raise UserError(f"an embedding needs at least 4 images with 2 features each, found shape {features.shape}")
    if not np.isfinite(features).all():
        raise UserError("an embedding needs finite features, but some are NaN or infinite")
    perplexity = min(30.0, (len(features) - 1) / 3)
    with threadpool_limits(1):
        tsne = TSNE(n_components=2, init="pca", perplexity=perplexity, random_state=seed, n_jobs=1)
        return np.asarray(tsne.fit_transform(features.astype(np.float32)), dtype=np.float32)


def _scatter(
    axis: Axes,
    points: NDArray[np.float32],
    labels: NDArray[np.str_],
    old: NDArray[np.bool_],
    colors: Mapping[str, str],
) -> None:
    shades = np.array([mpl.colors.to_rgba(colors[label]) for label in labels])
    size = float(np.clip(12000 / len(points), 6, 28))
    for mask, marker in ((old, "o"), (~old, "^")):
        axis.scatter(points[mask, 0], points[mask, 1], c=shades[mask], s=size, marker=marker, alpha=0.8, linewidths=0)
    axis.set(xticks=[], yticks=[])
    axis.spines[:].set_visible(True)
    axis.spines[:].set_color("#cccccc")
    axis.grid(False)


def embedding(
    features: NDArray[np.floating],
    true_class: Iterable[str],
    old: Iterable[bool],
    predicted: Iterable[object],
    out: Path,
    title: str,
    seed: int,
    max_points: int = 2000,
) -> None:
    """Draw features[n, d] by t-SNE in two panels, coloured by true and by predicted class.

    `old`: whether the true class of each image is old (circle) or new (triangle). `predicted`: matched class names,
    which have the colours of the true classes, or cluster ids; None or '' is a cluster without a class. Of more than
    `max_points` images a random sample is drawn from `seed`, as stated in the figure. Raises UserError if the lengths
    differ or `project` refuses the features."""
    features = np.asarray(features)
    truth = np.array([str(name) for name in true_class])
    guess = np.array([UNMATCHED if p is None or p == "" or p != p else str(p) for p in predicted])
    is_old = np.asarray(list(old), dtype=bool)
    if not len(features) == len(truth) == len(guess) == len(is_old):
        lengths = (len(features), len(truth), len(is_old), len(guess))
        raise UserError(f"an embedding needs one class, old flag and prediction per image, found lengths {lengths}")
    n = len(features)
    if n > max_points:
        kept = np.sort(np.random.default_rng(seed).choice(n, max_points, replace=False))
        features, truth, guess, is_old = features[kept], truth[kept], guess[kept], is_old[kept]
    points = project(features, seed)

    olds, news, others = in_places(truth.tolist(), is_old.tolist(), guess[guess != UNMATCHED].tolist())
    names = [*olds, *news]
    matched = set(guess) & set(names)
    colors = class_colors([*names, *others] if matched else names)
    guessed = (colors if matched else class_colors(others)) | {UNMATCHED: GREY}
    shown = f"{n:,} images" if n == len(points) else f"{len(points):,} of {n:,} images, sampled at random"
    panels = (
        ("true class", truth, colors, names, f"{len(olds)} old and {len(news)} new classes"),
        (
            "prediction" if matched else "predicted cluster (separate colours)",
            guess,
            guessed,
            [c for c in [*names, *others, UNMATCHED] if c in set(guess)],
            "",
        ),
    )
    with figure(out, 10.5, 6.4) as drawing:
        for axis, (name, labels, shades, order, counts) in zip(drawing.subplots(1, 2), panels, strict=True):
            _scatter(axis, points, labels, is_old, shades)
            axis.set_title(f"by {name}", loc="left")
            if len(order) <= MAX_LEGEND + 1:
                handles = [
                    Line2D(
                        [],
                        [],
                        linestyle="",
                        marker="^" if label in news else "o" if label in olds else "s",
                        color=shades[label],
                        label=plain(label, 18),
                    )
                    for label in order
                ]
                axis.legend(
                    handles=handles,
                    loc="upper center",
                    bbox_to_anchor=(0.5, -0.01),
                    ncols=3,
                    handletextpad=0.1,
                    columnspacing=1.0,
                )
            else:
                what = counts or f"{len(order)} predicted classes or clusters"
                axis.set_xlabel(f"{what}: too many for a legend")
        marks = [
            Line2D([], [], linestyle="", marker=m, color=GREY, label=f"{kind} class")
            for kind, m in (("old", "o"), ("new", "^"))
        ]
        drawing.legend(handles=marks, loc="outside lower center", ncols=2)
        drawing.suptitle(f"{plain(title, 70)} (t-SNE, {shown})", fontsize=12)
