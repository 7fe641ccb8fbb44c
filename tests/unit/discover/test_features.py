"""Features of a folder in one call."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ctxgcd import api
from tests.helpers.discovery import MODEL, SIZE, Place, table
from tests.helpers.refusals import error_of

pytestmark = pytest.mark.slow


def test_features_of_a_backbone(place: Place, found: dict[str, Any], capsys: pytest.CaptureFixture[str]) -> None:
    features, paths = api.features(place.root / "photos", **place.options)
    assert features.dtype == np.float32
    assert features.shape == (found["images"], features.shape[1]) == (len(paths), features.shape[1])
    assert np.allclose(np.linalg.norm(features, axis=1), 1, atol=1e-5)
    assert set(place.truth) < set(paths)
    assert "broken.jpg" not in paths
    assert "note: 2 images cannot be read: 'broken.jpg', 'empty.png'" in capsys.readouterr().out
    # An image and a link to it have the same features, and images of one kind more similar ones than others.
    place_of = {path: number for number, path in enumerate(paths)}
    assert features[place_of["link.jpg"]] @ features[place_of["deep/er/000.jpg"]] > 0.999
    kinds = np.array([place.truth.get(path, -1) for path in paths])
    cosines = features @ features.T
    same = kinds[:, None] == kinds
    known = (kinds >= 0)[:, None] & (kinds >= 0)
    assert cosines[known & same].mean() > cosines[known & ~same].mean() + 0.05


def test_features_of_a_model(place: Place, out: Path) -> None:
    """They are those by which a discovery finds the nearest labelled image."""
    features, paths = api.features(place.root / "photos", model=out / "model")
    predictions = table(out / "predictions.csv")
    place_of = {path: number for number, path in enumerate(paths)}
    labelled = sorted(set(predictions["nearest"]))
    examples = features[[place_of[path] for path in labelled]]
    for path, nearest in predictions[["path", "nearest"]].itertuples(index=False):
        cosines = examples @ features[place_of[path]]
        assert cosines[labelled.index(nearest)] > cosines.max() - 2e-3  # those of the model are in half precision


def test_invalid_arguments_are_refused(place: Place, out: Path, tmp_path: Path) -> None:
    photos = place.root / "photos"
    assert error_of(lambda: api.features(photos, model=out / "model", size=SIZE)) == (
        "model has its own backbone; leave out backbone, weights and size, or model"
    )
    assert error_of(lambda: api.features(photos, model=tmp_path)).startswith(f"{tmp_path} contains no model.pt")
    assert error_of(lambda: api.features(photos, backbone=MODEL)).startswith(f"--backbone {MODEL} requires weights")
    assert error_of(lambda: api.features(tmp_path)).startswith(f"{tmp_path} contains no images")
