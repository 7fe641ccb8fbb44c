"""Damaged, odd and malicious data that was once accepted silently or ended in a traceback."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.io import savemat

from ctxgcd.benchmarks import class_lists
from ctxgcd.benchmarks.check import check, check_section
from ctxgcd.benchmarks.places import use_places
from ctxgcd.benchmarks.readers.registry import READERS
from ctxgcd.config import parse
from ctxgcd.errors import UserError
from ctxgcd.pipeline.data_fingerprint import ABSENT, data_fingerprint
from ctxgcd.pipeline.paths import FINGERPRINTS, split_file
from tests.helpers.layouts import Painter, copied

CUB = "CUB_200_2011"


def edited(file: str, change: Callable[[str], str]) -> Callable[[Path], None]:
    def edit(folder: Path) -> None:
        path = folder / file
        path.write_text(change(path.read_text(encoding="utf-8")), encoding="utf-8", newline="")

    return edit


def annotations(**fields: Any) -> Callable[[Path], None]:
    """Replace the training annotations of Cars by one of these fields."""

    def write(folder: Path) -> None:
        table = np.zeros((1, 1), [("class", object), ("fname", object)])
        table[0, 0] = (fields.get("class_", 1), fields.get("fname", "00001.jpg"))
        savemat(folder / "devkit/cars_train_annos.mat", {"annotations": table[:, : fields.get("rows", 1)]})

    return write


def as_folder(file: str) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        (folder / file).unlink()
        (folder / file).mkdir()

    return change


def as_file(name: str) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        shutil.rmtree(folder / name)
        (folder / name).write_text("no folder")

    return change


def first_image(folder: Path) -> None:
    image = next((folder / "small-train" / "100").iterdir())
    image.unlink()
    image.mkdir()


def latin_1(folder: Path) -> None:
    (folder / "data/variants.txt").write_bytes(b"Caf\xe9\n")


def carriage_return(folder: Path) -> None:
    (folder / "small-train" / "100" / "a\rb.jpg").write_bytes(b"")


def no_utf8(folder: Path) -> None:
    (folder / "small-train" / "100" / os.fsdecode(b"a\xff.jpg")).write_bytes(b"")


@pytest.mark.parametrize(
    ("name", "fault", "words"),
    [
        ("cub", edited(f"{CUB}/images.txt", lambda t: t + "1 200.Bird_200/x.jpg\n"), "two lines for image id 1"),
        ("cub", edited(f"{CUB}/image_class_labels.txt", lambda t: t + "2 200\n"), "two lines for image id 2"),
        (
            "cub",
            edited(f"{CUB}/train_test_split.txt", lambda t: "1 2" + t[3:]),
            "the number 2 for image id 1, but expected 0 to 1",
        ),
        (
            "cub",
            edited(f"{CUB}/image_class_labels.txt", lambda t: "1 201" + t[3:]),
            "the number 201 for image id 1, but expected 1 to 200",
        ),
        ("cub", edited(f"{CUB}/image_class_labels.txt", lambda t: "1 9" + "9" * 20 + t[3:]), "expected 1 to 200"),
        (
            "cub",
            edited(f"{CUB}/image_class_labels.txt", lambda t: "1 7" + t[3:]),
            "class 7 for image 1, but images.txt",
        ),
        ("cub", as_folder(f"{CUB}/images.txt"), "images.txt is missing"),
        (
            "cub",
            edited(f"{CUB}/images.txt", lambda t: t.replace("/Bird_00001.jpg", "/" + "x" * 300)),
            "listed images are missing",
        ),
        ("aircraft", latin_1, "is not UTF-8 text"),
        ("aircraft", edited("data/images_variant_test.txt", lambda t: t + t.split("\n")[0] + "\n"), "is listed twice"),
        ("scars", annotations(rows=0), "contains no list of annotations"),
        ("scars", annotations(class_="abc"), "not one class and one name"),
        ("scars", annotations(class_=[1, 2]), "contains no list of annotations"),
        ("scars", annotations(class_=1.5), "classes outside 1..196"),
        ("scars", annotations(class_=float("nan")), "classes outside 1..196"),
        ("herbarium_19", as_file("small-train"), "small-train is missing"),
        ("herbarium_19", first_image, "train images found"),
        ("herbarium_19", carriage_return, "cannot be stored in a CSV: 'small-train/100/a\\rb.jpg'; rename"),
        ("herbarium_19", no_utf8, "not UTF-8 cannot be stored in a CSV: 'small-train/100/a\\xff.jpg'; rename"),
    ],
)
def test_official_data_is_refused_in_one_sentence(
    official: Path, tmp_path: Path, name: str, fault: Callable[[Path], None], words: str
) -> None:
    folder = copied(official / name, tmp_path / name)
    fault(folder)
    listed = class_lists.load(name)
    result = check(name, READERS[name], folder, listed, {"train": 2 * listed.num_classes, "test": listed.num_classes})
    assert not result.ready
    assert words in result.problem
    assert "\n" not in result.problem


@pytest.mark.parametrize("file", ["images", "image_class_labels", "train_test_split"])
def test_byte_order_marks_and_dos_line_ends_are_accepted(official: Path, tmp_path: Path, file: str) -> None:
    folder = copied(official / "cub", tmp_path / "cub")
    before = READERS["cub"].manifest(folder)
    path = folder / CUB / f"{file}.txt"
    path.write_bytes(b"\xef\xbb\xbf" + path.read_bytes().replace(b"\n", b"\r\n"))
    assert READERS["cub"].manifest(folder).equals(before)


def test_cars_without_their_test_images_have_no_test_part(official: Path, tmp_path: Path) -> None:
    folder = copied(official / "scars", tmp_path / "scars")
    shutil.rmtree(folder / "cars_test")
    result = check("scars", READERS["scars"], folder, class_lists.load("scars"), {"train": 392, "test": 196})
    assert result.ready
    assert any("cars_test/ is missing" in remark for remark in result.remarks)


def test_names_and_digits_on_disk_are_part_of_the_fingerprint(
    official: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("CTXGCD_DATA", str(tmp_path))
    folder = copied(official / "scars", tmp_path / "scars")
    section = {"reader": "scars", "folder": "scars"}
    before = data_fingerprint("scars", section)
    for path in list((folder / "cars_train").iterdir()):
        path.rename(path.with_stem(f"0{path.stem}"))
    renamed = data_fingerprint("scars", section)
    (folder / "devkit/cars_meta.mat").unlink()
    assert len({before, renamed, data_fingerprint("scars", section)}) == 3


# -- own images ------------------------------------------------------------------------------------------


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    painter = Painter(0)
    for class_id, name in enumerate(("ant", "bee", "cat")):
        for number in range(4):
            painter.save(tmp_path / "own" / name / f"{number}.png", class_id, 20, 30)
    (tmp_path / "own" / "labelled.txt").write_text("cat\n", encoding="utf-8")
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    return {
        **{"benchmark": "mine", "reader": "folder", "path": str(tmp_path / "own"), "listing": "", "images": "any"},
        **{"labelled": "labelled.txt", "classes": 3, "seed": 0, "labelled_share": 0.5},
    }


def test_linked_folders_are_part_of_the_data_and_the_fingerprint(own: dict[str, Any], tmp_path: Path) -> None:
    folder = tmp_path / "own"
    (folder / "ant").rename(tmp_path / "elsewhere")
    (folder / "ant").symlink_to(tmp_path / "elsewhere")
    (folder / "bee" / "loop").symlink_to(folder)
    (folder / "notes").symlink_to(tmp_path / "nowhere")
    before = data_fingerprint("mine", own)
    assert before != ABSENT
    shutil.copy(folder / "bee" / "0.png", tmp_path / "elsewhere" / "9.png")
    assert data_fingerprint("mine", own) != before


def test_changed_bytes_of_the_same_size_and_time_are_detected(own: dict[str, Any], tmp_path: Path) -> None:
    image = tmp_path / "own" / "bee" / "0.png"
    before, times = data_fingerprint("mine", own), image.stat()
    content = bytearray(image.read_bytes())
    content[-1] ^= 1
    image.write_bytes(content)
    os.utime(image, ns=(times.st_atime_ns, times.st_mtime_ns))
    assert data_fingerprint("mine", own) != before


@pytest.mark.parametrize("content", ["[]", "null", '"x"', "{}", '{"fingerprint": null}', "torn"])
def test_damaged_records_are_ignored(own: dict[str, Any], tmp_path: Path, content: str) -> None:
    before = data_fingerprint("mine", own)
    for file in FINGERPRINTS.iterdir():
        file.write_text(content)
    assert data_fingerprint("mine", own) == before
    record = Path(split_file("mine", "source.json"))
    record.parent.mkdir(parents=True)
    record.write_text(content)
    shutil.rmtree(tmp_path / "own")
    assert data_fingerprint("mine", own) == ABSENT


def test_a_cache_that_cannot_be_written_is_skipped(own: dict[str, Any]) -> None:
    FINGERPRINTS.parent.mkdir()
    FINGERPRINTS.write_text("no folder")
    assert data_fingerprint("mine", own) == data_fingerprint("mine", own) != ABSENT


@pytest.mark.parametrize(
    ("listing", "words"),
    [
        ("path,class\nant/./0.png,a\nant//0.png,b\n", "image ant/0.png is listed twice"),
        ('path,class\n"ant/0.png,a\n' + "x" * 140_000, "is not valid CSV"),
        ("path,class,class\nant/0.png,a,b\n", "the column 'class' twice"),
        ("path,class\n", "list.csv lists no image"),
        ("\n\npath,class\n\nant/0.png,\n", "line 5"),
        (
            f"path,class\n{'y' * 300}/0.png,cat\nant/0.png,ant\nbee/0.png,bee\nbee/1.png,bee\ncat/1.png,cat\n",
            "listed images are missing",
        ),
    ],
)
def test_odd_listings(own: dict[str, Any], tmp_path: Path, listing: str, words: str) -> None:
    (tmp_path / "own" / "list.csv").write_text(listing, encoding="utf-8")
    entry = own | {"listing": "list.csv"}
    assert words in check_section(entry).problem
    assert data_fingerprint("mine", entry) == ABSENT


def test_all_names_that_are_not_utf8_are_listed(own: dict[str, Any], tmp_path: Path) -> None:
    """Skipping them would change the dataset. The images of a class with such a name are not listed."""
    folder = tmp_path / "own"
    for number in (2, 1):
        shutil.copy(folder / "bee" / "0.png", os.fsencode(folder / "bee") + b"/\xff%d.png" % number)
    shutil.copytree(folder / "ant", os.fsdecode(os.fsencode(folder) + b"/k\xe4fer"))
    message = check_section(own).problem
    assert "CSV: 'k\\xe4fer', 'bee/\\xff1.png', 'bee/\\xff2.png'; rename these files or classes" in message
    assert data_fingerprint("mine", own) == ABSENT


def test_files_other_than_images_can_have_any_name(own: dict[str, Any], tmp_path: Path) -> None:
    Path(os.fsdecode(os.fsencode(tmp_path / "own") + b"/bee/\xff.txt")).touch()
    result = check_section(own)
    assert result.ready
    assert result.remarks == ["1 file skipped, not an image of a class, first bee/\\xff.txt"]


def test_a_class_only_in_the_test_part_is_refused(own: dict[str, Any], tmp_path: Path) -> None:
    parts = tmp_path / "parts"
    shutil.copytree(tmp_path / "own", parts / "train")
    (parts / "test").mkdir()
    (parts / "train" / "bee").rename(parts / "test" / "bee")
    (parts / "train" / "labelled.txt").rename(parts / "labelled.txt")
    assert "class 'bee' has images only in the test part" in check_section(own | {"path": str(parts)}).problem


def test_the_data_check_reports_what_the_split_would_refuse(own: dict[str, Any]) -> None:
    assert "gives no labelled image" in check_section(own | {"labelled_share": 0.1}).problem


def test_a_labelled_class_without_a_labelled_image_is_reported(own: dict[str, Any], tmp_path: Path) -> None:
    (tmp_path / "own" / "labelled.txt").write_text("cat\nbee\n", encoding="utf-8")
    for number in (1, 2, 3):
        (tmp_path / "own" / "bee" / f"{number}.png").unlink()
    split_off = [check_section(own | {"seed": seed}).remarks for seed in range(6)]
    assert ["1 labelled classes have no image in D^l (too few images), first 'bee'"] in split_off
    assert [] in split_off


def test_images_among_results_are_refused(own: dict[str, Any], tmp_path: Path) -> None:
    for path in (tmp_path / "here", tmp_path, tmp_path / "here" / "results" / "x"):
        path.mkdir(parents=True, exist_ok=True)
        assert "overlaps with" in check_section(own | {"path": str(path)}).problem


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"images": "some"}, ["benchmarks.mine.images"]),
        ({"labelled": ""}, ["benchmarks.mine.labelled"]),
        ({"path": ""}, ["benchmarks.mine.path"]),
        ({"path": "a\0b"}, ["benchmarks.mine.path"]),
        ({"classes": True}, ["benchmarks.mine.classes"]),
    ],
)
def test_errors_of_values_contain_their_location(
    committed: dict[str, Any], own: dict[str, Any], change: dict[str, Any], words: list[str]
) -> None:
    entry = {k: v for k, v in own.items() if k not in {"benchmark", "seed", "labelled_share"}} | change
    entry |= {"protocol": "fashion", "overrides": {}, "methods": {}, "settings": {}}
    committed["benchmarks"]["mine"] = entry
    with pytest.raises(UserError) as raised:
        parse(committed)
    message = str(raised.value)
    assert all(word in message for word in words)
    assert "Images" not in message
    assert "literal" not in message


@pytest.mark.parametrize(
    ("places", "words"),
    [
        (None, "root is None, but expected a folder"),
        ([1], r"root is \[1\]"),
        ({"cub": {"a": 1}}, "cub is"),
        ({"cb": "/x"}, "unknown folder 'cb'; did you mean 'cub'"),
        ("", "expected a folder"),
    ],
)
def test_locations_of_another_type_are_refused(places: Any, words: str) -> None:
    with pytest.raises(UserError, match=words):
        use_places(places, {"cub", "scars"})


def test_places(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CTXGCD_DATA", "/mine")
    monkeypatch.setenv("CTXGCD_DATA_CUB", "")
    monkeypatch.delenv("CTXGCD_DATA_CUB")
    use_places({"root": "/other", "cub": "/birds"}, {"cub"})
    assert (os.environ["CTXGCD_DATA"], os.environ["CTXGCD_DATA_CUB"]) == ("/mine", "/birds")
