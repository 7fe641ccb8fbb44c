"""What one run did with D^u: its embedding, what it confused, and a gallery of the classes that it made."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from ctxgcd.benchmarks.split import read_split
from ctxgcd.errors import UserError
from ctxgcd.files import replacing
from ctxgcd.plots.embedding import project
from ctxgcd.report.confusion import commonest, confusion, matrix, per_class
from ctxgcd.report.embedding import embedding
from ctxgcd.report.gallery import Gallery, Group, Picture, distances, first
from ctxgcd.report.packed import Packed
from ctxgcd.report.page import Block, Notes, Section
from ctxgcd.report.thumbnails import sheet, thumbnail
from ctxgcd.runs import code_hash

TYPICAL, UNCERTAIN = 10, 5
MOST_GROUPS = 60  # in a gallery: what a reader still looks through


@dataclass(frozen=True)
class Made:
    """What a run left behind.

    Attributes:
        rows: its predictions.csv, one line an image of D^u.
        names: of the classes by their id, then of the clusters that no class was left for.
        old: for each of the names, whether it is an old class.
        ids, features: of the images whose features it kept, int64 [n] and float32 [n, d].
        store: the images themselves, where they are packed.
    """

    rows: pd.DataFrame
    names: Sequence[str]
    old: Sequence[bool]
    classes: int
    ids: NDArray[np.int64]
    features: NDArray[np.float32]
    store: Packed | None

    @property
    def kept(self) -> pd.DataFrame:
        """The predictions of the images whose features were kept, in the features' order."""
        return self.rows.set_index("id").loc[self.ids]


def read_made(folder: Path, split: Path, store: Packed | None) -> Made | None:
    """Read a run's folder; None where a file of it is not there yet. Raises UserError for a damaged one."""
    files = [folder / "predictions.csv", folder / "embeddings.npz", split]
    if not all(file.is_file() for file in files):
        return None
    try:
        rows = pd.read_csv(files[0], keep_default_na=False, dtype={"path": "str"})
        with np.load(files[1]) as kept:
            ids, features = kept["ids"], kept["features"].astype(np.float32)
        made = _made(rows, read_split(split), ids, features, store)
        made.kept  # noqa: B018  (images that the predictions lack: told here)
        return made
    except (ValueError, KeyError, OSError, EOFError):
        raise UserError(f"{folder} holds a damaged predictions.csv or embeddings.npz; make that run again") from None


def _made(
    rows: pd.DataFrame, split: pd.DataFrame, ids: NDArray[np.int64], features: NDArray[np.float32], store: Packed | None
) -> Made:
    listed = split.drop_duplicates("class_id").sort_values("class_id")
    names, old = listed["class_name"].tolist(), listed["old"].astype(bool).tolist()
    beyond = range(len(names), max(len(names), int(rows["matched_class"].max()) + 1))
    return Made(
        rows, names + [f"cluster {c}" for c in beyond], old + [False] * len(beyond), len(names), ids, features, store
    )


def confusion_sections(made: Made) -> list[Section]:
    """The confusion matrix with the commonest confusions, and the accuracy of each class."""
    true, matched = (made.rows[column].to_numpy("int64") for column in ("true_class", "matched_class"))
    counts = confusion(true, matched, made.classes)
    caption = "True classes in rows, matched classes in columns, counts of images; shaded by the share of the row."
    return [
        Section("Confusion", [matrix(counts, made.names, caption), commonest(counts, made.names)]),
        Section("Accuracy of each class", [per_class(counts, made.names, made.old)]),
    ]


def embedding_block(made: Made) -> Block:
    """The kept features in two dimensions, as the figure has them, each image at the pointer."""
    kept = made.kept
    true, matched = ([made.names[c] for c in kept[column]] for column in ("true_class", "matched_class"))
    images = None if made.store is None else sheet([made.store[int(i)] for i in made.ids])
    shown = f"{len(kept):,} images" if len(kept) == len(made.rows) else f"{len(kept):,} of {len(made.rows):,} images"
    caption = (
        f"t-SNE of the backbone's features of {shown} of D^u. Circles: images of old classes, triangles: of new ones."
    )
    triangles = (kept["old"] == 0).tolist()
    points = _projected(made.features)
    return embedding(
        points, kept["path"].tolist(), {"true class": true, "matched class": matched}, caption, triangles, images
    )


def _projected(features: NDArray[np.float32]) -> NDArray[np.float32]:
    """Project features as the figure does, once: what was computed is kept in work/, where all can be deleted."""
    content = hashlib.sha256(code_hash(["plots/embedding.py"]).encode() + features.tobytes()).hexdigest()[:16]
    file = Path("work/report") / f"{content}.npy"
    if file.is_file():
        kept: NDArray[np.float32] = np.load(file)
        return kept
    points = project(features, seed=0)
    with replacing(file) as temporary:
        np.save(temporary, points)
    return points


def gallery_blocks(made: Made) -> list[Block]:
    """The clusters of D^u, those matched to new classes first, the largest of each side first."""
    if made.store is None:
        return [
            Notes(["No pictures: the packed images are not in work/stores. Any training of this benchmark packs them."])
        ]
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
    said = [
        "One entry a cluster of D^u that has images, named by its matched class. Most typical: nearest to the mean of "
        "the cluster's features. Least certain: the mean of another cluster is hardly farther than that of its own, or "
        "nearer. Purity: share of the cluster's commonest true class."
    ]
    if len(order) > MOST_GROUPS:
        said.append(
            f"The first {MOST_GROUPS} of {len(order)} clusters: new classes before old ones, large before small."
        )
    return [Notes(said), Gallery(groups)]


def _pictures(made: Made, kept: pd.DataFrame, places: Sequence[int]) -> list[Picture]:
    assert made.store is not None
    found = kept.iloc[list(places)]
    return [
        Picture(thumbnail(made.store[int(i)]), f"{made.names[true]}: {path}")
        for i, true, path in zip(found.index, found["true_class"], found["path"], strict=True)
    ]
