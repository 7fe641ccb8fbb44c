"""Similar classes and mixed classes, for points with known angles."""

from __future__ import annotations

import numpy as np
import pytest

from ctxgcd.discover.class_shapes import LEAST_IMAGES, halves, most_central, similar_pairs


def at(*degrees: float) -> np.ndarray:
    """Return unit vectors in the plane."""
    angle = np.radians(degrees)
    return np.stack([np.cos(angle), np.sin(angle)], axis=1)


def test_pairs_of_similar_classes() -> None:
    """Means at 0, 10, 40 and 100 degrees; classes 0 and 1 are known, so their pair is not returned."""
    features, classes = at(0, 9, 11, 40, 40, 40, 100), np.array([0, 1, 1, 2, 2, 2, 3])
    pairs = similar_pairs(features, classes, known=2)
    assert [(pair.first, pair.second) for pair in pairs] == [(2, 1), (2, 0), (2, 3), (1, 3), (0, 3)]
    angles = np.degrees(np.arccos([pair.cosine for pair in pairs]))
    assert angles == pytest.approx([30, 40, 60, 90, 100])
    assert len(similar_pairs(features, classes, known=0)) == 6


def test_pairs_leave_out_empty_classes() -> None:
    pairs = similar_pairs(at(0, 20), np.array([1, 5]), known=1)
    assert [(pair.first, pair.second) for pair in pairs] == [(1, 5)]
    assert similar_pairs(at(0), np.array([3]), known=1) == []
    assert similar_pairs(np.zeros((0, 2)), np.zeros(0, np.int64), known=1) == []


def test_classes_of_two_kinds() -> None:
    """A class with kinds at 0 and 60 degrees comes before one within 20 degrees; small classes are left out."""
    count = LEAST_IMAGES
    wide = at(*np.linspace(-1, 1, count), *np.linspace(59, 61, count // 2))
    narrow, few = at(*np.linspace(0, 20, count)), at(0, 90)
    features = np.concatenate([wide, narrow, few])
    classes = np.repeat([4, 2, 7], [len(wide), len(narrow), len(few)])
    found = halves(features, classes, threads=1)
    assert [one.number for one in found] == [4, 2]
    assert np.degrees(np.arccos(found[0].cosine)) == pytest.approx(60)
    assert found[0].larger.tolist() == list(range(count))
    assert found[0].smaller.tolist() == list(range(count, count + count // 2))
    assert np.degrees(np.arccos(found[1].cosine)) == pytest.approx(10, abs=1.5)


def test_a_few_odd_images_are_no_second_kind() -> None:
    features = np.concatenate([at(*np.linspace(-1, 1, 40)), at(90, 91)])
    assert halves(features, np.zeros(42, np.int64), threads=1) == []
    assert halves(at(*[5] * 30), np.zeros(30, np.int64), threads=1) == []  # all equal


def test_the_most_central_images() -> None:
    features = at(0, 10, 20, 50, 300)
    assert most_central(features, np.array([0, 1, 2, 3]), 2) == [2, 1]  # the mean is at about 20 degrees
