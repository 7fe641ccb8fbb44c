"""Sentences on the number of classes and on the check on the labels."""

from __future__ import annotations

from typing import Any

import pytest

from ctxgcd.discover.sentences import chance, on_check, on_estimate


def result(own: tuple[float, float, float], clustering: tuple[float, float, float]) -> dict[str, Any]:
    scores = {"this method": own, "k-means": clustering}
    kinds = ("all", "old", "new")
    return {
        "images": 100,
        "classes": 8,
        "hidden": 4,
        "hidden_images": 50,
        "scores": {name: dict(zip(kinds, of, strict=True)) for name, of in scores.items()},
    }


@pytest.mark.parametrize(
    ("accuracies", "images", "points"), [((50,), 100, 10), ((100, 90), 100, 6), ((100,), 100, 1), ((20, 90), 64, 10)]
)
def test_chance(accuracies: tuple[float, ...], images: int, points: int) -> None:
    assert chance(accuracies, images) == points


@pytest.mark.parametrize("other", [(60, 70, 54), (40, 50, 26), (50, 90, 40)])
def test_a_difference_within_chance_is_not_detected(other: tuple[float, float, float]) -> None:
    """10 points of All (100 images at 50%) and 14 of New (50 images) may be chance, in either direction."""
    assert on_check(result((50, 60, 40), other), estimated=False) == [
        "Check on your labels: with half of your classes hidden, this method has All 50.0 / Old 60.0 / New 40.0, "
        f"k-means {other[0]:.1f} / {other[1]:.1f} / {other[2]:.1f} (percent of 100 images).",
        "On your labels, k-means compared with this method: no difference that the check can detect.",
        "The check is rough: it has 100 images of 8 classes, 4 of them hidden; differences up to about 10 points "
        "(All) or 14 (New) may be chance.",
        "The check knows the true number of its classes, 8; its figures are not the accuracy of the result, which "
        "has other images and classes.",
    ]


@pytest.mark.parametrize(
    ("other", "said", "advised"),
    [
        ((61, 60, 54), "All 11.0 points better", True),
        ((61, 60, 60), "All 11.0 points better, New 20.0 points better", True),
        ((55, 90, 20), "New 20.0 points worse", False),
        ((30, 40, 55), "All 20.0 points worse, New 15.0 points better", True),
    ],
)
def test_a_difference_beyond_chance_is_given(other: tuple[float, float, float], said: str, advised: bool) -> None:
    lines = on_check(result((50, 60, 40), other), estimated=False)
    assert lines[1] == f"On your labels, k-means compared with this method: {said}."
    advice = "Where a clustering is better, another --backbone or --size, or more labels, may help."
    assert (lines[2] == advice) == (advice in lines) == advised


def test_an_estimated_number_is_contrasted_with_that_of_the_check() -> None:
    assert on_check(result((50, 60, 40), (50, 60, 40)), estimated=True)[-1] == (
        "The check knows the true number of its classes, 8, but that of the result is an estimate, so the result may "
        "be worse."
    )


ESTIMATE = {"K": 37, "K_source": "estimated", "known": 7, "labelled": 160, "few": 12, "tried": {37: 80.0, 9: 40.0}}


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({}, ": 12 of the 30 new classes have fewer than 3 images"),
        ({"few": 1}, ": 1 of the 30 new classes has fewer than 3 images"),
        ({"few": 0}, ""),
        ({"few": 0, "tried": {37: 80.0}}, ""),
        (
            {"few": 0, "tried": {37: 80.0, 9: 40.0, 35: 78.75}},
            ": 35 classes group only 2 fewer of the 160 labelled images correctly, which may be chance",
        ),
        (
            {"tried": {37: 80.0, 50: 80.0}},
            ": 50 classes group as many of the 160 labelled images correctly, and 12 of the 30 new classes have fewer "
            "than 3 images",
        ),
    ],
)
def test_an_estimate_is_rough(changes: dict[str, Any], said: str) -> None:
    assert on_estimate(ESTIMATE | changes) == [
        f"The number of classes, 37, is a rough estimate{said}. Set it with --classes if you know it."
    ]


def test_a_given_number_is_no_estimate() -> None:
    assert on_estimate(ESTIMATE | {"K_source": "given", "tried": None}) == []
