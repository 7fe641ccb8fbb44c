"""A model as an ONNX file."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from ctxgcd import api
from ctxgcd.discover import export, model
from ctxgcd.errors import UserError
from tests.helpers.discovery import SIZE, Place, table, with_onnx

pytestmark = pytest.mark.slow


@with_onnx
def test_export_gives_what_torch_gives(place: Place, out: Path, tmp_path: Path) -> None:
    import onnx
    import onnxruntime

    about = api.export(out / "model", tmp_path / "model.onnx")
    assert about["difference"] < 1e-4
    assert {p.key for p in onnx.load(tmp_path / "model.onnx").metadata_props} >= {"classes", "threshold", "input"}
    # A photograph, prepared by hand as the metadata says, gets discover's own class and confidence.
    path = "deep/er/036.jpg"
    expected = table(out / "predictions.csv").set_index("path").loc[path]
    image = Image.open(place.root / "photos" / path).convert("RGB")
    resize = model.load(out / "model").parameters["resize"]
    scale = resize / min(image.size)
    image = image.resize((int(image.width * scale), int(image.height * scale)), Image.Resampling.BICUBIC)
    left, top = (round((side - SIZE) / 2) for side in image.size)
    pixels = np.asarray(image.crop((left, top, left + SIZE, top + SIZE)), np.float32).transpose(2, 0, 1)[None] / 255
    session = onnxruntime.InferenceSession(str(tmp_path / "model.onnx"), providers=["CPUExecutionProvider"])
    _, confidences, _ = session.run(None, {"images": pixels})
    assert int(confidences.argmax()) == expected["class"]
    assert float(confidences.max()) == pytest.approx(expected["confidence"], abs=0.01)


@with_onnx
def test_an_export_overwrites_only_an_export(out: Path, tmp_path: Path) -> None:
    theirs, mine = tmp_path / "labels.csv", tmp_path / "model.onnx"
    theirs.write_text("path,class\n")
    with pytest.raises(
        UserError, match=r"labels.csv exists and was not written by `ctxgcd export`; choose another file"
    ):
        api.export(out / "model", theirs)
    for inside in ("model.pt", "new.onnx"):
        with pytest.raises(UserError, match="is in the folder of the model; choose a file in another folder"):
            api.export(out / "model", out / "model" / inside)
    assert theirs.read_text() == "path,class\n"
    assert {path.name for path in (out / "model").iterdir()} == {"model.pt", "params.yaml", "classes.json", "found.npz"}
    first = api.export(out / "model", mine)
    assert api.export(out / "model", mine) == first


@with_onnx
def test_an_export_that_differs_is_refused(out: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(export, "TOLERANCE", -1.0)
    with pytest.raises(UserError, match="the outputs of ONNX and PyTorch differ"):
        api.export(out / "model", tmp_path / "model.onnx")
    assert not list(tmp_path.iterdir())


def test_a_missing_package_of_export_is_named(out: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(export, "NEEDED", ("json", "onnx_of_the_moon"))
    with pytest.raises(UserError, match=r"not installed; run `pip install onnx_of_the_moon"):
        api.export(out / "model", tmp_path / "model.onnx")
