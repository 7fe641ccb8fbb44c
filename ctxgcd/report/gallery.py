"""Galleries of the most typical and the least certain images of each group."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

Scores = NDArray[np.floating]


@dataclass(frozen=True)
class Picture:
    """An image as a data URI, and its caption."""

    uri: str
    text: str


@dataclass(frozen=True)
class Group:
    """A group of images: its name, facts and example images; `heads`: headings of the two kinds of examples."""

    title: str
    facts: Sequence[str]
    typical: Sequence[Picture]
    uncertain: Sequence[Picture]
    heads: tuple[str, str] = ("Most typical", "Least certain")


@dataclass(frozen=True)
class Gallery:
    """Groups of images."""

    kind: ClassVar[str] = "gallery"
    groups: Sequence[Group]


def distances(features: Scores, groups: NDArray[np.int64]) -> tuple[Scores, Scores]:
    """Return the distance of each image from its group's centre, and its margin to the next centre.

    Args:
        features: float [n, d].
        groups: int [n], the group of each image.

    Distances are cosine distances between features and the groups' mean features, each [n]. With one group, the
    margin is the negative distance, so the farthest image is the least certain one.
    """
    unit = features / np.maximum(np.linalg.norm(features, axis=1, keepdims=True), 1e-12)
    found, own = np.unique(groups, return_inverse=True)
    centres = np.stack([unit[own == group].mean(axis=0) for group in range(len(found))])
    centres /= np.maximum(np.linalg.norm(centres, axis=1, keepdims=True), 1e-12)
    to_all = 1 - unit @ centres.T
    at = np.arange(len(unit))
    distance = to_all[at, own]
    if len(found) == 1:
        return distance, -distance
    to_all[at, own] = np.inf
    return distance, to_all.min(axis=1) - distance


def first(scores: Scores, members: NDArray[np.bool_], count: int) -> list[int]:
    """Return the indices of at most `count` members with the smallest scores, in increasing order."""
    places = np.flatnonzero(members)
    return [int(place) for place in places[np.argsort(scores[places], kind="stable")[:count]]]
