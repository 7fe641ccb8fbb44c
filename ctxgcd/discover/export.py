"""Export of a model to ONNX, with a comparison of its outputs with PyTorch's."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from typing import Any

import torch

from ctxgcd.discover import model as models
from ctxgcd.errors import UserError
from ctxgcd.utils.files import replacing

NEEDED = ("onnx", "onnxruntime", "onnxscript")
OUTPUTS = ("cosines", "confidences", "similarity")
METADATA = {"classes", "known", "threshold", "input"}
TOLERANCE = 1e-3  # maximum difference of outputs


def export(model: Path, out: Path) -> dict[str, Any]:
    """Export a model; see api.export."""
    if absent := [name for name in NEEDED if importlib.util.find_spec(name) is None]:
        raise UserError(f"export requires packages that are not installed; run `pip install {' '.join(absent)}`")
    import onnx
    import onnxruntime

    if out.exists() and not _is_an_export(out):
        raise UserError(f"{out} exists and was not written by `ctxgcd export`; choose another file")
    made = models.load(model)
    whole = models.Whole(made).eval()
    side = made.parameters["crop"]
    images = torch.rand(3, 3, side, side, generator=torch.Generator().manual_seed(0))
    program = torch.onnx.export(
        whole,
        (images,),
        input_names=["images"],
        output_names=list(OUTPUTS),
        dynamic_shapes=({0: torch.export.Dim("n")},),
        dynamo=True,
        verbose=False,
    )
    assert program is not None
    about = {
        "classes": json.dumps([made.names[c] for c in made.alive], ensure_ascii=False),
        "numbers": json.dumps([made.numbers[c] for c in made.alive], ensure_ascii=False),
        "known": str(made.known),
        "threshold": f"{made.threshold} ({'score' if made.reference is None else 'similarity'})",
        "input": f"RGB 0..1: shorter side resized to {made.parameters['resize']} (bicubic), then the centre crop",
    }
    proto = program.model_proto
    onnx.helper.set_model_props(proto, about)
    with replacing(out) as temporary:
        onnx.save(proto, temporary)
        session = onnxruntime.InferenceSession(str(temporary), providers=["CPUExecutionProvider"])
        worst = 0.0
        for number in (1, 3, 5):
            images = torch.rand(number, 3, side, side, generator=torch.Generator().manual_seed(number))
            with torch.no_grad():
                expected = whole(images)
            given = session.run(list(OUTPUTS), {"images": images.numpy()})
            pairs = zip(expected, given, strict=True)
            worst = max(worst, *(float((ours - torch.from_numpy(theirs)).abs().max()) for ours, theirs in pairs))
        if not worst <= TOLERANCE:
            raise UserError(
                f"the outputs of ONNX and PyTorch differ by up to {worst:.2g}, so {out} was not written; try other "
                "versions of the packages"
            )
    return {"difference": worst, **about}


def _is_an_export(file: Path) -> bool:
    import onnx

    try:
        keys = {entry.key for entry in onnx.load(file, load_external_data=False).metadata_props}
    except Exception:  # protobuf can raise almost any error for another file
        return False
    return keys >= METADATA
