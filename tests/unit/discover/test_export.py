"""A model as an ONNX file."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from ctxgcd import api
from ctxgcd.discover import export, model
from ctxgcd.errors import UserError
from tests.helpers.discovery import SIZE, Place, table, with_onnx

pytestmark = pytest.mark.slow
Exported = tuple[Path, dict[str, Any]]


@pytest.fixture(scope="module")
def exported(place: Place, found: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> Exported:
    """An exported model, and what `export` returned."""
    file = tmp_path_factory.mktemp("exported") / "model.onnx"
    return file, api.export(place.root / "photos/out/model", file)


@with_onnx
def test_export_gives_what_torch_gives(place: Place, out: Path, exported: Exported) -> None:
    import onnx
    import onnxruntime

    file, about = exported
    assert about["difference"] < 1e-4
    assert {p.key for p in onnx.load(file).metadata_props} >= {"classes", "threshold", "input"}
    # A photograph, prepared by hand as the metadata says, gets discover's own class and confidence.
    path = "deep/er/036.jpg"
    expected = table(out / "predictions.csv").set_index("path").loc[path]
    image = Image.open(place.root / "photos" / path).convert("RGB")
    resize = model.load(out / "model").parameters["resize"]
    scale = resize / min(image.size)
    image = image.resize((int(image.width * scale), int(image.height * scale)), Image.Resampling.BICUBIC)
    left, top = (round((side - SIZE) / 2) for side in image.size)
    pixels = np.asarray(image.crop((left, top, left + SIZE, top + SIZE)), np.float32).transpose(2, 0, 1)[None] / 255
    session = onnxruntime.InferenceSession(str(file), providers=["CPUExecutionProvider"])
    _, confidences, _ = session.run(None, {"images": pixels})
    assert int(confidences.argmax()) == expected["class"]
    assert float(confidences.max()) == pytest.approx(expected["confidence"], abs=0.01)


@with_onnx
def test_an_export_overwrites_only_an_export(out: Path, tmp_path: Path, exported: Exported) -> None:
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
    shutil.copy(exported[0], mine)
    assert api.export(out / "model", mine) == exported[1]


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
