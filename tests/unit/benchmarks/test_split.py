"""The split rule against the check values of the published procedure."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from ctxgcd.benchmarks import class_lists
from ctxgcd.benchmarks.class_lists import ClassList
from ctxgcd.benchmarks.readers.reader import as_manifest
from ctxgcd.benchmarks.readers.registry import READERS
from ctxgcd.benchmarks.split import make_split, trial_split
from ctxgcd.benchmarks.split_file import SPLIT_COLUMNS, read_split, write_split
from ctxgcd.errors import UserError
from tests.helpers.places import SHARED
from workflow.scripts.leave_out import left_out

TOY = ClassList("toy", "made up", 6, (4, 1), (0, 5, 3))


def synthetic(class_list: ClassList, old_images: int, new_images: int, test_images: int = 0) -> pd.DataFrame:
    """Return a manifest with these many images of old and new classes, in mixed order."""
    names = dict(zip(class_list.old + class_list.new, class_list.names, strict=False))
    train = np.concatenate([np.resize(class_list.old, old_images), np.resize(class_list.new, new_images)])
    train = np.random.RandomState(1).permutation(train)
    ids = np.concatenate([train, np.resize(class_list.old + class_list.new, test_images)]).tolist()
    parts = ["train"] * len(train) + ["test"] * test_images
    paths = [f"{place}.jpg" for place in range(len(ids))]
    return as_manifest(paths, ids, [names.get(raw, f"class {raw}") for raw in ids], parts)


def split_of(manifest: pd.DataFrame, class_list: ClassList, drawn_order: bool = False, seed: int = 0) -> pd.DataFrame:
    return make_split(manifest, class_list, seed=seed, labelled_share=0.5, drawn_order=drawn_order)


def positions_of_labelled(split: pd.DataFrame) -> np.ndarray:
    """Return the positions of D^l among the training images of old classes in canonical order."""
    train_old = split[(split["part"] == "train") & (split["old"] == 1)]["id"].sort_values().to_numpy()
    return np.searchsorted(train_old, split[split["role"] == "labelled"]["id"])


@pytest.mark.parametrize(
    ("name", "old_images", "new_images", "first"),
    [
        ("cifar10", 25000, 25000, [14149, 8946, 22378, 12162, 4879]),
        ("cifar100", 40000, 10000, [12836, 10913, 4214, 8198, 31403]),
        ("scars", 4001, 4143, [2230, 668, 3617, 2363, 142]),
        ("cub", 2996, 2998, [1300, 263, 1948, 2116, 812]),
        ("cub", 2997, 2997, [1300, 263, 1948, 2116, 812]),
        ("aircraft", 3332, 3335, [2063, 1185, 3064]),
        ("herbarium_19", 17738, 16487, [1985, 4019]),
        ("herbarium_19", 17739, 16486, [1985, 4019]),
    ],
)
def test_first_positions(name: str, old_images: int, new_images: int, first: list[int]) -> None:
    class_list = class_lists.load(name)
    split = split_of(synthetic(class_list, old_images, new_images), class_list, drawn_order=True)
    assert positions_of_labelled(split)[: len(first)].tolist() == first


@pytest.mark.parametrize(
    ("name", "n", "digest"), [("cifar10", 25000, "bac770cc2aa220ff"), ("cifar100", 40000, "34f2888c58266bdd")]
)
def test_sorted_positions_hash(name: str, n: int, digest: str) -> None:
    class_list = class_lists.load(name)
    split = split_of(synthetic(class_list, n, 50000 - n), class_list)
    positions = positions_of_labelled(split).astype("<i8")
    assert np.all(np.diff(positions) > 0)
    assert hashlib.sha256(positions.tobytes()).hexdigest().startswith(digest)


@pytest.mark.parametrize(
    ("name", "old_images", "train", "test", "labelled", "unlabelled", "w_old"),
    [
        ("cifar10", 25000, 50000, 10000, 12500, 37500, 0.333),
        ("cifar100", 40000, 50000, 10000, 20000, 30000, 0.667),
        ("imagenet_100", 63720, 127115, 5000, 31860, 95255, 0.33),
        ("imagenet_1k", 642000, 1281167, 50000, 321000, 960167, 0.33),
        ("cub", 2997, 5994, 5794, 1498, 4496, 0.333),
        ("scars", 4001, 8144, 8041, 2000, 6144, 0.326),
        ("aircraft", 3332, 6667, 3333, 1666, 5001, 0.333),
        ("herbarium_19", 17739, 34225, 2679, 8869, 25356, 0.350),
    ],
)
def test_official_counts(
    name: str, old_images: int, train: int, test: int, labelled: int, unlabelled: int, w_old: float
) -> None:
    class_list = class_lists.load(name)
    split = split_of(synthetic(class_list, old_images, train - old_images, test), class_list)
    assert split["role"].value_counts().to_dict() == {
        "labelled": labelled,
        "unlabelled": unlabelled,
        "test": test,
    }
    assert split["class_id"].max() == class_list.num_classes - 1
    assert split[split["role"] == "unlabelled"]["old"].mean() == pytest.approx(w_old, abs=0.005)
    assert split[split["role"] == "labelled"]["old"].all()


def test_stanford_cars_labelled_images(tmp_path: Path) -> None:
    devkit = SHARED / "cars_devkit" / "devkit"
    if not devkit.is_dir():
        pytest.skip("needs the official Stanford Cars annotations in ../shared/data/cars_devkit")
    (tmp_path / "devkit").symlink_to(devkit)
    (tmp_path / "cars_train").mkdir()
    (tmp_path / "cars_train" / "000001.jpg").touch()  # a mirror with 6 digits
    assert READERS["scars"].manifest(tmp_path)["path"][0] == "cars_train/000001.jpg"
    (tmp_path / "cars_train" / "00001.jpg").touch()
    split = split_of(READERS["scars"].manifest(tmp_path), class_lists.load("scars"), drawn_order=True)
    labelled = split[split["role"] == "labelled"]
    assert (len(labelled), (split["role"] == "unlabelled").sum()) == (2000, 6144)
    names = sorted(Path(path).name for path in labelled["path"])
    assert [name[:5] for name in names[:6]] == ["00004", "00005", "00008", "00009", "00012", "00014"]
    digest = hashlib.sha256("\n".join(names).encode()).hexdigest()
    assert digest == "1b86ec58b861595dd5de74a89b69dd2aa1358a4fdd3aa071258eee40e1171e7e"


def test_cub_from_the_official_lists() -> None:
    folder = SHARED / "cub_full_metadata"
    if not folder.is_dir():
        pytest.skip("needs the official CUB text files in ../shared/data/cub_full_metadata")
    split = split_of(READERS["cub"].manifest(folder), class_lists.load("cub"))
    assert split["role"].value_counts().to_dict() == {"labelled": 1498, "unlabelled": 4496, "test": 5794}
    assert set(split[split["class_id"] == 0]["class_name"]) == {"151.Black_capped_Vireo"}
    assert split[split["role"] == "labelled"]["id"].is_monotonic_increasing


def test_cub50_is_the_same_from_the_full_lists_and_from_its_own_folder(tmp_path: Path) -> None:
    folders = [SHARED / "cub_full_metadata", SHARED / "cub50"]
    if not all(folder.is_dir() for folder in folders):
        pytest.skip("needs the CUB files in ../shared/data")
    class_list = class_lists.load("cub").subset(range(50))
    assert class_list.num_classes == 50
    hashes = set()
    for place, folder in enumerate(folders):
        split = split_of(READERS["cub"].manifest(folder), class_list)
        write_split(split, tmp_path / f"{place}.csv", tmp_path / f"{place}.sha256")
        hashes.add((tmp_path / f"{place}.sha256").read_text())
        assert (split["part"] == "train").sum() == 1500
    assert len(hashes) == 1


def test_rows_ids_and_class_ids() -> None:
    manifest = synthetic(ClassList("all", "made up", 6, (4, 1), (0, 5, 3, 2)), 20, 40, 12)
    split = split_of(manifest, TOY, drawn_order=True)
    assert tuple(split.columns) == SPLIT_COLUMNS
    assert split["role"].drop_duplicates().tolist() == ["labelled", "unlabelled", "test"]
    assert sorted(split["id"]) == list(range(len(split)))
    kept = manifest[manifest["class_id"] != 2].reset_index(drop=True)
    by_id = split.sort_values("id", ignore_index=True)
    assert by_id["path"].tolist() == kept["path"].tolist()
    assert by_id["class_id"].tolist() == [(4, 1, 0, 5, 3).index(raw) for raw in kept["class_id"]]
    assert (by_id["old"] == (by_id["class_id"] < 2)).all()
    for role in ("unlabelled", "test"):
        assert split[split["role"] == role]["id"].is_monotonic_increasing
    draw = np.random.RandomState(0).permutation(20)[:10]
    assert positions_of_labelled(split).tolist() == draw.tolist()


def test_the_order_of_the_draw_changes_only_positions() -> None:
    manifest = synthetic(TOY, 100, 100)
    drawn, canonical = split_of(manifest, TOY, drawn_order=True), split_of(manifest, TOY)
    assert drawn["id"].tolist() != canonical["id"].tolist()
    pd.testing.assert_frame_equal(
        drawn.sort_values("id", ignore_index=True), canonical.sort_values("id", ignore_index=True)
    )
    assert split_of(manifest, TOY, seed=1)["id"].tolist() != canonical["id"].tolist()


def test_another_numbering_of_the_raw_classes_changes_nothing() -> None:
    """Old and New depend on the true classes, not on their numbers in the files."""
    manifest = synthetic(TOY, 40, 60, 12)
    number = np.random.RandomState(3).permutation(TOY.classes)
    renamed = manifest.assign(class_id=number[manifest["class_id"]])
    old, new = (tuple(int(number[raw]) for raw in classes) for classes in (TOY.old, TOY.new))
    other = split_of(renamed, ClassList("toy", "made up", TOY.classes, old, new), drawn_order=True)
    pd.testing.assert_frame_equal(other, split_of(manifest, TOY, drawn_order=True))


def test_written_split_reads_back(tmp_path: Path) -> None:
    manifest = synthetic(TOY, 20, 20, 5)
    odd = ["NA", 'a, "b"\nc\r', "<b>", "null", "1"]
    manifest["class_name"] = [odd[raw % 5] for raw in manifest["class_id"]]
    split = split_of(manifest, TOY)
    write_split(split, tmp_path / "s" / "toy.csv", tmp_path / "s" / "toy.sha256")
    pd.testing.assert_frame_equal(read_split(tmp_path / "s" / "toy.csv"), split)
    digest = hashlib.sha256((tmp_path / "s" / "toy.csv").read_bytes()).hexdigest()
    assert (tmp_path / "s" / "toy.sha256").read_text() == digest + "\n"
    assert sorted(path.name for path in (tmp_path / "s").iterdir()) == ["toy.csv", "toy.sha256"]
    with pytest.raises(UserError, match=r"absent\.csv is missing"):
        read_split(tmp_path / "absent.csv")


def test_trial_split_stays_inside_the_labelled_data() -> None:
    class_list = ClassList("toy", "made up", 8, (6, 2, 5), (0, 1))
    split = make_split(synthetic(class_list, 60, 40, 10), class_list, seed=0, labelled_share=0.5, drawn_order=True)
    trial = trial_split(split, seed=0, labelled_share=0.5)
    labelled = split[split["role"] == "labelled"]
    by_id = trial.sort_values("id")
    assert by_id["id"].tolist() == list(range(30))
    assert by_id["path"].tolist() == labelled.sort_values("id")["path"].tolist()
    assert len(trial.merge(labelled, on=["path", "class_name", "class_id"])) == 30
    assert set(trial["part"]) == {"train"}
    assert (trial["old"] == (trial["class_id"] < 2)).all()
    n = int(trial["old"].sum())
    draw = np.sort(np.random.RandomState(0).permutation(n)[: n // 2])
    assert positions_of_labelled(trial).tolist() == draw.tolist()


def test_images_that_a_list_leaves_out_are_in_no_part() -> None:
    manifest = synthetic(TOY, 20, 20, 10)
    gone = tuple(manifest["path"].iloc[[3, 7, 44]])
    listed = replace(TOY, left_out=gone)
    split = split_of(manifest, listed)
    assert set(manifest["path"]) - set(split["path"]) == set(gone)
    assert split["id"].sort_values().tolist() == list(range(47))
    assert listed.sha256 != TOY.sha256
    assert listed.subset((4, 1, 0)).left_out == gone


def test_cub50_unequal_is_drawn_as_its_script_says() -> None:
    listed, whole = class_lists.load("cub50_unequal"), class_lists.load("cub", 50)
    assert (listed.old, listed.new, listed.names) == (whole.old, whole.new, whole.names)
    if not (folder := SHARED / "cub50").is_dir():
        pytest.skip("needs ../shared/data/cub50")
    manifest = READERS["cub"].manifest(folder)
    assert list(listed.left_out) == left_out(manifest)
    used = listed.used(manifest)
    assert used["part"].value_counts().to_dict() == {"train": 634, "test": 586}
    sizes = used.loc[used["part"] == "train", "class_id"].value_counts()
    assert (len(sizes), sizes.max(), sizes.min()) == (50, 30, 4)


def test_mistakes_are_named() -> None:
    manifest = synthetic(TOY, 20, 20)
    with pytest.raises(UserError, match="no training image, first raw class 4"):
        split_of(manifest[manifest["class_id"] != 4], TOY)
    with pytest.raises(UserError, match="0 old and 5 new"):
        ClassList("toy", "", 6, (), (0, 1, 2, 3, 4))
    with pytest.raises(UserError, match="repeats a class"):
        ClassList("toy", "", 6, (0, 1), (1, 2))
    with pytest.raises(UserError, match=r"labelled_share is 1\.5"):
        make_split(manifest, TOY, seed=0, labelled_share=1.5, drawn_order=False)
    with pytest.raises(UserError, match="no labelled image"):
        make_split(manifest, TOY, seed=0, labelled_share=0.01, drawn_order=False)
    with pytest.raises(UserError, match=r"the data has class 5.*0\.\.4"):
        split_of(manifest, ClassList("small", "", 5, (4, 1), (0, 3)))
    one_old = ClassList("toy", "", 6, (1,), (0,))
    with pytest.raises(UserError, match="1 old and 0 new"):
        trial_split(split_of(manifest, one_old), seed=0, labelled_share=0.5)


def test_a_class_under_another_name_is_refused() -> None:
    class_list = class_lists.load("imagenet_100")
    manifest = synthetic(class_list, 200, 200)
    manifest["class_name"] = "n00000000"
    with pytest.raises(UserError, match=r"raw class 1 of the data is 'n00000000'.*expects 'n01443537'"):
        split_of(manifest, class_list)
