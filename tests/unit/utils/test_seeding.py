"""Random streams, and numbers drawn by counter."""

from __future__ import annotations

import itertools

import numpy as np
import torch
from scipy.stats import kstest

from ctxgcd.utils.seeding import Counted, counted, generator

torch.set_num_threads(1)


def test_streams() -> None:
    names = ("sampler", "views", "queries", "counted_views", "heads", "view_bank")
    keys = list(itertools.product((0, 1, 2, 10), names, (0, 1, 10)))
    draws = [tuple(torch.rand(2, generator=generator(*key)).tolist()) for key in keys]
    assert len(set(draws)) == len(keys)
    assert draws == [tuple(torch.rand(2, generator=generator(*key)).tolist()) for key in keys]
    assert draws[0] == tuple(torch.rand(2, generator=generator(0, "sampler")).tolist())


def test_streams_do_not_depend_on_the_global_one() -> None:
    torch.manual_seed(5)
    first = torch.rand(3, generator=generator(0, "views", 2))
    state = torch.get_rng_state()
    assert torch.equal(first, torch.rand(3, generator=generator(0, "views", 2)))
    assert torch.equal(torch.get_rng_state(), state)


def plain_hash(key: int, *words: int) -> float:
    """Return the same hash, computed with Python's integers."""
    mask, state = 2**64 - 1, key
    for word in words:
        state = (state + 0x9E3779B97F4A7C15 * (word + 1)) & mask
        state = ((state ^ state >> 30) * 0xBF58476D1CE4E5B9) & mask
        state = ((state ^ state >> 27) * 0x94D049BB133111EB) & mask
        state ^= state >> 31
    return (state >> 11) / 2**53


def test_counted_numbers_are_those_of_a_plain_loop() -> None:
    key, ids, views = 2**64 - 3, np.array([0, 7, 2**40])[:, None], np.arange(4)
    expected = [[plain_hash(key, i, 1, v) for v in range(4)] for i in (0, 7, 2**40)]
    assert counted(key, ids, np.array([1]), views).tolist() == expected
    # The first output of splitmix64 seeded with 0 (its published test vector), upper 53 bits.
    assert counted(0, np.array([0])).tolist() == [(0xE220A8397B1DCDAF >> 11) / 2**53]


def of_step(*groups: list[int], seed: int = 0, epoch: int = 0, step: int = 0) -> list[Counted]:
    return Counted.of_step([torch.tensor(ids, dtype=torch.int64) for ids in groups], seed, "views", epoch, step)


def test_occurrences_are_counted_over_the_groups_of_a_step() -> None:
    drawn = of_step([4, 2, 4, 4], [], [2, 9, 4])
    assert [one.occurrences.tolist() for one in drawn] == [[0, 0, 1, 2], [], [1, 0, 3]]
    assert of_step() == []


def test_a_view_by_counter_depends_on_its_image_and_occurrence_alone() -> None:
    (one,), (other,) = of_step([4, 2, 4]), of_step([8, 4, 1, 1, 4])
    first, second, of_other = one.crop(3), one.crop(3), other.crop(5)
    assert torch.equal(first[[0, 2]], of_other[[1, 4]])
    rows = torch.cat([first, second]).tolist()
    rows += [row for key in ("seed", "epoch", "step") for row in of_step([4, 2, 4], **{key: 1})[0].crop(3).tolist()]
    assert len({tuple(row) for row in rows}) == 15
    (kept,) = of_step([4, 2, 4])
    assert kept.kept(3).shape == (2, 3)


def test_counted_numbers_are_uniform_and_uncorrelated() -> None:
    images = 20000
    (drawn,) = of_step([*range(images // 2)] * 2)
    rows = torch.cat([drawn.crop(images), drawn.crop(images)], dim=1).numpy()
    assert rows.min() >= 0
    assert rows.max() < 1
    for column in rows.T:
        assert kstest(column, "uniform").pvalue > 1e-4
    of_one = np.concatenate([rows[: images // 2], rows[images // 2 :]], axis=1)  # all draws of an image
    pairs = np.corrcoef(np.concatenate([of_one[:-1], of_one[1:]], axis=1).T) - np.eye(24)
    assert np.abs(pairs).max() < 5 / (images // 2) ** 0.5  # five standard errors, also against the next image
