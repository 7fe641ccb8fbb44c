"""Tables of labels: as spreadsheets save them, in other Unicode forms, and those that cannot be used."""

from __future__ import annotations

import os
import shutil
import unicodedata
from pathlib import Path
from typing import Any

import pytest

from ctxgcd import api
from ctxgcd.benchmarks.readers.own_images import images_below
from ctxgcd.discover.split import read_labels
from ctxgcd.errors import UserError
from tests.helpers.discovery import Place, table
from tests.helpers.layouts import Painter

FIRST = "deep/er/000.jpg"


@pytest.mark.parametrize(
    ("text", "classes", "problem"),
    [
        ("", 4, r"other.csv is empty"),
        ("path,class\n", 4, r"other.csv labels no image; label some images of at least one known class"),
        (f"path,class\n{FIRST},\n", 4, r"labels no image"),
        (f"path,klass\n{FIRST},iris\n", 4, r"has the columns path, klass, but expected class"),
        (f"{FIRST},iris\n", 4, r"other.csv line 1 is 'deep/er/000.jpg,iris', which has no known .* must be path,class"),
        (f"sep=;\n{FIRST};iris\n", 4, r"other.csv line 2 is .*; the first line must be path,class"),
        (f"path,class,name\n{FIRST},0,iris\n", 4, r"has several columns .*: class and name; keep only one"),
        (
            f"File,Label,Class_name\n{FIRST},0,iris\n",
            4,
            r"has several columns .*: class_name and label; .* rename it to class",
        ),
        (
            "path,class\ndeep/er/00.jpg,iris\n",
            4,
            r"labels 1 image that is not in .*: line 2 'deep/er/00.jpg' \(did you mean 'deep/er/0\d0.jpg'\?\); write",
        ),
        (
            f"path,class\n{FIRST},iris\n./{FIRST},rose\n",
            4,
            r"has different rows for the image deep/er/000.jpg, on lines 2 and 3",
        ),
        (f"path,class\n{FIRST},iris\n", "auto", r"needs labelled images of at least 2 classes"),
        (
            f"path,class\n{FIRST},iris\ndeep/er/003.PNG,b\ndeep/er/006.jpg,c\n",
            2,
            r"--classes is 2, but the labels name 3 classes \('b', 'c', 'iris'\); give",
        ),
        (f"path,class\n{FIRST},iris\n", 1, r"--classes is 1, but the labels name 1 class \('iris'\); .* at least 2"),
        (f"path,class\n{FIRST},iris\n", 1000, r"999 new classes cannot be found among 52 unlabelled images"),
        (
            f"path,class\n{FIRST},iris\ndeep/er/003.PNG,ro\0se\n",
            4,
            r"other.csv line 3 contains a NUL byte; delete it",
        ),
        (f'path,class\n{FIRST},a\n"no\t\nwhere.png",b\n', 4, r"is not in .*: line 4 'no\\t\\nwhere.png' \(did"),
        ("path,class\nbroken.jpg,iris\n", 4, r"no labelled image can be read"),
        (
            f"path,class\n{FIRST},New-7\n",
            4,
            r"has the class New-7, which is the number of a new class; to correct th",
        ),
    ],
)
def test_labels_that_cannot_be_used(place: Place, tmp_path: Path, text: str, classes: Any, problem: str) -> None:
    with pytest.raises(UserError, match=problem):
        place.discover(str(tmp_path / "out"), labels=place.labels(text), classes=classes)


def test_all_labelled(place: Place, tmp_path: Path) -> None:
    painter = Painter(1)
    for name in "ab":
        painter.save(tmp_path / "photos" / f"{name}.png", 0, 20, 30)
    labels = place.labels("path,class\na.png,x\nb.png,y\n")
    with pytest.raises(UserError, match="all 2 images have a label, so there is nothing to discover"):
        place.discover(str(tmp_path / "out"), folder=tmp_path / "photos", labels=labels)


@pytest.mark.parametrize(
    ("written", "message"),
    [
        (["a.jpge"], "labels 1 image that is not in {photos}: line 3 'a.jpge' (did you mean 'a.jpg'?); write paths"),
        (
            ["a.jpge", "zzzzzzz", "SUB/foto 101.JPG"],
            "labels 3 images that are not in {photos}: line 3 'a.jpge' (did you mean 'a.jpg'?), line 4 'zzzzzzz', "
            "line 5 'SUB/foto 101.JPG' (did you mean 'sub/Foto 101.jpg'?); write paths relative to that folder",
        ),
        (
            ["zzzzzzz", "yyyyyyy", "xxxxxxx", "vvvvvvv", "wwwwwww"],
            "labels 5 images that are not in {photos}: line 3 'zzzzzzz', line 4 'yyyyyyy', line 5 'xxxxxxx' and 2 more",
        ),
        # The file of that name, not the one with the most similar path.
        (["C:\\Users\\me\\photos\\Foto 101.jpg"], "line 3 'C:/Users/me/photos/Foto 101.jpg' (did you mean 'sub/Foto"),
        (
            ["/home/me/photos/sub/Foto 101.jpg"],
            "line 3 '/home/me/photos/sub/Foto 101.jpg' (did you mean 'sub/Foto 101.jpg'?)",
        ),
        (["D:/b/d.jpg"], "line 3 'D:/b/d.jpg' (did you mean 'b/d.jpg'?); write paths relative to that folder"),
        (["D:/Foto 103.jpg"], "line 3 'D:/Foto 103.jpg'; write paths relative to that folder"),
    ],
)
def test_labels_of_missing_images(place: Place, tmp_path: Path, written: list[str], message: str) -> None:
    there = ("a.jpg", "b.jpg", "Foto 102.jpg", "sub/Foto 101.jpg", "a/d.jpg", "b/d.jpg", "c/d.jpg")
    photos, paths = photos_of(tmp_path / "photos", *there)
    labels = place.labels("path,class\nb.jpg,wren\n" + "".join(f"{path},ant\n" for path in written))
    with pytest.raises(UserError) as raised:
        read_labels(labels, photos, paths)
    assert message.format(photos=photos) in str(raised.value)


def test_columns_that_are_swapped(place: Place, tmp_path: Path) -> None:
    """With swapped columns, two images of one class would be two classes of one image."""
    photos, paths = photos_of(tmp_path / "photos", "a.png", "sub/b.png", f"{NFC}.png", "d.png")
    lines = f"Albatros à pieds noirs,./sub/b.png\nAlbatros à pieds noirs,a.png\nwren,{NFD}.png\n"
    with pytest.raises(UserError) as raised:
        read_labels(place.labels(f"File,Label\n,a.png\n{lines}"), photos, paths)
    assert str(raised.value) == (
        f"the columns file and label of {place.root / 'other.csv'} look swapped: line 3 has the file 'Albatros à pieds "
        "noirs' and the label './sub/b.png'; swap their names in the first line"
    )
    labels, _ = read_labels(place.labels(f"label,file\n{lines}"), photos, paths)
    assert len(labels) == 3
    # A class may have an image's name.
    assert read_labels(place.labels("path,class\na.png,d.png\n"), photos, paths)[0] == {"a.png": "d.png"}


def test_full_paths_are_labels_too(place: Place) -> None:
    photos = place.root / "photos"
    labels, _ = read_labels(place.labels(f"file\tlabel\n{photos / FIRST}\tiris\n"), photos, list(place.truth))
    assert labels == {FIRST: "iris"}


@pytest.mark.parametrize(
    "text",
    [
        f"sep=;\r\npath;class\r\n{FIRST};iris\r\n",
        f"path,class,,\n{FIRST},iris,,\n,,,\n",
        f"path,class\n{FIRST},iris,,\n",
        f"Filename,Label\n{FIRST},iris\n",
        f"IMAGE,Class_Name,name of the photographer\n{FIRST},iris,Ann\n",
    ],
)
def test_labels_as_spreadsheets_save_them(place: Place, text: str) -> None:
    assert read_labels(place.labels(text), place.root / "photos", list(place.truth)) == ({FIRST: "iris"}, [])


def test_other_tables_of_discover_are_refused_as_labels(place: Place, out: Path, tmp_path: Path) -> None:
    """predictions.csv, also with fewer columns, corrections.csv, and the ids of classes in predictions.csv."""
    rows, mine = table(out / "predictions.csv"), tmp_path / "mine.csv"
    rows[["path", "class", "confidence", "score"]].to_csv(mine, index=False)
    corrections = place.labels(f"action,image,class,target\nconfirm,{rows['path'][0]},iris,\n", "corrections.csv")
    for file, kind in ((out / "predictions.csv", "pred"), (mine, "pred"), (corrections, "corr")):
        with pytest.raises(UserError, match=rf"{file.name} is a {kind}[a-z]*.csv, not a file of labels; take your ch"):
            place.discover(str(tmp_path / "out"), labels=file)
    assert not (tmp_path / "out").exists()
    rows[["path", "class"]].to_csv(mine, index=False)
    with pytest.raises(UserError, match=r"mine.csv has the ids of the column class of .*/predictions.csv, such as \d"):
        place.discover(str(out), labels=mine)


NFC, NFD = (unicodedata.normalize(form, "Käfer") for form in ("NFC", "NFD"))


def photos_of(folder: Path, *paths: str | bytes) -> tuple[Path, list[str]]:
    """Write small images to these paths; return the folder and the paths that are read."""
    for number, path in enumerate(paths):
        file = Path(os.fsdecode(os.fsencode(folder) + b"/" + os.fsencode(path)))
        Painter(number).save(file.with_suffix(".png"), number % 2, 20, 30)
        file.with_suffix(".png").rename(file)
    return folder, images_below(folder)


@pytest.mark.parametrize(("on_disk", "written"), [(NFC, NFD), (NFD, NFC)])
def test_labels_in_another_unicode_form(place: Place, tmp_path: Path, on_disk: str, written: str) -> None:
    photos, paths = photos_of(tmp_path / on_disk, f"{on_disk}/{on_disk}.png", "a.png", "b.png")
    full = str(photos).replace(on_disk, written)
    labels = place.labels(f"path,class\n./{written}/{written}.png,{NFC}\n{full}/a.png,{NFD}\nb.png,wren\n")
    of, notes = read_labels(labels, photos, paths)
    assert of == {f"{on_disk}/{on_disk}.png": NFC, "a.png": NFC, "b.png": "wren"}
    assert notes == [
        f"other.csv: classes written in more than one Unicode form, which count as one class each: '{NFC}'"
    ]


def test_a_class_of_one_form_keeps_its_name(place: Place, tmp_path: Path) -> None:
    photos, paths = photos_of(tmp_path / "photos", "a.png", "b.png")
    assert read_labels(place.labels(f"path,class\na.png,{NFD}\n"), photos, paths) == ({"a.png": NFD}, [])


def test_two_files_whose_names_differ_in_their_unicode_form(place: Place, tmp_path: Path) -> None:
    photos, paths = photos_of(tmp_path / "photos", f"{NFC}-{NFC}.png", f"{NFD}-{NFD}.png")
    labels = place.labels(f"path,class\n{NFC}-{NFC}.png,ant\n{NFD}-{NFD}.png,bee\n")
    of, notes = read_labels(labels, photos, paths)
    assert of == {f"{NFC}-{NFC}.png": "ant", f"{NFD}-{NFD}.png": "bee"}
    assert notes == [f"different images whose names differ only in their Unicode form: '{NFC}-{NFC}.png'"]
    with pytest.raises(
        UserError, match=r"matches '.*\\u0308.*' and 'K\\xe4fer.*photos, which differ only in their Unicode"
    ):
        read_labels(place.labels(f"path,class\n{NFC}-{NFD}.png,ant\n"), photos, paths)


def test_one_image_labelled_in_two_forms(place: Place, tmp_path: Path) -> None:
    photos, paths = photos_of(tmp_path / "photos", f"{NFC}.png")
    text = f"path,class\n{NFC}.png,ant\n{NFD}.png,"
    assert read_labels(place.labels(f"{text}ant\n"), photos, paths)[0] == {f"{NFC}.png": "ant"}
    with pytest.raises(UserError, match=r"has different rows for the image .*, on lines 2 and 3"):
        read_labels(place.labels(f"{text}bee\n"), photos, paths)


def test_labels_of_files_that_are_left_out(place: Place, tmp_path: Path) -> None:
    """Unsupported formats and hidden files exist, so their labels are not mistyped names."""
    photos, paths = photos_of(tmp_path / "photos", "a.png", "b.png", "c.CR2", f"{NFD}.gif", ".d.png", ".e/f.png")
    left_out = ["c.CR2", f"{NFC}.gif", ".d.png", ".e/f.png"]
    lines = "".join(f"{path},lark\n" for path in left_out)
    of, notes = read_labels(place.labels(f"path,class\na.png,wren\n{lines}"), photos, paths)
    assert of == {"a.png": "wren"}
    assert notes == [
        "other.csv: ignored the labels of files that are hidden or have an unsupported format: "
        f"{', '.join(map(repr, left_out))}; save them as JPEG to include them",
        "no labelled image of lark can be read, so it is not a known class",
    ]
    with pytest.raises(UserError, match="labels only files that are hidden or have"):
        read_labels(place.labels(f"path,class\n{lines}"), photos, paths)
    shutil.copy(photos / "c.CR2", tmp_path / "g.CR2")
    for path in ("g.CR2", "../g.CR2", str(tmp_path / "g.CR2")):
        with pytest.raises(UserError, match="labels 1 image that is not in"):
            read_labels(place.labels(f"path,class\na.png,wren\n{path},lark\n"), photos, paths)


def test_names_that_cannot_be_stored_in_a_table(place: Place, out: Path, tmp_path: Path) -> None:
    """Names in Latin-1, with a carriage return: all are listed, and left out as images that cannot be read."""
    odd = [b"\xe4/3.png", b"k\xe4fer.png", b"a\rb.png"]
    photos, paths = photos_of(tmp_path / "photos", "0.png", "1.png", "2.png", *odd, b"notes\xff.txt")
    assert paths == ["0.png", "1.png", "2.png"]
    labels = place.labels("path,class\n0.png,x\n")
    found = place.discover(str(tmp_path / "out"), folder=photos, labels=labels, classes=2)
    assert (found["images"], found["unreadable"]) == (3, 3)
    assert r"3 images cannot be read: 'a\rb.png', 'k\xe4fer.png', '\xe4/3.png'; see unreadable.csv" in found["notes"]
    unreadable = table(tmp_path / "out/unreadable.csv").set_index("path")["reason"].to_dict()
    assert unreadable == {
        "\\xe4/3.png": "its name is not UTF-8; rename it",
        "k\\xe4fer.png": "its name is not UTF-8; rename it",
        "a\\rb.png": "its name has a carriage return; rename it",
    }
    predicted, about = api.predict(out / "model", photos)
    assert (predicted["path"].tolist(), about["unreadable"]) == (paths, unreadable)
    for path in paths:
        (photos / path).unlink()
    with pytest.raises(
        UserError, match=r"contains no images; .*rename 'a\\rb.png', 'k\\xe4fer.png', .* to include them"
    ):
        images_below(photos)
