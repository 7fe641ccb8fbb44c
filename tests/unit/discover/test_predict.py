"""Prediction of new images with the model of a discovery."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from ctxgcd import api
from ctxgcd.discover import model
from ctxgcd.errors import UserError
from tests.helpers.discovery import Place, table
from tests.helpers.layouts import Painter

pytestmark = pytest.mark.slow


def test_predict_agrees_with_discover(place: Place, out: Path) -> None:
    of_discover = table(out / "predictions.csv").set_index("path")
    predicted, about = api.predict(out / "model", place.root / "photos")
    assert sorted(about["unreadable"]) == ["broken.jpg", "empty.png"]
    common = predicted.set_index("path").loc[of_discover.index]
    assert (common["class"] == of_discover["class"]).all()
    assert (common["name"].str.replace("\r", "") == of_discover["name"]).all()
    assert np.allclose(common["confidence"], of_discover["confidence"], atol=2e-4)
    assert np.allclose(common["score"], of_discover["score"], atol=2e-4)
    # The labelled images are there too, and each is its own nearest example.
    own = predicted[~predicted["path"].isin(of_discover.index)]
    assert (own["path"] == own["nearest"]).mean() > 0.8


def test_threshold(place: Place, found: dict[str, Any], out: Path) -> None:
    predicted, about = api.predict(out / "model", place.root / "photos")
    assert about["threshold"] == found["threshold"]
    assert about["by"] == "similarity"
    assert predicted["similarity"].min() > 0.999  # each image is one of the training images
    assert not predicted["none_of_these"].any()
    predicted, about = api.predict(out / "model", place.root / "photos", threshold=1.0)
    assert (predicted["none_of_these"] == (predicted["similarity"] < 1)).all()


def test_false_alarms(place: Place, found: dict[str, Any], out: Path, tmp_path: Path) -> None:
    """A larger share gives a higher threshold, which marks more of the new images."""
    painter = Painter(7)
    for number in range(16):
        painter.save(tmp_path / f"{number}.png", number % 6, 36, 40)
    thresholds, marked = [], []
    for share in (0.0, 0.01, 0.2, 1.0):
        predicted, about = api.predict(out / "model", tmp_path, false_alarms=share)
        assert (predicted["none_of_these"] == (predicted["similarity"] < about["threshold"])).all()
        thresholds.append(about["threshold"])
        marked.append(predicted["none_of_these"].sum())
    assert thresholds[1] == found["threshold"]
    assert thresholds == sorted(set(thresholds))
    assert marked[0] < marked[2] < marked[3]


@pytest.mark.parametrize(
    ("how", "problem"),
    [
        ({"false_alarms": 1.5}, "--false-alarms is 1.5; give a share between 0 and 1, such as 0.05"),
        ({"false_alarms": float("nan")}, "--false-alarms is nan; give a share"),
        ({"false_alarms": 0.1, "threshold": 0.5}, "--threshold and --false-alarms exclude each other"),
    ],
)
def test_thresholds_that_cannot_be_used(out: Path, how: dict[str, float], problem: str) -> None:
    with pytest.raises(UserError, match=problem):
        api.predict(out / "model", "nowhere", **how)


def test_the_threshold_of_similarities_by_hand(out: Path) -> None:
    """Two pairs of similar images and one apart: similarities 1, 1, 0.8, 0.8 and 0.6."""
    rows = torch.tensor([[1.0, 0, 0], [2, 0, 0], [0, 1, 0], [0, 0.8, 0.6], [0, 0, 3]])
    made = model.load(out / "model").with_reference(rows)
    assert made.reference is not None
    assert made.reference.norm(dim=1).tolist() == pytest.approx([1] * 5, abs=1e-3)
    assert [made.threshold_of(share) for share in (0, 0.25, 0.5, 0.75, 1)] == pytest.approx(
        [0.6, 0.8, 0.8, 1, 1], abs=1e-3
    )
    assert made.threshold == pytest.approx(0.6 + 0.04 * 0.2, abs=1e-3)  # 1% of the way from the lowest to the highest
