"""The report of a discovery: galleries of classes, a map of the images, uncertain images, parameters."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from ctxgcd.discover.class_shapes import LEAST_IMAGES, halves, most_central, similar_pairs
from ctxgcd.discover.classes import titled
from ctxgcd.discover.model import FALSE_ALARMS, Model
from ctxgcd.discover.sentences import EXPLANATION, FEW, on_estimate
from ctxgcd.errors import UserError
from ctxgcd.images.packed import Packed, open_packed
from ctxgcd.names import counted
from ctxgcd.plots.embedding import project
from ctxgcd.report.embedding import embedding
from ctxgcd.report.gallery import Gallery, Group, Picture, first
from ctxgcd.report.grid import Cell, Grid
from ctxgcd.report.page import Block, Notes, Section, write_page
from ctxgcd.report.thumbnails import sheet, thumbnail

TYPICAL, UNCERTAIN = 10, 5  # images of a class
LISTED = 50  # uncertain images of all classes
MAPPED = 2000  # images of the map
TO_LOOK_AT, PICTURED = 10, 4  # classes or pairs to look at, and those with pictures
LEAST_COMPARED = 3  # divided classes; with fewer, a class is compared with (almost) its own value
LONGEST = 60  # characters of a name


@dataclass(frozen=True)
class Discovered:
    """The results of a discovery.

    Attributes:
        table: table of Model.classified, one row for each unlabelled image.
        features: float32 [n, d], the features of these images.
        ids: ids of these images in the packed `store`.
    """

    model: Model
    table: pd.DataFrame
    features: NDArray[np.float32]
    ids: NDArray[np.int64]
    store: Path


def write_report(found: Discovered, facts: Mapping[str, Any], out: Path) -> None:
    """Write the report; facts: the values returned by api.discover."""
    store = open_packed(found.store)
    known = found.model.known
    classes = found.table["class"]
    ids = [c for c in range(len(found.model.names)) if c < known or (classes == c).any()]
    ids.sort(key=lambda c: -int((classes == c).sum()))
    largest = next((found.model.names[c] for c in ids if c >= known), None)
    sections = [
        Section("Summary", [Notes(_summary(facts, largest)), _classes(found, ids)]),
        Section(
            "New classes",
            _gallery(found, store, [c for c in ids if c >= known], "No images."),
        ),
        *(
            [Section("Known classes", _gallery(found, store, [c for c in ids if c < known], "No images."))]
            * bool(known)
        ),
        Section("Classes to look at", _to_look_at(found, store)),
        Section("Map of the images", [_map(found, store)]),
        Section("Uncertain images", _uncertain(found, store)),
        Section("Assumptions and parameters", _assumptions(found, facts)),
    ]
    images = f"{counted(len(found.table), 'image')} without a label"
    lead = f"{images} in {counted(facts['found'], 'class')}{f'; known classes: {known}' if known else ', all new'}."
    write_page("ctxgcd: discovered classes", lead, sections, out)


def _name(found: Discovered, c: int) -> str:
    name, numbers = found.model.names[c], found.model.numbers
    name = name if len(name) <= LONGEST else name[: LONGEST - 1] + "…"
    return titled(name, numbers[c]) if c < len(numbers) else name


def _summary(facts: Mapping[str, Any], largest: str | None) -> list[str]:
    new = f"{facts['known']} known and {facts['K'] - facts['known']} new" if facts["known"] else "all new"
    classes = f"{facts['K']} classes: {new}"
    labelled = f"{facts['labelled']:,} of them" if facts["labelled"] else "none of them"
    how = "estimated" if facts["K_source"] == "estimated" else "given"
    empty = facts["K"] - facts["found"]
    return [
        f"{counted(facts['images'], 'image')}, {labelled} with a label. {classes} ({how}).",
        *on_estimate(facts),
        *([f"{empty} of the classes {'has' if empty == 1 else 'have'} no unlabelled images."] if empty else []),
        *([f"New classes are numbered. The largest is {largest}; see the galleries."] if largest else []),
        *facts["check"]["said"],
        *([EXPLANATION] if "scores" in facts["check"] else []),
        *facts.get("corrected", ()),
        *facts.get("changed", ()),
        *facts["notes"],
    ]


def _classes(found: Discovered, ids: Sequence[int]) -> Grid:
    sizes = _sizes(found)
    lines = [
        [
            Cell(_name(found, c)),
            Cell("known" if c < found.model.known else "new"),
            Cell(f"{sizes[c]:,}", share=sizes[c] / sizes.max()),
            Cell("–" if (mean := _mean_confidence(found, c)) is None else f"{100 * mean:.0f}"),
        ]
        for c in ids
    ]
    notes = [f"A class of fewer than {FEW} images has no mean confidence: so few images make up its centre themselves."]
    few = any(sizes[c] < FEW for c in ids)
    return Grid("Classes", ["Class", "Kind", "Images", "Mean confidence (%)"], lines, 2, notes if few else ())


def _sizes(found: Discovered) -> NDArray[np.int64]:
    """Return the number of unlabelled images of each class."""
    return np.bincount(found.table["class"], minlength=len(found.model.names))


def _mean_confidence(found: Discovered, c: int) -> float | None:
    """Return the mean confidence of the images of a class, or None if there are fewer than FEW."""
    of = found.table.loc[found.table["class"] == c, "confidence"]
    return float(of.mean()) if len(of) >= FEW else None


def _gallery(found: Discovered, store: Packed, ids: Sequence[int], none: str) -> list[Block]:
    if not ids:
        return [Notes([none])]
    table, classes = found.table, found.table["class"].to_numpy()
    groups = []
    for c in ids:
        members = classes == c
        mean = _mean_confidence(found, c)
        groups.append(
            Group(
                _name(found, c),
                [
                    counted(int(members.sum()), "unlabelled image"),
                    *([] if mean is None else [f"mean confidence {mean:.0%}"]),
                ],
                _pictures(found, store, first(-table["score"].to_numpy(), members, TYPICAL)),
                _pictures(found, store, first(table["margin"].to_numpy(), members, UNCERTAIN)),
            )
        )
    note = (
        "Most typical: the images most similar to their class. Least certain: the images for which a second class is "
        "almost as likely. Hold the pointer over a picture to see its file, its confidence and the second class."
    )
    return [Notes([note]), Gallery(groups)]


def _pictures(found: Discovered, store: Packed, places: Sequence[int]) -> list[Picture]:
    rows = found.table.iloc[list(places)]
    shown = zip(places, rows["path"], rows["confidence"], rows["second"], strict=True)
    return [
        Picture(thumbnail(store[int(found.ids[i])]), f"{path} ({100 * share:.0f}%, or {second})")
        for i, path, share, second in shown
    ]


def _to_look_at(found: Discovered, store: Packed) -> list[Block]:
    """Return pairs of classes that look like one, and classes that look like several, with pictures."""
    return [*_pairs(found, store), *_divided(found, store)]


def _central(found: Discovered, store: Packed, rows: NDArray[np.int64]) -> list[Picture]:
    return _pictures(found, store, most_central(found.features, rows, UNCERTAIN))


def _pairs(found: Discovered, store: Packed) -> list[Block]:
    classes = found.table["class"].to_numpy()
    lines: list[list[Cell]] = []
    groups: list[Group] = []
    for pair in similar_pairs(found.features, classes, found.model.known)[:TO_LOOK_AT]:
        first, second = (_name(found, c) for c in (pair.first, pair.second))
        members = [np.flatnonzero(classes == c) for c in (pair.first, pair.second)]
        texts = (first, second, *(f"{len(rows):,}" for rows in members), f"{pair.cosine:.3f}")
        lines.append([Cell(text) for text in texts])
        if len(groups) < PICTURED:
            both = [_central(found, store, rows) for rows in members]
            title, facts = f"{first} and {second}", [f"cosine {pair.cosine:.3f}"]
            groups.append(Group(title, facts, both[0], both[1], (first, second)))
    if not lines:
        return []
    note = (
        "The most similar mean features of two classes, at least one of them new. If the pictures of a pair show one "
        "kind, give both classes the same name, or run the discovery with a smaller --classes."
    )
    head = ["Class", "Other class", "Images", "Images of the other", "Cosine"]
    return [Grid("Classes that look like one", head, lines, 2, [note]), Gallery(groups)]


def _divided(found: Discovered, store: Packed) -> list[Block]:
    classes = found.table["class"].to_numpy()
    divided = halves(found.features, classes, threads=found.model.parameters["threads"])
    if len(divided) < LEAST_COMPARED:
        return [
            Notes(
                [
                    "Classes that look like several are not listed, because a class is compared with the others, and "
                    f"fewer than {LEAST_COMPARED} classes have at least {LEAST_IMAGES} images that divide into two "
                    "halves."
                ]
            )
        ]
    lines: list[list[Cell]] = []
    groups: list[Group] = []
    for one in divided[:TO_LOOK_AT]:
        name, cosine = _name(found, one.number), f"{one.cosine:.3f}"
        lines.append([Cell(text) for text in (name, f"{len(one.larger):,}", f"{len(one.smaller):,}", cosine)])
        if len(groups) < PICTURED:
            both = [_central(found, store, rows) for rows in (one.larger, one.smaller)]
            groups.append(Group(name, [f"cosine {cosine}"], both[0], both[1], ("Larger half", "Smaller half")))
    usual = float(np.median([one.cosine for one in divided]))
    note = (
        f"Each class of at least {LEAST_IMAGES} images is divided in two. The median of the cosines between the mean "
        f"features of two halves is {usual:.3f}; a much lower one may mean two kinds. If the pictures show two kinds, "
        "label some images of each, or run the discovery with a larger --classes."
    )
    head = ["Class", "Images of the larger half", "Images of the smaller half", "Cosine"]
    return [Grid("Classes that look like several", head, lines, 1, [note]), Gallery(groups)]


def _map(found: Discovered, store: Packed) -> Block:
    shown = np.sort(np.random.RandomState(0).permutation(len(found.table))[:MAPPED])
    try:
        points = project(found.features[shown], seed=0)
    except UserError as error:
        return Notes([f"No map: {error}."])
    rows = found.table.iloc[shown]
    kind = ["known" if c < found.model.known else "new" for c in rows["class"]]
    few = "" if len(shown) == len(found.table) else f" of {len(found.table):,}"
    return embedding(
        points,
        rows["path"].tolist(),
        {"class": [_name(found, c) for c in rows["class"]], "kind": kind, "confidence": _steps(rows["confidence"])},
        f"{len(shown):,}{few} unlabelled images (t-SNE of their features): similar images are close to each other. "
        "Circles: known classes, triangles: new classes.",
        triangle=[word == "new" for word in kind],
        sheet=sheet([store[int(found.ids[i])] for i in shown]),
    )


def _steps(confidence: pd.Series) -> list[str]:
    return [f"{25 * part} to {25 * part + 25}%" for part in (confidence * 4).astype(int).clip(upper=3)]


def _uncertain(found: Discovered, store: Packed) -> list[Block]:
    every = np.ones(len(found.table), dtype=np.bool_)
    places = first(found.table["margin"].to_numpy(), every, LISTED)
    rows = found.table.iloc[places]
    texts = {"path": "Image", "name": "Class", "second": "Second class"}
    if found.model.known:
        texts["nearest"] = "Nearest labelled example"
    lines = [
        [*map(Cell, words), Cell(f"{100 * share:.0f}"), Cell(f"{100 * margin:.1f}")]
        for *words, share, margin in rows[[*texts, "confidence", "margin"]].itertuples(index=False)
    ]
    head = [*texts.values(), "Confidence (%)", "Margin (points)"]
    group = Group("Images", [f"{len(places)} images with the smallest margins"], [], _pictures(found, store, places))
    return [Gallery([group]), Grid("Images with the smallest margins", head, lines, len(texts))]


def _assumptions(found: Discovered, facts: Mapping[str, Any]) -> list[Block]:
    p = found.model.parameters
    assumptions = [
        f"Every image belongs to one of {facts['K']} classes, and the labels are correct.",
        *([p["note"]] if p["note"] else []),
        f"The backbone {p['model']} uses the centre of each image, {p['crop']} x {p['crop']} pixels.",
        "Confidence: softmax of the cosines to all classes, divided by the training temperature. It ranks images, "
        "but is not a calibrated probability.",
        "None of these classes: `ctxgcd predict` marks images whose similarity with the most similar image of this "
        f"folder is below {found.model.threshold:.4f}. That of {FALSE_ALARMS:.0%} of its images is lower.",
        *facts["adapted"],
    ]
    blocks: list[Block] = [Notes(assumptions)]
    if facts["tried"]:
        lines = [[Cell(str(classes)), Cell(f"{value:.1f}")] for classes, value in sorted(facts["tried"].items())]
        notes = ["The estimate: the K with the highest k-means accuracy on the labelled images before training."]
        blocks.append(Grid("Estimation of K", ["K", "Accuracy on labelled images (%)"], lines, 0, notes))
    lines = [[Cell(str(key)), Cell(str(value))] for key, value in p.items() if key != "note"]
    return [*blocks, Grid("Parameters", ["Name", "Value"], lines, 2)]
