"""Random whole models."""

from __future__ import annotations

import pytest
import timm
from torch import nn

from tests.helpers.models import LITE, VIT, randomised


@pytest.fixture(scope="module")
def nets() -> dict[str, nn.Module]:
    """Random whole models without classifier, for 32-pixel images, frozen and in evaluation mode."""
    vit = timm.create_model(VIT, num_classes=0, img_size=32)
    lite = timm.create_model(LITE, num_classes=0)
    return {name: randomised(net).eval() for name, net in ((VIT, vit), (LITE, lite))}
