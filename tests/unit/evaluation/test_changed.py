"""The share of images whose class differs between two predictions."""

from __future__ import annotations

from itertools import permutations

import numpy as np
import pytest

from ctxgcd.errors import UserError
from ctxgcd.evaluation.changed import percent_changed


def plain(first: list[int], second: list[int], old: int) -> float:
    """Return the result by trying all numberings of the New clusters of `first`."""
    top = max(*first, *second, old) + 1
    fewest = len(first)
    for order in permutations(range(old, top)):
        name = [*range(old), *order]
        fewest = min(fewest, sum(name[p] != q for p, q in zip(first, second, strict=True)))
    return 100 * fewest / len(first)


def test_percent_changed_is_the_least_over_all_renumberings() -> None:
    random = np.random.default_rng(0)
    seen = set()
    for _ in range(200):
        n, old, first_k, second_k = random.integers([1, 0, 1, 1], [13, 4, 6, 6])
        first, second = (random.integers(0, k, n).tolist() for k in (first_k, second_k))
        found = percent_changed(first, second, int(old))
        assert found == plain(first, second, int(old))
        assert found == percent_changed(second, first, int(old))
        seen.add(found)
    assert {0.0, 100.0} < seen


@pytest.mark.parametrize(
    ("first", "second", "old", "expected"),
    [
        ([0, 1, 2, 3], [0, 1, 2, 3], 2, 0.0),
        ([0, 1, 2, 3], [0, 1, 3, 2], 2, 0.0),  # New clusters exchanged their numbers
        ([0, 1, 2, 3], [1, 0, 2, 3], 2, 50.0),  # Old classes have meanings
        ([0, 1, 2, 3], [1, 0, 3, 2], 0, 0.0),  # without Old classes, all numbers are arbitrary
        ([0, 0, 2, 2], [0, 2, 2, 2], 2, 25.0),  # Old to New
        ([2, 2, 3, 3], [4, 4, 4, 4], 2, 50.0),  # two clusters became one, which is matched once
        ([2, 2, 2, 3, 3], [9, 9, 7, 7, 10**9], 2, 40.0),  # any K; 2 -> 9, 3 -> 7
        ([0], [1], 2, 100.0),
    ],
)
def test_percent_changed_by_hand(first: list[int], second: list[int], old: int, expected: float) -> None:
    assert percent_changed(first, second, old) == expected


def test_six_of_2000_are_not_lost_in_rounding() -> None:
    first = np.arange(2000) % 10
    second = first.copy()
    second[:6] = 1 - second[:6] % 2
    assert percent_changed(first, second, 5) == 100 * (first != second).sum() / 2000


@pytest.mark.parametrize(
    ("first", "second", "old", "words"),
    [
        ([], [], 1, "first predictions: there are no images"),
        ([0, 1], [0], 1, "there are 2 and 1 predictions"),
        ([0], [-1], 1, "second predictions: the id -1 is negative"),
        ([0.5], [0], 1, "first predictions: found dtype float64"),
        ([0], [0], -1, "old: found -1"),
    ],
)
def test_bad_input_is_refused(first: list[int], second: list[int], old: int, words: str) -> None:
    with pytest.raises(UserError, match=words):
        percent_changed(first, second, old)
