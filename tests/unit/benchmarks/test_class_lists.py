"""The versioned class lists."""

from __future__ import annotations

import numpy as np
import pytest

from ctxgcd.benchmarks import class_lists
from ctxgcd.errors import UserError

SIZES = {
    "cifar10": (10, 5, 10),
    "cifar100": (100, 80, 100),
    "imagenet_100": (1000, 50, 100),
    "imagenet_1k": (1000, 500, 1000),
    "cub": (200, 100, 200),
    "cub50_unequal": (200, 24, 50),
    "scars": (196, 98, 196),
    "aircraft": (100, 50, 100),
    "herbarium_19": (683, 341, 683),
    "fashion": (10, 5, 10),
}


@pytest.mark.parametrize("name", SIZES)
def test_sizes(name: str) -> None:
    loaded = class_lists.load(name)
    assert (loaded.classes, len(loaded.old), loaded.num_classes) == SIZES[name]
    assert (loaded.name, bool(loaded.source)) == (name, True)


def test_every_list_on_disk_is_tested() -> None:
    assert {path.stem for path in class_lists.FOLDER.glob("*.json")} == set(SIZES)


def test_herbarium_formula() -> None:
    loaded = class_lists.load("herbarium_19")
    drawn = np.random.RandomState(0).permutation(683)[:341].tolist()
    assert loaded.old == tuple(drawn)
    assert loaded.new == tuple(sorted(set(range(683)) - set(drawn)))


def test_imagenet_100_formula_and_names() -> None:
    loaded = class_lists.load("imagenet_100")
    chosen = sorted(np.random.RandomState(0).permutation(1000)[:100].tolist())
    assert loaded.old + loaded.new == tuple(chosen)
    assert (loaded.names[0], loaded.names[50], loaded.names[-1]) == ("n01443537", "n03026506", "n13052670")
    assert list(loaded.names) == sorted(loaded.names)


def test_benchmark_lists_keep_their_order() -> None:
    cub, aircraft, scars = (class_lists.load(name) for name in ("cub", "aircraft", "scars"))
    assert cub.old[:3] == (150, 70, 34)
    assert (cub.new[:3], cub.new[34:37], cub.new[68:71]) == ((29, 110, 3), (152, 195, 132), (20, 159, 173))
    assert (aircraft.new[:3], aircraft.new[13:15], aircraft.new[30:32]) == ((6, 7, 8), (78, 82), (80, 81))
    assert (scars.new[:3], scars.new[7:9], scars.new[22:24]) == ((23, 42, 83), (3, 8), (4, 5))


def test_subset_keeps_order_and_names() -> None:
    cub = class_lists.load("cub").subset(range(50))
    assert cub.num_classes == 50
    assert cub.old[:3] == (34, 11, 26)
    imagenet = class_lists.load("imagenet_100")
    small = imagenet.subset([imagenet.new[1], imagenet.old[2]])
    assert small.names == (imagenet.names[2], imagenet.names[51])
    with pytest.raises(UserError, match="no raw class 200"):
        class_lists.load("cub").subset([0, 200])
    with pytest.raises(UserError, match="1 old and 0 new"):
        class_lists.load("cub").subset([150])


def test_unknown_name_suggests_the_nearest() -> None:
    with pytest.raises(UserError, match=r"did you mean 'cifar100'.*valid: aircraft, cifar10,"):
        class_lists.load("cifar-100")
