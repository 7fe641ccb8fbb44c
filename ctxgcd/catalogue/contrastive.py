"""Values and heads of the methods with L_rep, for the catalogue (entries.py)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import Field

from ctxgcd.catalogue.sections import Closed

Values = Mapping[str, Any]  # a run's resolved parameters


class Contrastive(Closed):
    """Values of L_rep and its projection head."""

    projector_width: int = Field(ge=1)  #: width of the projector's hidden layers
    projection_dim: int = Field(ge=1)  #: dimension of the projections z
    supervised_weight: float = Field(ge=0, le=1)  #: lambda of the baseline: weight of the supervised losses
    info_nce_weight: float = Field(1.0, ge=0)  #: weight of InfoNCE, times 1 - supervised_weight
    sup_con_weight: float = Field(1.0, ge=0)  #: weight of SupCon, times supervised_weight
    info_nce_temperature: float = Field(gt=0)  #: temperature of InfoNCE, tau_u
    sup_con_temperature: float = Field(gt=0)  #: temperature of SupCon, tau_s


class GCDValues(Contrastive):
    head_dim: int = Field(ge=1)  #: output dimension of the DINO head
    semi_kmeans_restarts: int = Field(ge=1)  #: number of fits of semi-supervised k-means; the best fit is used
    semi_kmeans_iterations: int = Field(ge=1)  #: maximum number of iterations of each fit


def projector_values(p: Values, dim: int) -> int:
    width, out = p["projector_width"], p["projection_dim"]
    return int((dim + 1 + width + 1) * width + (width + 1) * out)


def dino_head_values(p: Values, dim: int) -> int:
    return projector_values(p, dim) + int(p["head_dim"] * p["projection_dim"])
