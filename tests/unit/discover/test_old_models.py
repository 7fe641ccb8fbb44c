"""Models written by earlier versions of `ctxgcd discover` can be read and predict the same classes."""

from __future__ import annotations

import json
import lzma
import shutil
from pathlib import Path

import pytest

from ctxgcd import api
from ctxgcd.discover.model import KIND, load
from ctxgcd.errors import UserError
from ctxgcd.training import checkpoint
from tests.discover_model import TOLD, draw
from tests.helpers.places import ROOT
from tests.helpers.refusals import error_of

pytestmark = pytest.mark.slow

KEPT = sorted((ROOT / "tests").glob("discover_model_v*"))


def test_there_are_old_models() -> None:
    assert KEPT


@pytest.mark.parametrize("kept", KEPT, ids=lambda folder: folder.name)
def test_an_old_model_predicts_what_it_did(kept: Path, tmp_path: Path) -> None:
    model, images = tmp_path / "model", tmp_path / "images"
    model.mkdir()
    (model / "model.pt").write_bytes(lzma.decompress((kept / "model.pt.xz").read_bytes()))
    shutil.copy(kept / "params.yaml", model)
    draw(images, 1, 8)
    expected = json.loads((kept / "predictions.json").read_text())
    table, about = api.predict(model, images)
    if about["by"] == "score":  # the model stores nothing to compare with
        assert table["similarity"].isna().all()
        with pytest.raises(
            UserError, match="is a model of an earlier version, which cannot be used with --false-alarms"
        ):
            api.predict(model, images, false_alarms=0.05)
    assert about["threshold"] == expected["threshold"]
    found = table[TOLD].to_dict("records")
    for row, before in zip(found, expected["predictions"], strict=True):
        near = {name: pytest.approx(before[name], abs=1.01e-4) for name in ("confidence", "score")}  # rounded to 1e-4
        assert row == before | near


def test_a_model_with_centres_of_frozen_features_is_refused(tmp_path: Path) -> None:
    kept = KEPT[-1]
    (tmp_path / "model.pt").write_bytes(lzma.decompress((kept / "model.pt.xz").read_bytes()))
    content = checkpoint.load(tmp_path / "model.pt", KIND)
    checkpoint.save(tmp_path / "model.pt", KIND, content | {"centres": content["features"]})
    assert error_of(lambda: load(tmp_path)) == (
        f"{tmp_path / 'model.pt'} was written by an earlier version, which assigned New classes by the features before "
        "training; run `ctxgcd discover` again"
    )
