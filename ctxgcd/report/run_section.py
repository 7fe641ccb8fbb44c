"""The section of one run: its embedding, confusion matrix and gallery of discovered classes."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from ctxgcd.benchmarks.split_file import read_split
from ctxgcd.errors import UserError
from ctxgcd.images.packed import Packed
from ctxgcd.pipeline.code import reached
from ctxgcd.pipeline.paths import EMBEDDINGS
from ctxgcd.plots.embedding import project, read_features
from ctxgcd.plots.palette import in_places
from ctxgcd.report.confusion import confusion, matrix, most_frequent, per_class
from ctxgcd.report.embedding import embedding
from ctxgcd.report.gallery import Gallery, Group, Picture, distances, first
from ctxgcd.report.page import Block, Notes, Section
from ctxgcd.report.thumbnails import sheet, thumbnail
from ctxgcd.utils.files import replacing, undamaged

TYPICAL, UNCERTAIN = 10, 5
MOST_GROUPS = 60  # maximum number of groups in a gallery


@dataclass(frozen=True)
class Made:
    """The outputs of a run.

    Attributes:
        rows: predictions.csv, one row per image of D^u.
        kept: the rows of the images with stored features, by id, in the order of the features.
        features: float32 [n, d].
        classes: the number of classes; `names` and `old` (whether a class is old) also include the clusters without a
            matched class.
        store: the packed images, or None.
    """

    rows: pd.DataFrame
    kept: pd.DataFrame
    features: NDArray[np.float32]
    classes: int
    names: Sequence[str]
    old: Sequence[bool]
    store: Packed | None


def read_made(folder: Path, split: Path, store: Packed | None) -> Made | None:
    """Read a run's folder; return None if a file is missing. Raises UserError for a damaged file."""
    predictions, embeddings = folder / "predictions.csv", folder / "embeddings.npz"
    if not all(file.is_file() for file in (predictions, embeddings, split)):
        return None
    listed = read_split(split).drop_duplicates("class_id").sort_values("class_id")
    rows, kept, features = read_features(predictions, embeddings)
    with undamaged(predictions):
        beyond = range(len(listed), int(rows["matched_class"].max()) + 1)
    names = [*listed["class_name"], *(f"cluster {number}" for number in beyond)]
    old = [*listed["old"].astype(bool), *[False] * len(beyond)]
    return Made(rows, kept, features, len(listed), names, old, store)


def warnings_of(metrics: Mapping[str, Any]) -> list[str]:
    """Return notes on empty clusters, collapsed projections and an idle mechanism from a run's metrics.json."""
    classes, empty = metrics["K"], metrics["clusters"]["unlabelled"]["empty_clusters"]
    collapse = "The projections collapsed (nearly equal), so the contrastive and context losses had almost no effect."
    notes = [f"{empty} of the K = {classes} classes have no image; {classes - empty} were found."] if empty else []
    idle = metrics.get("idle", "")
    return notes + [collapse] * bool(metrics.get("collapsed")) + [f"Mechanism without effect: {idle}."] * bool(idle)


def confusion_sections(made: Made) -> list[Section]:
    """Return the confusion matrix with the most frequent confusions, and the accuracy of each class."""
    true, matched = (made.rows[column].to_numpy("int64") for column in ("true_class", "matched_class"))
    counts = confusion(true, matched, made.classes)
    caption = "Number of images by true class (rows) and matched class (columns), shaded by the share of the row."
    return [
        Section("Confusion matrix", [matrix(counts, made.names, caption), most_frequent(counts, made.names)]),
        Section("Accuracy per class", [per_class(counts, made.names, made.old)]),
    ]


def embedding_block(made: Made) -> Block:
    """Return the stored features in two dimensions, as in the figure, with images shown on hover."""
    try:
        points = _projected(made.features)
    except UserError as error:  # too few images, or a diverged run: the other blocks are still shown
        return Notes([f"No embedding: {error}."])
    kept, of_all = len(made.kept), len(made.rows)
    shown = f"{kept:,} images" if kept == of_all else f"{kept:,} of {of_all:,} images"
    true, matched = ([made.names[c] for c in made.kept[column]] for column in ("true_class", "matched_class"))
    return embedding(
        points,
        made.kept["path"].tolist(),
        {"true class": true, "matched class": matched},
        f"t-SNE of the backbone's features of {shown} of D^u. Circles: images of old classes, triangles: of new ones.",
        triangle=(made.kept["old"] == 0).tolist(),
        sheet=None if made.store is None else sheet([made.store[int(i)] for i in made.kept.index]),
        order=[name for part in in_places(true, made.kept["old"].astype(bool), matched) for name in part],
    )


def _projected(features: NDArray[np.float32]) -> NDArray[np.float32]:
    """Project features as in the figure; the result is cached in work/."""
    content = hashlib.sha256(reached("ctxgcd.plots.embedding").hash.encode() + features.tobytes()).hexdigest()[:16]
    file = EMBEDDINGS / f"{content}.npy"
    if file.is_file():
        with undamaged(file):
            kept: NDArray[np.float32] = np.load(file)
        return kept
    points = project(features, seed=0)
    with replacing(file) as temporary:
        np.save(temporary, points)
    return points


def gallery_blocks(made: Made) -> list[Block]:
    """Return the clusters of D^u, those matched to new classes first, each group sorted by decreasing size."""
    if made.store is None:
        return [Notes(["No images: work/stores has no packed images. Any training of this benchmark packs them."])]
    kept, rows = made.kept, made.rows
    cluster = kept["predicted"].to_numpy("int64")
    distance, margin = distances(made.features, cluster)
    sizes = rows["predicted"].value_counts()
    matched = rows.drop_duplicates("predicted").set_index("predicted")["matched_class"]
    order = sorted(sizes.index, key=lambda c: (made.old[matched[c]], -sizes[c], c))
    groups = []
    for c in order[:MOST_GROUPS]:
        true = rows.loc[rows["predicted"] == c, "true_class"]
        common = true.value_counts()
        name = made.names[matched[c]]
        group = Group(
            title=name if matched[c] < made.classes else f"new: {name}",
            facts=[
                "old class" if made.old[matched[c]] else "new class",
                f"{len(true):,} images",
                f"purity {100 * common.iloc[0] / len(true):.0f}%"
                + ("" if common.index[0] == matched[c] else f" (mostly {made.names[common.index[0]]})"),
            ],
            typical=_pictures(made, kept, first(distance, cluster == c, TYPICAL)),
            uncertain=_pictures(made, kept, first(margin, cluster == c, UNCERTAIN)),
        )
        groups.append(group)
    notes = [
        "One entry for each non-empty cluster of D^u, named after its matched class. Most typical: smallest distance "
        "to the mean feature of the cluster. Least certain: smallest difference between the distances to the nearest "
        "other mean and to the own mean. Purity: share of the most frequent true class."
    ]
    if len(order) > MOST_GROUPS:
        notes.append(
            f"The first {MOST_GROUPS} of {len(order)} clusters are shown: new classes first, sorted by decreasing size."
        )
    return [Notes(notes), Gallery(groups)]


def _pictures(made: Made, kept: pd.DataFrame, places: Sequence[int]) -> list[Picture]:
    assert made.store is not None
    found = kept.iloc[list(places)]
    return [
        Picture(thumbnail(made.store[int(i)]), f"{made.names[true]}: {path}")
        for i, true, path in zip(found.index, found["true_class"], found["path"], strict=True)
    ]
