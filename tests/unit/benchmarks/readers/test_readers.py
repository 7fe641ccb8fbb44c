"""Every reader on tiny folders in the official layouts."""

from __future__ import annotations

import os
import pickle
import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from ctxgcd.benchmarks import class_lists
from ctxgcd.benchmarks.check import check
from ctxgcd.benchmarks.fingerprint import fingerprint
from ctxgcd.benchmarks.places import embedded, folder_of
from ctxgcd.benchmarks.readers import scars
from ctxgcd.benchmarks.readers.decoding import MissingData, open_rgb
from ctxgcd.benchmarks.readers.reader import MANIFEST_COLUMNS
from ctxgcd.benchmarks.readers.registry import READERS
from ctxgcd.benchmarks.readers.unpickle import load_pickle
from ctxgcd.benchmarks.split import make_split
from ctxgcd.errors import UserError
from ctxgcd.pipeline.data_check import table
from tests.helpers.layouts import OFFICIAL, copied
from tests.helpers.places import SHARED


def list_name(reader: str) -> str:
    return {"imagenet": "imagenet_1k", "sheet": "fashion"}.get(reader, reader)


def counts(reader: str) -> dict[str, int]:
    """Return the counts of images of a layout in `official`."""
    classes = class_lists.load(list_name(reader)).num_classes
    return {"train": 2 * classes, "test": classes}


@pytest.mark.parametrize("name", OFFICIAL)
def test_every_layout_is_read(official: Path, name: str) -> None:
    reader, folder, class_list = READERS[name], official / name, class_lists.load(list_name(name))
    manifest = reader.manifest(folder)
    assert tuple(manifest.columns) == MANIFEST_COLUMNS
    assert manifest["id"].tolist() == list(range(len(manifest)))
    assert manifest["part"].value_counts().to_dict() == counts(name)
    assert manifest["part"].is_monotonic_decreasing  # training part first
    assert set(manifest["class_id"]) == set(range(class_list.classes))
    assert manifest.groupby("class_id")["class_name"].nunique().max() == 1
    some = manifest["path"].sample(20, random_state=0).tolist()
    images = list(reader.images(folder, some))
    assert [image.mode for image in images] == ["RGB"] * 20
    again = [next(reader.images(folder, [path])) for path in some]
    assert all(np.array_equal(np.asarray(a), np.asarray(b)) for a, b in zip(images, again, strict=True))
    result = check(name, reader, folder, class_list, counts(name))
    assert (result.state, result.problem, result.ready) == ("found", "", True)
    make_split(manifest, class_list, seed=0, labelled_share=0.5, drawn_order=reader.drawn_order)


def test_drawn_order_as_published() -> None:
    drawn = {name for name, reader in READERS.items() if reader.drawn_order}
    assert drawn == {"cifar10", "cifar100", "scars", "imagenet"}


def test_cifar_order_and_pixels(official: Path) -> None:
    manifest = READERS["cifar10"].manifest(official / "cifar10")
    assert manifest["path"].tolist()[:8] == [f"data_batch_1#{row}" for row in range(4)] + [
        f"data_batch_2#{row}" for row in range(4)
    ]
    batch = load_pickle(official / "cifar10" / "cifar-10-batches-py" / "data_batch_2")
    image = np.asarray(next(READERS["cifar10"].images(official / "cifar10", ["data_batch_2#3"])))
    assert np.array_equal(image[5, 7], batch["data"][3].reshape(3, 32, 32)[:, 5, 7])


def test_cifar_python_2_bytes(tmp_path: Path) -> None:
    """The official files were pickled by Python 2: arrays as byte strings under numpy's old module name."""
    python_2 = (
        b"\x80\x02cnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\nK\x00\x85U\x01b\x87R"
        b"(K\x01K\x02\x85cnumpy\ndtype\nU\x02u1K\x00K\x01\x87R(K\x03U\x01|NNNJ\xff\xff\xff\xff"
        b"J\xff\xff\xff\xffK\x00tb\x89U\x02\xff\x07tb."
    )
    (tmp_path / "batch").write_bytes(b"\x80\x02}U\x04data" + python_2[2:-1] + b"s.")
    assert load_pickle(tmp_path / "batch")["data"].tolist() == [255, 7]


class Tampered:
    """Unpickles by running a command."""

    def __init__(self, command: str) -> None:
        self.command = command

    def __reduce__(self) -> Any:
        return os.system, (self.command,)


@pytest.mark.parametrize("protocol", [0, 2, 4])
def test_tampered_pickle_is_refused_and_runs_nothing(official: Path, tmp_path: Path, protocol: int) -> None:
    folder = copied(official / "cifar10", tmp_path / "cifar10")
    victim = folder / "cifar-10-batches-py" / "data_batch_3"
    victim.write_bytes(pickle.dumps({"data": Tampered(f"touch {tmp_path}/ran"), "labels": []}, protocol=protocol))
    with pytest.raises(UserError, match=r"data_batch_3 is not the official file \(it uses posix.system\)"):
        READERS["cifar10"].manifest(folder)
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize("content", [b"", b"not a pickle", pickle.dumps([1])])
def test_a_damaged_pickle_is_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "train").write_bytes(content)
    with pytest.raises(UserError, match="train"):
        load_pickle(tmp_path / "train")


@pytest.mark.parametrize(
    ("name", "file"),
    [
        ("cifar10", "cifar-10-batches-py/data_batch_4"),
        ("cifar100", "cifar-100-python/meta"),
        ("cub", "CUB_200_2011/train_test_split.txt"),
        ("scars", "devkit/cars_train_annos.mat"),
        ("aircraft", "data/images_variant_trainval.txt"),
        ("aircraft", "data/variants.txt"),
    ],
)
def test_missing_file_is_named(official: Path, tmp_path: Path, name: str, file: str) -> None:
    folder = copied(official / name, tmp_path / name)
    (folder / file).unlink()
    with pytest.raises(MissingData, match=f"{file} is missing"):
        READERS[name].manifest(folder)
    result = check(name, READERS[name], folder, class_lists.load(name), counts(name))
    assert (result.state, result.ready) == ("missing", False)


@pytest.mark.parametrize("name", ["herbarium_19", "imagenet", "cub"])
def test_missing_folder_is_named(tmp_path: Path, name: str) -> None:
    with pytest.raises(MissingData, match="is missing"):
        READERS[name].manifest(tmp_path)


@pytest.mark.parametrize(
    ("name", "test_part"),
    [
        ("cifar100", "cifar-100-python/test"),
        ("scars", "cars_test_annos_withlabels.mat"),
        ("aircraft", "data/images_variant_test.txt"),
    ],
)
def test_a_missing_test_part_is_a_remark(official: Path, tmp_path: Path, name: str, test_part: str) -> None:
    folder = copied(official / name, tmp_path / name)
    (folder / test_part).unlink()
    assert set(READERS[name].manifest(folder)["part"]) == {"train"}
    result = check(name, READERS[name], folder, class_lists.load(name), counts(name))
    assert result.ready
    assert result.remarks[0].startswith(f"the optional test part {READERS[name].test_files[0]} is missing")
    assert result.remarks[0] in " ".join(table([result]).split())


def test_junk_is_ignored(official: Path, tmp_path: Path) -> None:
    folder = copied(official / "herbarium_19", tmp_path / "herbarium_19")
    before, hash_before = (
        READERS["herbarium_19"].manifest(folder),
        fingerprint(READERS["herbarium_19"], folder),
    )
    (folder / "small-train" / "100" / "._0.jpg").write_bytes(b"junk")
    (folder / "small-train" / "100" / "Thumbs.db").write_bytes(b"junk")
    (folder / "small-train" / ".DS_Store").write_bytes(b"junk")
    (folder / "small-train" / "._100").mkdir()
    assert READERS["herbarium_19"].manifest(folder).equals(before)
    assert fingerprint(READERS["herbarium_19"], folder) == hash_before
    (folder / "small-train" / "100" / "new.JPG").write_bytes(b"junk")
    assert fingerprint(READERS["herbarium_19"], folder) != hash_before


def test_herbarium_without_small_and_in_string_order(official: Path, tmp_path: Path) -> None:
    folder = copied(official / "herbarium_19", tmp_path / "herbarium_19")
    (folder / "small-train").rename(folder / "train")
    (folder / "small-validation").rename(folder / "validation")
    manifest = READERS["herbarium_19"].manifest(folder)
    assert manifest["class_name"].drop_duplicates().tolist()[:4] == ["0", "1", "10", "100"]
    assert manifest["path"][0] == "train/0/0.jpg"
    assert manifest["part"].value_counts().to_dict() == counts("herbarium_19")


@pytest.mark.slow
def test_incomplete_imagenet_never_changes_the_classes(official: Path, tmp_path: Path) -> None:
    folder = copied(official / "imagenet", tmp_path / "imagenet")
    shutil.rmtree(next((folder / "train").iterdir()))
    with pytest.raises(UserError, match="contains 999 class folders, but expected 1000"):
        READERS["imagenet"].manifest(folder)
    result = check("imagenet_100", READERS["imagenet"], folder, class_lists.load("imagenet_100"), {})
    assert result.state == "wrong"


@pytest.mark.slow
def test_imagenet_validation_images_must_be_sorted_into_folders(official: Path, tmp_path: Path) -> None:
    folder = copied(official / "imagenet", tmp_path / "imagenet")
    shutil.rmtree(folder / "val")
    (folder / "val").mkdir()
    (folder / "val" / "ILSVRC2012_val_00000001.JPEG").touch()
    with pytest.raises(UserError, match="val contains no class folders"):
        READERS["imagenet"].manifest(folder)


def test_imagenet_100_counts_its_classes_only(official: Path) -> None:
    listed = class_lists.load("imagenet_100")
    result = check("imagenet_100", READERS["imagenet"], official / "imagenet", listed, {"train": 200, "test": 100})
    assert result.ready
    assert result.found == {"train": 200, "test": 100, "classes": 100}


@pytest.mark.parametrize("digits", [6, 4])
def test_cars_digits(official: Path, tmp_path: Path, digits: int) -> None:
    folder = copied(official / "scars", tmp_path / "scars")
    for part in ("cars_train", "cars_test"):
        for path in list((folder / part).iterdir()):
            path.rename(path.with_stem(f"{int(path.stem):0{digits}d}"))
    if digits == 6:
        manifest = READERS["scars"].manifest(folder)
        assert manifest["path"][0] == "cars_train/000001.jpg"
        assert len(list(READERS["scars"].images(folder, manifest["path"].tolist()[:2]))) == 2
    else:
        with pytest.raises(UserError, match=r"no images named as 00001.jpg or 000001.jpg"):
            READERS["scars"].manifest(folder)


def test_cars_without_labels_or_with_other_labels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    devkit = SHARED / "cars_devkit" / "devkit"
    if not devkit.is_dir():
        pytest.skip("needs the official Stanford Cars annotations in ../shared/data/cars_devkit")
    shutil.copytree(devkit, tmp_path / "devkit")
    (tmp_path / "cars_train").mkdir()
    (tmp_path / "cars_train" / "00001.jpg").touch()
    shutil.copy(devkit / "cars_test_annos.mat", tmp_path / "cars_test_annos_withlabels.mat")
    with pytest.raises(UserError, match=r"cars_test_annos_withlabels\.mat has no labels"):
        READERS["scars"].manifest(tmp_path)
    # A mirror whose classes differ from those of the known digest.
    (tmp_path / "cars_test_annos_withlabels.mat").unlink()
    assert len(READERS["scars"].manifest(tmp_path)) == 8144
    monkeypatch.setattr(scars, "TRAIN_CLASSES_SHA256", "0" * 64)
    with pytest.raises(UserError, match="other classes than the official file"):
        READERS["scars"].manifest(tmp_path)


def test_a_missing_listed_image(official: Path, tmp_path: Path) -> None:
    folder = copied(official / "cub", tmp_path / "cub")
    gone = READERS["cub"].manifest(folder)["path"][3]
    (folder / gone).unlink()
    result = check("cub", READERS["cub"], folder, class_lists.load("cub"), counts("cub"))
    assert (result.state, result.problem) == (
        "missing",
        f"1 listed images are missing, first {folder / gone}",
    )
    with pytest.raises(MissingData, match=gone):
        list(READERS["cub"].images(folder, [gone]))


def test_undecodable_image_is_named(tmp_path: Path) -> None:
    Image.new("RGB", (64, 64)).save(tmp_path / "cut.jpg")
    (tmp_path / "cut.jpg").write_bytes((tmp_path / "cut.jpg").read_bytes()[:400])
    (tmp_path / "text.jpg").write_text("no image")
    for name in ("cut.jpg", "text.jpg"):
        with pytest.raises(UserError, match=f"{name} cannot be decoded"):
            open_rgb(tmp_path / name)


@pytest.mark.parametrize("mode", ["L", "CMYK", "P", "RGB", "RGBA", "1"])
def test_any_mode_becomes_rgb(tmp_path: Path, mode: str) -> None:
    image = Image.new("RGB", (8, 6), (200, 30, 30)).convert(mode)
    image.save(tmp_path / "image.tiff")
    for as_seen in (False, True):
        found = open_rgb(tmp_path / "image.tiff", as_seen)
        assert (found.mode, found.size, found.tobytes()) == ("RGB", (8, 6), image.convert("RGB").tobytes())


def test_exif_rotation_is_not_applied(tmp_path: Path) -> None:
    exif = Image.Exif()
    exif[0x0112] = 6  # orientation: turn by 90 degrees
    Image.new("RGB", (8, 6)).save(tmp_path / "image.jpg", exif=exif)
    assert open_rgb(tmp_path / "image.jpg").size == (8, 6)


def test_embedded_fashion() -> None:
    folder, reader, class_list = folder_of("embedded/fashion"), READERS["sheet"], class_lists.load("fashion")
    assert folder == embedded("fashion")
    result = check("fashion", reader, folder, class_list, {"train": 2000, "test": 500})
    assert (result.state, result.problem) == ("found", "")
    manifest = reader.manifest(folder)
    counts = manifest.groupby(["part", "class_id"]).size().to_dict()
    assert counts == {(part, label): n for part, n in (("train", 200), ("test", 50)) for label in range(10)}
    images = list(reader.images(folder, ["train.png#1999", "test.png#0"]))
    assert [(image.size, image.mode) for image in images] == [((28, 28), "RGB")] * 2
    assert (Image.open(folder / "train.png").size, Image.open(folder / "train.png").mode) == (
        (1400, 1120),
        "L",
    )
    assert "2017 Zalando SE" in (folder / "LICENSE-Fashion-MNIST").read_text()
    assert sum(path.stat().st_size for path in folder.iterdir()) < 1_500_000
    split = make_split(manifest, class_list, seed=0, labelled_share=0.5, drawn_order=reader.drawn_order)
    assert split["role"].value_counts().to_dict() == {"unlabelled": 1500, "labelled": 500, "test": 500}


def test_images_of_embedded_fashion_match_their_labels() -> None:
    """Trousers have dark columns at the sides and bags do not, so a shifted sheet would fail."""
    folder, reader = embedded("fashion"), READERS["sheet"]
    manifest = reader.manifest(folder)

    def side_light(name: str) -> float:
        paths = manifest[(manifest["class_name"] == name) & (manifest["part"] == "test")]["path"].tolist()
        return float(np.mean([np.asarray(image)[:, :4].mean() for image in reader.images(folder, paths)]))

    assert side_light("Trouser") < 5 < 30 < side_light("Bag")


def test_another_cifar_is_refused_with_its_counts() -> None:
    folder = SHARED / "cifar10_12k"
    if not folder.is_dir():
        pytest.skip("needs ../shared/data/cifar10_12k")
    expected = {"train": 50000, "test": 10000}
    result = check("cifar10", READERS["cifar10"], folder, class_lists.load("cifar10"), expected)
    assert (result.state, result.found) == ("wrong", {"train": 10000, "test": 2000, "classes": 10})
    assert "10,000 train images found, 50,000 expected" in result.problem
    assert "2,000 test images found, 10,000 expected" in result.problem


def test_table_over_all_benchmarks(official: Path, tmp_path: Path) -> None:
    results = [
        check("cub", READERS["cub"], official / "cub", class_lists.load("cub"), counts("cub")),
        check(
            "scars",
            READERS["scars"],
            tmp_path / "none",
            class_lists.load("scars"),
            {"train": 8144, "test": 8041},
        ),
    ]
    text = table(results)
    notes = text.splitlines()[len(results) + 2 :]  # below the table, whose last column is a folder of any length
    assert all(len(line) <= 100 or len(line.split()) < 4 for line in notes)
    assert re.search(r"^cub +found +400 / 400 +200 / 200 +200 / 200 ", text, re.MULTILINE)
    assert "scars      missing  0 / 8,144" in text
    assert "how to get it: manual" in text


def test_data_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("CTXGCD_DATA", raising=False)
    assert folder_of("cub") == Path("data/raw/cub")
    monkeypatch.setenv("CTXGCD_DATA", "$HERE/sets")
    monkeypatch.setenv("HERE", str(tmp_path))
    assert folder_of("cub") == tmp_path / "sets" / "cub"
    monkeypatch.delenv("HERE")
    result = check("cub", READERS["cub"], folder_of("cub"), class_lists.load("cub"), {"train": 5994, "test": 5794})
    assert (result.state, result.ready) == ("missing", False)
    assert "contains the variable $HERE, which is not set" in result.problem


@pytest.mark.slow
def test_the_fingerprint_depends_on_the_contents_and_not_on_the_location(official: Path, tmp_path: Path) -> None:
    for name in ("cifar10", "cub", "imagenet"):
        folder = copied(official / name, tmp_path / name)
        assert fingerprint(READERS[name], folder) == fingerprint(READERS[name], official / name)
    file = tmp_path / "cub" / "CUB_200_2011" / "train_test_split.txt"
    before = file.read_text()
    file.write_bytes(before.replace("\n", "\r\n").encode())  # says the same
    assert fingerprint(READERS["cub"], tmp_path / "cub") == fingerprint(READERS["cub"], official / "cub")
    file.write_text(
        before.replace("1 1\n", "1 0\n", 1) if "1 1\n" in before[:4] else before.replace("1 0\n", "1 1\n", 1)
    )
    assert fingerprint(READERS["cub"], tmp_path / "cub") != fingerprint(READERS["cub"], official / "cub")


@pytest.mark.parametrize("fault", ["size", "position", "empty", "binary"])
def test_a_damaged_sheet_is_refused(tmp_path: Path, fault: str) -> None:
    folder = tmp_path / "fashion"
    shutil.copytree(embedded("fashion"), folder)
    labels = folder / "labels.csv"
    words = "cannot be read"
    if fault == "size":
        Image.new("L", (56, 56)).save(folder / "train.png")
        words = "56 x 56 pixels"
    elif fault == "position":
        labels.write_text(labels.read_text(encoding="utf-8").replace("train,0,", "train,1,", 1), encoding="utf-8")
        words = "repeated or missing"
    else:
        labels.write_bytes(b"" if fault == "empty" else b"\xff\xfe\x00")
    with pytest.raises(UserError, match=words):
        READERS["sheet"].manifest(folder)
