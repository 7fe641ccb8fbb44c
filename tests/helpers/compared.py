"""Short trainings of the compared methods on the synthetic features, and a batch of one step."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from importlib.util import find_spec
from typing import Any

import pytest
import torch
from timm.models.vision_transformer import VisionTransformer
from torch import Tensor, nn
from torch.nn.functional import normalize

from ctxgcd.catalogue.entries import load
from ctxgcd.methods.method import Method
from ctxgcd.methods.step import Batch, Rows
from ctxgcd.models.prompts import Prompted, PromptTail
from tests.helpers.models import randomised
from tests.helpers.params import values
from tests.helpers.training import CLASSES, DIM, KEPT

torch.set_num_threads(1)

CONCEPTS = 3  # in the memory of dccl
NEEDS_INFOMAP = pytest.mark.skipif(
    find_spec("infomap") is None, reason="the package infomap is missing: pip install 'infomap>=2.15,<3'"
)

COMPARED = {  # row -> values with which each mechanism acts on the synthetic features
    "rsplus": {"top_k": 3, "first_drop": 1, "second_drop": 2, "ramp_epochs": 3},
    "unoplus": {"projector_width": 16, "projection_dim": 6, "heads": 2, "warmup_epochs": 1},
    "orca": {},
    "xcon": {
        **{"projector_width": 16, "projection_dim": 6, "head_dim": 12, "experts": 2, "expert_batch": 4},
        **{"semi_kmeans_restarts": 2, "partition_restarts": 1, "partition_seed": 5},
    },
    "dccl": {
        **{"projector_width": 16, "projection_dim": 6, "head_dim": 12, "semi_kmeans_restarts": 2, "ramp_epochs": 3},
        **{"k": 6, "min_similarity": 0.7, "concepts_per_batch": 2, "images_per_concept": 6, "concept_temperature": 0.5},
    },
    "promptcal": {
        **{"projector_width": 16, "projection_dim": 6, "head_dim": 12, "prompts": 3, "stage_epochs": 1, "ema": 0.9},
        **{"memory_size": 40, "neighbours": 3, "quantile": 0.2, "negatives": 12, "ramp_epochs": 1, "view_bank": 0},
    },
}
STAGE_EPOCHS = {"promptcal": 1}  # before epoch 0


class TokenTail(PromptTail):
    """A prompted ViT of two blocks, on three tokens that frozen numbers make of the synthetic features."""

    def __init__(self, prompts: int, used: int) -> None:
        stream = torch.Generator().manual_seed(0)
        net = VisionTransformer(8, 4, num_classes=0, embed_dim=DIM, depth=2, num_heads=2, mlp_ratio=2.0)
        super().__init__(randomised(net).eval().requires_grad_(False), 1, prompts, used, generator=stream)
        self.tokens = torch.randn(KEPT, 3 * DIM, generator=stream)

    def both(self, tokens: Tensor, trained: Prompted | None = None) -> tuple[Tensor, Tensor]:
        return super().both((tokens @ self.tokens).unflatten(1, (3, DIM)), trained)


def tail_of(p: Mapping[str, Any]) -> nn.Module:
    """Return the tail of a method's short run: linear with large weights, or of tokens."""
    if p["method"] == "promptcal":
        return TokenTail(p["prompts"], p["used_prompts"])
    tail, stream = nn.Linear(KEPT, DIM), torch.Generator().manual_seed(0)
    with torch.no_grad():
        for value in tail.parameters():
            value.copy_(torch.randn(value.shape, generator=stream))
    return tail


def marked(rows: Iterable[str]) -> list[Any]:
    """Return the rows as parameters of a test that trains them: one whose package is missing is skipped."""
    return [pytest.param(row, marks=NEEDS_INFOMAP) if row.startswith("dccl") else row for row in rows]


def small(row: str, /, **changes: Any) -> dict[str, Any]:
    """Return the values of a short run, with changes."""
    usual = {"K": CLASSES, "epochs": 3, "batch_size": 8, "lr": 0.02, "tail": "blocks", "tail_lr_factor": 0.5}
    return values(row) | usual | COMPARED.get(row, {}) | changes


def method_and_network(row: str, /, **changes: Any) -> tuple[Method, Any]:
    """Return a method and its network in training mode; two Old classes."""
    method = load(row)(small(row, **changes))
    network = method.network(tail_of(method.p), DIM, 2).train()
    if row == "dccl":
        stream = torch.Generator().manual_seed(0)
        network.memory = normalize(torch.randn(CONCEPTS, DIM, generator=stream), dim=1)
    return method, network


def batch_of(labels: list[int], seed: int = 0, **changes: Any) -> Batch:
    """Return a step with these labels, -1 for unlabelled images; the images are different unless `ids` are given.

    The groups beside `sampled` have the same images.
    """
    ids = torch.tensor(changes.pop("ids", range(len(labels))))
    images = torch.randn(int(ids.max()) + 1, 2, KEPT, generator=torch.Generator().manual_seed(seed))
    views = images[ids].transpose(0, 1).flatten(0, 1)
    rows = Rows(views, ids, torch.tensor(labels))
    of_concepts = replace(rows, given={"concept": ids % CONCEPTS})
    return Batch({"sampled": rows, "experts": rows, "concepts": of_concepts}, **changes)
