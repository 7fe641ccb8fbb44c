"""The classes of new images, by the model that a discovery wrote."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ctxgcd import api
from tests.helpers.discovery import Place, table

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


def test_threshold(place: Place, found: dict[str, Any], out: Path, tmp_path: Path) -> None:
    scores = table(out / "predictions.csv")["score"]
    assert found["threshold"] == pytest.approx(scores.min())  # 1% of 41 images
    predicted, about = api.predict(out / "model", place.root / "photos")
    assert about["threshold"] == found["threshold"]
    assert (predicted["none_of_these"] == (predicted["score"] < about["threshold"])).all()
    middle = float(scores.median())
    predicted, _ = api.predict(out / "model", place.root / "photos", threshold=middle)
    assert 0 < predicted["none_of_these"].sum() < len(predicted)
    assert (predicted["none_of_these"] == (predicted["score"] < middle)).all()
