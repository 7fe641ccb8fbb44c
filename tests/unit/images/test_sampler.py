"""The sampler against its weights."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from ctxgcd.errors import UserError
from ctxgcd.images.sampler import draw_batches
from ctxgcd.utils.seeding import generator

torch.set_num_threads(1)


def members(labelled: int, of: int) -> Tensor:
    flags = torch.zeros(of, dtype=torch.bool)
    flags[torch.randperm(of, generator=torch.Generator().manual_seed(0))[:labelled]] = True
    return flags


@pytest.mark.parametrize(("labelled", "of", "size"), [(5, 100, 8), (50, 100, 10), (3, 7, 2), (1, 2, 1), (90, 100, 99)])
def test_sampler_draws_an_epoch(labelled: int, of: int, size: int) -> None:
    flags = members(labelled, of)
    batches = draw_batches(flags, size, generator(0, "sampler"))
    assert batches.shape == (of // size, size)  # the incomplete last batch is dropped
    assert batches.dtype == torch.int64
    assert ((batches >= 0) & (batches < of)).all()
    assert torch.equal(batches, draw_batches(flags, size, generator(0, "sampler")))
    assert of < 10 or not torch.equal(batches, draw_batches(flags, size, generator(1, "sampler")))


def slow_shares(flags: list[bool]) -> list[float]:
    """Return the probability of each image in one draw: weight 1 in D^l and |D^l|/|D^u| in D^u, normalised."""
    if not (n_labelled := sum(flags)):
        return [1 / len(flags)] * len(flags)
    weights = [1.0 if flag else n_labelled / (len(flags) - n_labelled) for flag in flags]
    return [weight / sum(weights) for weight in weights]


@pytest.mark.parametrize(("labelled", "of"), [(3, 12), (9, 12), (1, 20), (0, 12)])
def test_sampler_against_its_weights(labelled: int, of: int) -> None:
    flags = members(labelled, of)
    epochs = 20_000 // of
    drawn = torch.cat([draw_batches(flags, 1, generator(0, "sampler", epoch)).flatten() for epoch in range(epochs)])
    found = drawn.bincount(minlength=of).double() / len(drawn)
    expected = torch.tensor(slow_shares(flags.tolist()), dtype=torch.float64)
    # Five standard errors of a share, so that a correct sampler fails for less than one in 10^5 seeds.
    assert ((found - expected).abs() < 5 * (expected * (1 - expected) / len(drawn)).sqrt()).all()
    half = flags[drawn].double().mean()
    assert not labelled or abs(half - 0.5) < 5 * 0.5 / len(drawn) ** 0.5


def test_sampler_draws_with_replacement() -> None:
    drawn = draw_batches(members(50, 100), 100, generator(0, "sampler"))[0]
    assert len(drawn.unique()) < 100


def test_sampler_does_not_use_the_global_stream() -> None:
    flags = members(20, 100)
    torch.manual_seed(1)
    first, after = draw_batches(flags, 8, generator(0, "sampler")), torch.rand(1)
    torch.manual_seed(1)
    assert torch.rand(1) == after
    torch.manual_seed(2)
    assert torch.equal(first, draw_batches(flags, 8, generator(0, "sampler")))


@pytest.mark.parametrize(
    ("labelled", "of", "size", "words"),
    [(10, 10, 2, "10 labelled images of 10"), (5, 10, 11, "batch_size 11")],
)
def test_sampler_refuses(labelled: int, of: int, size: int, words: str) -> None:
    with pytest.raises(UserError, match=words):
        draw_batches(members(labelled, of), size, generator(0, "sampler"))
