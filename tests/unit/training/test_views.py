"""Views of a training: from a bank, fresh, and cached."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from ctxgcd.images.store import Store
from ctxgcd.images.views import CPU, Cropper
from ctxgcd.methods.full import Full
from ctxgcd.models import weights
from ctxgcd.models.backbone import Backbone, cut
from ctxgcd.models.network import Network
from ctxgcd.training import loop, views
from ctxgcd.training.row import Row
from ctxgcd.training.step_inputs import StepInputs
from ctxgcd.training.views import MOST_ON_CPU, BankViews, FreshViews
from ctxgcd.utils.seeding import Counted, Draws, Stream, generator
from tests.helpers.models import LITE, randomised
from tests.helpers.training import ABOUT, CLASSES, parameters

torch.set_num_threads(1)


def numbered(count: int, images: int = 7) -> BankViews:
    """Return a bank whose rows identify view and image."""
    bank = torch.stack([torch.stack([torch.tensor([float(v), float(i)]) for i in range(images)]) for v in range(count)])
    return BankViews(bank, torch.arange(images + 2.0)[:, None])


def pair(bank: BankViews, ids: Tensor, stream: torch.Generator) -> Tensor:
    [rows] = bank.pairs([(ids, Stream(stream))], CPU)
    return rows


@pytest.mark.parametrize("count", [2, 3, 4])
def test_bank_gives_two_different_views(count: int) -> None:
    ids = torch.arange(7).repeat(300)
    rows = pair(numbered(count), ids, generator(0, "views"))
    first, second = rows.chunk(2)
    assert torch.equal(first[:, 1].long(), ids)
    assert torch.equal(second[:, 1].long(), ids)
    drawn = list(zip(first[:, 0].long().tolist(), second[:, 0].long().tolist(), strict=True))
    assert all(a != b for a, b in drawn)
    shares = [drawn.count((a, b)) / len(drawn) for a in range(count) for b in range(count) if a != b]
    chance = 1 / (count * (count - 1))
    # All ordered pairs are equally frequent, within five standard errors.
    assert max(abs(share - chance) for share in shares) < 5 * (chance * (1 - chance) / len(drawn)) ** 0.5
    assert torch.equal(rows, pair(numbered(count), ids, generator(0, "views")))
    assert not torch.equal(rows, pair(numbered(count), ids, generator(0, "views", 1)))
    assert numbered(count).test(torch.tensor([8, 0])).tolist() == [[8.0], [0.0]]


def test_equal_views_of_several_rows_are_read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    bank, read = numbered(3), list[int]()
    kept = bank._kept
    monkeypatch.setattr(bank, "_kept", lambda views, ids: read.append(len(ids)) or kept(views, ids))
    ids, others = torch.tensor([3, 1, 4]), torch.tensor([3, 1, 5])
    groups = [(of, Stream(generator(0, "views"))) for of in (ids, others, ids, ids)]
    groups.append((ids, Stream(generator(0, "views", 1))))
    found = list(bank.pairs(groups, CPU))
    assert read == [6, 6, 6]
    for (of, _), epoch, rows in zip(groups, (0, 0, 0, 0, 1), found, strict=True):
        assert torch.equal(rows, pair(numbered(3), of, generator(0, "views", epoch)))


@pytest.fixture
def cropper() -> Cropper:
    draw = np.random.RandomState(0)
    heights, widths = torch.from_numpy(draw.randint(8, 12, (2, 300)))
    offsets = torch.cat([torch.zeros(1, dtype=torch.int64), (heights * widths).cumsum(0)[:-1]])
    pixels = torch.from_numpy(draw.randint(0, 256, (int((heights * widths).sum()), 3), dtype=np.uint8))
    store = Store(pixels, offsets, heights, widths)
    return Cropper(store, 8, [0.5] * 3, [0.5] * 3)


def backbone() -> Backbone:
    return Backbone(nn.Flatten(), nn.Identity(), 3 * 8 * 8)


def fresh_views(cropper: Cropper, folder: Path, precision: str = "float32") -> FreshViews:
    return FreshViews(cropper, backbone(), precision, folder)


def test_fresh_views_are_two_draws_of_the_cropper(cropper: Cropper, tmp_path: Path) -> None:
    ids, stream = torch.tensor([5, 0, 5, 299]), Stream(generator(3, "views"))
    expected = torch.cat([cropper.train_view(ids, stream) for _ in range(2)]).flatten(1)
    [rows] = fresh_views(cropper, tmp_path).pairs([(ids, Stream(generator(3, "views")))], CPU)
    assert torch.equal(rows, expected)
    assert not torch.equal(rows[:4], rows[4:])
    assert not torch.equal(rows[0], rows[2])  # one draw per image, also for repeated images


def test_an_image_does_not_depend_on_the_number_of_others(cropper: Cropper, tmp_path: Path) -> None:
    """With an EfficientNet, whose convolutions round differently for other numbers of images."""
    net = randomised(weights.build(LITE, 8)).eval().requires_grad_(False)
    fresh, ids = FreshViews(cropper, cut(net, 1), "float32", tmp_path), torch.arange(2, 23)
    few, many = (fresh.train(ids[:n], Counted.of_step([ids[:n]], 0, "views", 0, 0)[0]) for n in (3, len(ids)))
    assert torch.equal(few, many[:3])
    assert torch.equal(fresh.test(ids[4:7]), fresh.test(ids)[4:7])


def test_views_of_several_groups_are_computed_once(cropper: Cropper, tmp_path: Path) -> None:
    fresh, passed = fresh_views(cropper, tmp_path), []
    fresh.trunk = lambda images: passed.append(len(images)) or images.flatten(1)  # type: ignore[assignment]
    ids = torch.arange(100)

    def groups() -> list[tuple[Tensor, Draws]]:
        """Two rows with the same sampled images, and neighbours of which 12 of 20 are the same."""
        return [
            group
            for first in (0, 8)
            for around in [ids[first : first + 20]]
            for group in (
                (ids, Stream(generator(3, "views"))),
                (around, *Counted.of_step([around], 0, "counted_views", 0, 0)),
            )
        ]

    found = list(fresh.pairs(groups(), CPU))
    assert sum(passed) == 256  # 2 * (100 + 28)
    for rows, group in zip(found, groups(), strict=True):
        assert torch.equal(rows, next(fresh.pairs([group], CPU)))


SIZE = 300 * 192  # values of all test views


@pytest.mark.parametrize("precision", ["float32", "bf16"])
@pytest.mark.parametrize("place", ["memory", "file", "none"])
def test_test_views_are_the_same_in_every_cache(
    cropper: Cropper, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str, precision: str
) -> None:
    size = SIZE * (4 if precision == "float32" else 2)
    monkeypatch.setattr(views, "IN_MEMORY", size - (place != "memory"))
    monkeypatch.setattr(views, "ON_DISK", size - (place == "none"))
    fresh, ids = fresh_views(cropper, tmp_path, precision), torch.tensor([299, 3, 3, 150])
    expected = cropper.test_view(ids).flatten(1)
    for _ in range(2):
        rows = fresh.test(ids)
        assert rows.dtype == torch.float32
        assert torch.equal(rows, expected if precision == "float32" else expected.half().float())
    assert (fresh.kept is None) == (place == "none")
    assert not list(tmp_path.iterdir())  # a file without a name, so it is deleted whenever the process ends


def test_cached_test_views_are_computed_once(cropper: Cropper, tmp_path: Path) -> None:
    fresh, passed = fresh_views(cropper, tmp_path), []
    fresh.trunk = lambda images: passed.append(len(images)) or images.flatten(1)  # type: ignore[assignment]
    for _ in range(3):
        fresh.test(torch.arange(280))
    assert passed == [MOST_ON_CPU] * (1 + 18)  # the first image determines the size of the rows


@pytest.mark.slow
def test_fresh_and_cached_features_train_equally(cropper: Cropper, tmp_path: Path) -> None:
    """The loop on fresh views of a store is deterministic, for any cache."""
    results: list[dict[str, Tensor]] = []
    for name in ("a", "b"):
        p = parameters(epochs=3, batch_size=16)
        labels = torch.where(torch.arange(280) % 3 == 0, torch.arange(280) % 2, -1)
        net = Network(nn.Identity(), 192, CLASSES, 16, 7, 0)
        inputs = StepInputs(fresh_views(cropper, tmp_path), labels, p["precision"], p["seed"])
        loop.train(Row(Full(p), net, tmp_path / name, "fresh", ABOUT), inputs)
        results.append(net.state_dict())
    assert all(torch.equal(results[0][name], results[1][name]) for name in results[0])
