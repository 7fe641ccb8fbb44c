"""The memory of concepts against plain loops."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor
from torch.nn.functional import normalize

from ctxgcd.losses.memory import concept_loss, updated_memory

torch.set_num_threads(1)

C, D, ROWS = 4, 5, 12


def drawn(seed: int = 0) -> tuple[Tensor, Tensor, Tensor]:
    stream = torch.Generator().manual_seed(seed)
    memory = normalize(torch.randn(C, D, dtype=torch.float64, generator=stream), dim=1)
    features = 3 * torch.randn(ROWS, D, dtype=torch.float64, generator=stream)
    return memory, features, torch.randint(0, C, (ROWS,), generator=stream)


def unit(row: list[float]) -> list[float]:
    length = math.sqrt(sum(x * x for x in row))
    return [x / length for x in row]


def test_the_loss_is_a_cross_entropy_of_similarities() -> None:
    memory, features, concepts = drawn()
    total = 0.0
    for row, concept in zip(features.tolist(), concepts.tolist(), strict=True):
        z = unit(row)
        shares = [math.exp(sum(a * b for a, b in zip(z, centre, strict=True)) / 0.2) for centre in memory.tolist()]
        total -= math.log(shares[concept] / sum(shares))
    assert concept_loss(features, memory, concepts, 0.2).item() == pytest.approx(total / ROWS, rel=1e-12)


def test_one_concept_has_no_loss_and_no_gradient() -> None:
    memory, features, concepts = drawn()
    loss = concept_loss(features.requires_grad_(), memory[:1].requires_grad_(), concepts * 0, 0.05)
    loss.backward()
    assert loss == 0
    assert features.grad is not None
    assert features.grad.abs().max() == 0


def test_the_memory_gets_no_gradient_and_half_precision_is_widened() -> None:
    memory, features, concepts = drawn()
    concept_loss(features.requires_grad_(), memory.requires_grad_(), concepts, 0.05).backward()
    assert memory.grad is None
    loss = concept_loss(features.bfloat16(), memory.float(), concepts, 0.05)
    assert loss.dtype == torch.float32


def test_rows_update_the_memory_in_their_order() -> None:
    memory, features, concepts = drawn()
    kept = memory.clone()
    slow = memory.tolist()
    for row, concept in zip(features.tolist(), concepts.tolist(), strict=True):
        mixed = [0.1 * a + 0.9 * b for a, b in zip(slow[concept], unit(row), strict=True)]
        slow[concept] = unit(mixed)
    found = updated_memory(memory, features, concepts, 0.1)
    torch.testing.assert_close(found, torch.tensor(slow, dtype=torch.float64), rtol=1e-12, atol=1e-12)
    assert torch.equal(memory, kept)  # a new tensor
    backwards = updated_memory(memory, features.flip(0), concepts.flip(0), 0.1)
    assert not torch.allclose(found, backwards)
    absent = [c for c in range(C) if c not in concepts.tolist()]
    assert torch.equal(found[absent], memory[absent])
    torch.testing.assert_close(updated_memory(memory, features, concepts, 1.0), memory)
