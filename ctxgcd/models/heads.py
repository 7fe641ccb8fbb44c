"""The heads on the backbone feature: projector, cosine classifier, and the last layer of a DINO head.

Source: SimGCD (ICCV 2023) and its released code. All are initialised from a given generator and
do not use torch's global random stream, so that runs of one seed can share their initial values.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

WEIGHT_STD = 0.02


def _linear(d_in: int, d_out: int, generator: torch.Generator) -> nn.Linear:
    # Created without values, because nn.Linear would initialise them from the global random stream.
    layer = nn.Linear(d_in, d_out, device="meta").to_empty(device="cpu")
    nn.init.normal_(layer.weight, std=WEIGHT_STD, generator=generator)
    nn.init.zeros_(layer.bias)
    return layer


class Projector(nn.Sequential):
    """MLP d_in -> hidden -> hidden -> d_out with GELU, no batch norm: float [n, d_in] to [n, d_out], not normalised.

    Weights are initialised from a normal distribution with standard deviation 0.02, biases with 0.
    """

    def __init__(self, d_in: int, hidden: int, d_out: int, *, generator: torch.Generator) -> None:
        super().__init__(
            _linear(d_in, hidden, generator),
            nn.GELU(),
            _linear(hidden, hidden, generator),
            nn.GELU(),
            _linear(hidden, d_out, generator),
        )


class DinoHead(nn.Module):
    """A projector with L2-normalised output [n, bottleneck], then a weight-normalised linear layer: [n, d_out].

    The last layer has gain 1 and no bias. As in DINO's head, which GCD (CVPR 2022) uses, it is initialised after the
    others, as torch's linear layers: uniform in +-1/sqrt(bottleneck).
    """

    def __init__(self, d_in: int, hidden: int, bottleneck: int, d_out: int, *, generator: torch.Generator) -> None:
        super().__init__()
        self.projector = Projector(d_in, hidden, bottleneck, generator=generator)
        bound = bottleneck**-0.5
        self.direction = nn.Parameter(torch.empty(d_out, bottleneck).uniform_(-bound, bound, generator=generator))

    def forward(self, features: Tensor) -> Tensor:
        """Return cosines between the bottleneck's rows and the directions, float [n, d_out]."""
        return F.linear(F.normalize(self.projector(features), dim=1), F.normalize(self.direction, dim=1))


def regrouped(cosines: Tensor, features: Tensor, centres: Tensor) -> Tensor:
    """Return cosines whose New classes are ordered by the nearest centre; those of Old classes do not change.

    Whether an image is of an Old or a New class is still decided by the classifier: the New class with the nearest
    centre gets the image's largest cosine with a New class, the others less by their distance.

    Args:
        cosines: float [n, K], the New classes last.
        features: float [n, d], of any scale.
        centres: float [New classes, d], L2-normalised.

    Returns:
        float [n, K].
    """
    old, new = cosines[:, : -len(centres)], cosines[:, -len(centres) :]
    near = F.linear(F.normalize(features.to(centres.dtype), dim=1), centres)
    return torch.cat([old, new.amax(dim=1, keepdim=True) + near - near.amax(dim=1, keepdim=True)], dim=1)


class CosineClassifier(nn.Module):
    """Weight-normalised linear layer of gain 1, no bias, on the L2-normalised feature; returns cosines.

    `direction` v [K, d] is trained and decayed but never renormalised: its norm determines its effective
    learning rate, so it is initialised as torch's linear layers, uniform in +-1/sqrt(d). K is the number of classes.
    """

    def __init__(self, d_in: int, classes: int, *, generator: torch.Generator) -> None:
        super().__init__()
        bound = d_in**-0.5
        self.direction = nn.Parameter(torch.empty(classes, d_in).uniform_(-bound, bound, generator=generator))

    def forward(self, features: Tensor) -> Tensor:
        """Return the cosines between features [n, d], of any scale, and the directions: [n, K]."""
        # In the parameter's precision even under autocast: cosines are divided by temperatures down to 0.04.
        with torch.autocast(features.device.type, enabled=False):
            features = features.to(self.direction.dtype)
            return F.linear(F.normalize(features, dim=1), F.normalize(self.direction, dim=1))
