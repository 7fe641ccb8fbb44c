"""The report of a discovery: galleries of classes, a map of the images, uncertain images, parameters."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any
from urllib.parse import quote

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
from ctxgcd.report.all_images import AllImages, Card, Cards, ImageList, Row, all_images
from ctxgcd.report.embedding import embedding
from ctxgcd.report.gallery import first
from ctxgcd.report.grid import Cell, Grid
from ctxgcd.report.page import Block, Notes, Section, write_page
from ctxgcd.report.thumbnails import sheet

TYPICAL, UNCERTAIN = 10, 5  # images of a class
LISTED = 50  # uncertain images of all classes
MAPPED = 2000  # images of the map
TO_LOOK_AT, PICTURED = 10, 4  # classes or pairs to look at, and those with pictures
LEAST_COMPARED = 3  # divided classes; with fewer, a class is compared with (almost) its own value
LONGEST = 60  # characters of a name
NEW = (
    "Most typical: the images most similar to their class. Least certain: the images for which a second class is "
    "almost as likely. A click enlarges an image, with its file, its confidence and the second class."
)
CORRECT = (
    "To correct the classes, give them names (two classes with one name are merged), and enlarge an image to say that "
    "it is right, belongs to another class or is to be thrown out. Then download corrections.csv at the end of the "
    "page and run `ctxgcd label OUT corrections.csv`. Corrections stay in this browser until the report is made again."
)


@dataclass(frozen=True)
class Discovered:
    """The results of a discovery.

    Attributes:
        table: table of show.corrected, one row for each image whose class was not given to the discovery.
        features: float32 [n, d], the features of these images.
        ids: ids of these images in the packed `store`.
        labelled: path, class and id of the other images.
        folder: the folder of the images, relative to that of the results.
    """

    model: Model
    table: pd.DataFrame
    features: NDArray[np.float32]
    ids: NDArray[np.int64]
    labelled: pd.DataFrame
    store: Path
    folder: str

    @cached_property
    def keys(self) -> list[str]:
        """The number of each class, else its name, by which corrections know it."""
        return [number or name for number, name in zip(self.model.numbers, self.model.names, strict=True)]

    @cached_property
    def titles(self) -> list[str]:
        """The name of each class, shortened, with its number if it has another name."""
        short = [name if len(name) <= LONGEST else name[: LONGEST - 1] + "…" for name in self.model.names]
        return [titled(name, number) for name, number in zip(short, self.model.numbers, strict=True)]

    @cached_property
    def merged(self) -> list[bool]:
        """Whether each class was merged into another one."""
        return [c != into for c, into in enumerate(self.model.into or range(len(self.model.names)))]

    @cached_property
    def sizes(self) -> NDArray[np.int64]:
        """The number of images of each class in the table."""
        return np.bincount(self.table["class"], minlength=len(self.model.names))

    @cached_property
    def by_hand(self) -> NDArray[np.int64]:
        """The number of those of each class that were moved to it or confirmed."""
        return np.bincount(self.table.loc[self.table["by_hand"], "class"], minlength=len(self.model.names))

    @cached_property
    def given(self) -> pd.DataFrame:
        """The labelled images as the report numbers them, after those of the table: class by class, by their paths."""
        return self.labelled.sort_values(["class", "path"], ignore_index=True)

    def numbers_given(self, c: int) -> range:
        """Return the numbers of the labelled images of a class in the report."""
        start, stop = np.searchsorted(self.given["class"], [c, c + 1]) + len(self.table)
        return range(int(start), int(stop))

    @cached_property
    def classes(self) -> list[int]:
        """The classes of the report, the largest first: those with images in the table and the known ones."""
        shown = [c for c, size in enumerate(self.sizes) if size or c < self.model.known]
        return sorted(shown, key=lambda c: -self.sizes[c])

    @cached_property
    def order(self) -> NDArray[np.int64]:
        """The rows of the table as the report numbers them: class by class, the most typical images first."""
        rank = np.empty(len(self.sizes), np.int64)
        rank[self.classes] = np.arange(len(self.classes))
        return np.lexsort((-self.table["score"].to_numpy(), rank[self.table["class"]]))

    @cached_property
    def number(self) -> NDArray[np.int64]:
        """The number of each row of the table in the report."""
        return np.argsort(self.order)


def write_report(found: Discovered, facts: Mapping[str, Any], out: Path) -> None:
    """Write the report; facts: the values returned by api.discover."""
    store = open_packed(found.store)
    known = found.model.known
    new = [c for c in found.classes if c >= known]
    sections = [
        Section("Summary", [Notes(_summary(facts, found.titles[new[0]] if new else None)), _classes(found)]),
        Section("New classes", [Notes([NEW, CORRECT]), _gallery(found, new)] if new else [Notes(["No images."])]),
        *([Section("Known classes", [_gallery(found, [c for c in found.classes if c < known])])] * bool(known)),
        Section("Classes to look at", [*_pairs(found), *_divided(found)]),
        Section("Map of the images", [_map(found, store)]),
        Section("Uncertain images", _uncertain(found)),
        Section("Assumptions and parameters", _assumptions(found, facts)),
    ]
    images = f"{counted(facts['images'] - facts['labelled'], 'image')} without a label"
    lead = f"{images} in {counted(facts['found'], 'class')}{f'; known classes: {known}' if known else ', all new'}."
    write_page("ctxgcd: discovered classes", lead, sections, out, _all_images(found, store))


def _all_images(found: Discovered, store: Packed) -> AllImages:
    rows, given = found.table.iloc[found.order], found.given
    ids = [*found.ids[found.order], *given["id"]]
    last = sorted(range(len(found.keys)), key=lambda c: not found.merged[c])  # a merged class may have the same name
    place = {found.model.names[c]: c for c in last}
    data = {
        "base": "".join(f"{quote(part)}/" for part in found.folder.split("/")),
        "classes": [
            {"key": key, "name": name, "merged": merged}
            for key, name, merged in zip(found.keys, found.model.names, found.merged, strict=True)
        ],
        "images": {
            "path": [*rows["path"], *given["path"]],
            "of": [*rows["class"].tolist(), *given["class"].tolist()],
            "second": [place[name] for name in rows["second"]],
            "confidence": [
                None if by_hand else round(100 * share)
                for share, by_hand in zip(rows["confidence"], rows["by_hand"], strict=True)
            ],
        },
    }
    return all_images(data, lambda number: store[int(ids[number])])


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


def _classes(found: Discovered) -> Grid:
    sizes = found.sizes - found.by_hand
    lines = [
        [
            Cell(found.titles[c]),
            Cell("known" if c < found.model.known else "new"),
            Cell(f"{sizes[c]:,}", share=sizes[c] / max(sizes.max(), 1)),
            Cell(f"{len(found.numbers_given(c)) + found.by_hand[c]:,}"),
            Cell("–" if (mean := _mean_confidence(found, c)) is None else f"{100 * mean:.0f}"),
        ]
        for c in found.classes
    ]
    notes = [
        f"A class of fewer than {FEW} unlabelled images has no mean confidence: so few images make up its centre "
        "themselves."
    ]
    few = any(sizes[c] < FEW for c in found.classes)
    head = ["Class", "Kind", "Unlabelled", "Labelled", "Mean confidence (%)"]
    return Grid("Classes", head, lines, 2, notes if few else ())


def _mean_confidence(found: Discovered, c: int) -> float | None:
    """Return the mean confidence of the unlabelled images of a class, or None if there are fewer than FEW."""
    of = found.table.loc[(found.table["class"] == c) & ~found.table["by_hand"], "confidence"]
    return float(of.mean()) if len(of) >= FEW else None


def _gallery(found: Discovered, classes: Sequence[int]) -> Cards:
    margins, cards = found.table["margin"].to_numpy(), []
    for c in classes:
        rows, mean = np.flatnonzero(found.table["class"] == c), _mean_confidence(found, c)
        start = int(found.number[rows].min()) if len(rows) else 0
        every, by_hand, labelled = range(start, start + len(rows)), int(found.by_hand[c]), found.numbers_given(c)
        cards.append(
            Card(
                found.titles[c],
                [
                    counted(len(rows) - by_hand, "unlabelled image"),
                    *([f"{len(labelled):,} labelled"] * bool(labelled)),
                    *([f"{by_hand:,} labelled by hand"] * bool(by_hand)),
                    *([] if mean is None else [f"mean confidence {mean:.0%}"]),
                ],
                [
                    Row("Most typical", every[:TYPICAL]),
                    Row("Least certain", _numbers(found, rows[np.argsort(margins[rows], kind="stable")[:UNCERTAIN]])),
                ],
                of=c,
                named=c >= found.model.known,
                labelled=labelled,
                every=every if len(rows) > TYPICAL else range(0),
            )
        )
    return Cards(cards, found.titles)


def _numbers(found: Discovered, rows: Sequence[int] | NDArray[np.int64]) -> list[int]:
    return [int(number) for number in found.number[rows]]


def _central(found: Discovered, head: str, rows: NDArray[np.int64]) -> Row:
    return Row(head, _numbers(found, most_central(found.features, rows, UNCERTAIN)))


def _pairs(found: Discovered) -> list[Block]:
    """Return pairs of classes that look like one, with images."""
    classes = found.table["class"].to_numpy()
    lines: list[list[Cell]] = []
    cards: list[Card] = []
    pairs = similar_pairs(found.features, classes, found.model.known)[:TO_LOOK_AT]
    for pair in pairs:
        both = (pair.first, pair.second)
        names = [found.titles[c] for c in both]
        sizes = [f"{found.sizes[c]:,}" for c in both]
        lines.append([Cell(text) for text in (*names, *sizes, f"{pair.cosine:.3f}")])
        if len(cards) < PICTURED:
            rows = [_central(found, name, np.flatnonzero(classes == c)) for name, c in zip(names, both, strict=True)]
            # A known class keeps its images; of two new classes, the larger one does.
            merge = both if pair.second < found.model.known else both[::-1]
            cards.append(Card(" and ".join(names), [f"cosine {pair.cosine:.3f}"], rows, merge=merge))
    if not lines:
        return []
    both_new = (pair for pair in pairs if min(pair.first, pair.second) >= found.model.known)
    example = next((f"{found.keys[pair.second]},{found.keys[pair.first]}" for pair in both_new), "")
    note = (
        "The most similar mean features of two classes, at least one of them new. If the images of a pair show one "
        f"kind, give both classes the same name: below{example and f', or with `ctxgcd label OUT {example}=NAME`'}. Or "
        "run the discovery with a smaller --classes."
    )
    head = ["Class", "Other class", "Images", "Images of the other", "Cosine"]
    return [Grid("Classes that look like one", head, lines, 2, [note]), Cards(cards, found.titles)]


def _divided(found: Discovered) -> list[Block]:
    """Return classes that look like several, with images."""
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
    cards: list[Card] = []
    for one in divided[:TO_LOOK_AT]:
        name, cosine = found.titles[one.number], f"{one.cosine:.3f}"
        lines.append([Cell(text) for text in (name, f"{len(one.larger):,}", f"{len(one.smaller):,}", cosine)])
        if len(cards) < PICTURED:
            halves_of = [_central(found, "Larger half", one.larger), _central(found, "Smaller half", one.smaller)]
            cards.append(Card(name, [f"cosine {cosine}"], halves_of))
    usual = float(np.median([one.cosine for one in divided]))
    note = (
        f"Each class of at least {LEAST_IMAGES} images is divided in two. The median of the cosines between the mean "
        f"features of two halves is {usual:.3f}; a much lower one may mean two kinds. If the images show two kinds, "
        "move some images of one kind to a new class, or run the discovery with a larger --classes."
    )
    head = ["Class", "Images of the larger half", "Images of the smaller half", "Cosine"]
    return [Grid("Classes that look like several", head, lines, 1, [note]), Cards(cards, found.titles)]


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
        {"class": [found.titles[c] for c in rows["class"]], "kind": kind, "confidence": _steps(rows["confidence"])},
        f"{len(shown):,}{few} unlabelled images (t-SNE of their features): similar images are close to each other. "
        "Circles: known classes, triangles: new classes.",
        triangle=[word == "new" for word in kind],
        sheet=sheet([store[int(found.ids[i])] for i in shown]),
    )


def _steps(confidence: pd.Series) -> list[str]:
    return [f"{25 * part} to {25 * part + 25}%" for part in (confidence * 4).astype(int).clip(upper=3)]


def _uncertain(found: Discovered) -> list[Block]:
    unlabelled = ~found.table["by_hand"].to_numpy()
    rows = first(found.table["margin"].to_numpy(), unlabelled, LISTED)
    table = found.table.iloc[rows]
    columns = zip(*(table[name] for name in ("path", "name", "second", "nearest", "confidence", "margin")), strict=True)
    entries = []
    for number, (path, name, second, nearest, share, margin) in zip(_numbers(found, rows), columns, strict=True):
        labelled = [f"nearest labelled image: {nearest}"] if found.model.known else []
        facts = [f"{name}, or {second}", f"confidence {share:.0%}, margin {100 * margin:.1f} points", *labelled]
        entries.append((number, path, facts))
    note = f"The {len(rows)} images with the smallest margins between the confidences of the best two classes."
    return [Notes([note]), ImageList(entries)]


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
