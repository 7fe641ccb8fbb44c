"""`ctxgcd sort`: images in one folder for each class, with names for every disk, and how to undo it."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from ctxgcd import api
from ctxgcd.cli.command import main
from ctxgcd.discover.corrections import Line, text_of
from ctxgcd.discover.sort import LONGEST, _places, _safe
from ctxgcd.errors import UserError
from ctxgcd.utils.files import file_sha256
from tests.helpers.discovery import KNOWN, LABELLED, Place, table

pytestmark = pytest.mark.slow


@pytest.fixture
def mine(place: Place, out: Path) -> Iterator[Path]:
    """A copy of the results, with a class whose name is not one of a folder."""
    copy = place.copied(out, "mine")
    api.label(copy, "new-1=Iris: a/b.")
    yield copy
    shutil.rmtree(copy)


def files(folder: Path) -> set[str]:
    return {path.relative_to(folder).as_posix() for path in folder.rglob("*") if not path.is_dir()}


def test_every_image_is_copied_into_the_folder_of_its_class(place: Place, mine: Path, tmp_path: Path) -> None:
    """Labelled images too; those of the two folders in the folder of the images are together."""
    done = api.sort(mine, tmp_path / "sorted")
    assert (done["images"], done["classes"], done["absent"]) == (51, 4, [])
    folders = {path.name for path in (tmp_path / "sorted").iterdir()} - {"sorted.csv"}
    assert folders == {"iris", "rose, _wild_ _b_&_red", "Iris_ a_b", "new-2"}
    rows = table(mine / "predictions.csv")
    of = dict(zip(rows["path"], rows["name"], strict=True))
    listed = table(tmp_path / "sorted/sorted.csv")
    labelled = {path for path, kind in place.truth.items() if kind < 2 and int(Path(path).stem) < 4 * LABELLED}
    assert set(listed["image"]) == of.keys() | labelled
    assert set(listed["file"]) == files(tmp_path / "sorted") - {"sorted.csv"}
    for row in listed.itertuples():
        name = of.get(row.image) or KNOWN[place.truth[row.image]]
        assert row.file.partition("/")[0] == _safe(name)
        hashes = {file_sha256(tmp_path / "sorted" / row.file), file_sha256(place.root / "photos" / row.image)}
        assert hashes == {row.sha256}


def test_a_repeated_call_writes_only_what_is_missing(mine: Path, tmp_path: Path) -> None:
    api.sort(mine, tmp_path / "sorted")
    before = files(tmp_path / "sorted")
    lost, edited = sorted(before - {"sorted.csv"})[:2]
    (tmp_path / "sorted" / lost).unlink()
    (tmp_path / "sorted" / edited).write_bytes(b"mine")
    times = {name: (tmp_path / "sorted" / name).stat().st_mtime_ns for name in before - {lost, "sorted.csv"}}
    api.sort(mine, tmp_path / "sorted")
    assert files(tmp_path / "sorted") == before
    assert {name: (tmp_path / "sorted" / name).stat().st_mtime_ns for name in times} == times


def test_nothing_is_overwritten(mine: Path, tmp_path: Path) -> None:
    """A file of another origin, with the name of an image in another case, keeps its place."""
    (tmp_path / "sorted/iris").mkdir(parents=True)
    (tmp_path / "sorted/iris/000.JPG").write_bytes(b"mine")
    api.sort(mine, tmp_path / "sorted")
    assert (tmp_path / "sorted/iris/000.JPG").read_bytes() == b"mine"
    assert (tmp_path / "sorted/iris/000 (2).jpg").exists()
    api.sort(mine, tmp_path / "sorted", undo=True)
    assert files(tmp_path) == {"sorted/iris/000.JPG"}


def test_names_of_files_in_the_folder_are_not_used_for_classes(mine: Path, tmp_path: Path) -> None:
    """Neither that of the list."""
    (tmp_path / "sorted").mkdir()
    (tmp_path / "sorted/IRIS").write_bytes(b"mine")
    api.label(mine, "new-2=sorted.csv")
    api.sort(mine, tmp_path / "sorted")
    assert (tmp_path / "sorted/IRIS").read_bytes() == b"mine"
    assert {"iris (2)", "sorted (2).csv"} <= set(os.listdir(tmp_path / "sorted"))
    assert api.sort(mine, tmp_path / "sorted")["written"] == 0
    api.sort(mine, tmp_path / "sorted", undo=True)
    assert files(tmp_path) == {"sorted/IRIS"}


@pytest.mark.parametrize("undo", [False, True])
def test_a_list_whose_last_line_was_not_written_completely_is_used(mine: Path, tmp_path: Path, undo: bool) -> None:
    """As after a full disk: the image of this line was not written."""
    api.sort(mine, tmp_path / "sorted")
    file = tmp_path / "sorted/sorted.csv"
    last = table(file)["file"].iloc[-1]
    (tmp_path / "sorted" / last).unlink()
    file.write_bytes(file.read_bytes()[:-10])
    done = api.sort(mine, tmp_path / "sorted", undo=undo)
    assert (done["images"], done["written"]) == ((50, 0) if undo else (51, 1))
    assert undo or (tmp_path / "sorted" / last).exists()
    assert undo or set(table(file)["file"]) == files(tmp_path / "sorted") - {"sorted.csv"}


def test_links(place: Place, mine: Path, tmp_path: Path) -> None:
    api.sort(mine, tmp_path / "sorted", link=True)
    links = list((tmp_path / "sorted").glob("*/*"))
    assert len(links) == 51
    assert all(path.is_symlink() and path.is_file() and not path.readlink().is_absolute() for path in links)
    assert {path.resolve() for path in links} <= {path.resolve() for path in (place.root / "photos").rglob("*")}
    api.sort(mine, tmp_path / "sorted", undo=True)
    assert not (tmp_path / "sorted").exists()
    assert (place.root / "photos/deep/er/000.jpg").exists()


def test_undo_deletes_only_unchanged_files_of_the_list(mine: Path, tmp_path: Path) -> None:
    folder = tmp_path / "sorted"
    api.sort(mine, folder)
    first, second = sorted(files(folder) - {"sorted.csv"})[:2]
    size = (folder / first).stat().st_size
    (folder / first).write_bytes(b"x" * size)  # of the same size
    (folder / second).unlink()
    (folder / "iris/own.txt").write_text("mine")
    done = api.sort(mine, folder, undo=True)
    assert (done["images"], done["kept"]) == (49, [first])
    assert files(folder) == {first, "iris/own.txt", "sorted.csv"}
    (folder / first).unlink()
    api.sort(mine, folder, undo=True)
    assert files(folder) == {"iris/own.txt"}


def test_other_classes_need_an_undo(mine: Path, tmp_path: Path) -> None:
    api.sort(mine, tmp_path / "sorted")
    api.label(mine, "new-2=fern")
    with pytest.raises(UserError, match=r"was sorted before with other classes, such as new-2/.*; run `ctxgcd sort "):
        api.sort(mine, tmp_path / "sorted")
    api.sort(mine, tmp_path / "sorted", undo=True)
    api.sort(mine, tmp_path / "sorted")
    assert (tmp_path / "sorted/fern").is_dir()


def test_images_that_were_thrown_out_or_are_gone_are_left_out(mine: Path, place: Place, tmp_path: Path) -> None:
    (tmp_path / "c.csv").write_text(text_of([Line("out", image="wide.png")]))
    api.label(mine, tmp_path / "c.csv")
    (place.root / "photos/link.jpg").rename(place.root / "link.away")
    done = api.sort(mine, tmp_path / "sorted")
    (place.root / "link.away").rename(place.root / "photos/link.jpg")
    assert (done["images"], done["absent"]) == (49, ["link.jpg"])
    assert not list((tmp_path / "sorted").glob("*/wide*"))


@pytest.mark.parametrize(
    ("folder", "problem"),
    [
        ("photos/sorted", "is in the folder of the images, .*, or contains it; give a folder elsewhere"),
        ("photos", "is in the folder of the images"),
        (".", "is in the folder of the images"),
        ("photos/mine/sorted", "is in the folder of "),
        ("labels.csv", "labels.csv is a file, so no folder can be created below it"),
    ],
)
def test_folders_that_are_refused(place: Place, mine: Path, folder: str, problem: str) -> None:
    before = files(place.root)
    with pytest.raises(UserError, match=problem):
        api.sort(mine, place.root / folder)
    assert files(place.root) == before


def test_lists_that_are_refused(mine: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"contains no sorted.csv with files; give a folder of `ctxgcd sort`"):
        api.sort(mine, tmp_path, undo=True)
    for text in ("a,b\n1,2\n", "file,image,size,sha256\n../x,x,1,0\n", "file,image,size,sha256\n/x,x,1,0\n"):
        (tmp_path / "sorted.csv").write_text(text)
        with pytest.raises(UserError, match=r"sorted.csv is not a list of `ctxgcd sort`; choose another folder"):
            api.sort(mine, tmp_path, undo=True)


@pytest.mark.parametrize(
    ("name", "safe"),
    [
        ("a/b:c\\d.jpg", "a_b_c_d.jpg"),
        ("sp. ", "sp"),
        ("...", "_"),
        (".hidden", "_.hidden"),
        ("CON", "_CON"),
        ("nul.jpg", "_nul.jpg"),
        ("Lpt1", "_Lpt1"),
        ("console", "console"),
        ("line\nbreak\x7f", "line_break_"),
        ("ünïcode 日本", "ünïcode 日本"),
        ("日" * 100 + ".jpg", "日" * ((LONGEST - 4) // 3) + ".jpg"),
    ],
)
def test_names_for_every_disk(name: str, safe: str) -> None:
    assert _safe(name) == safe


def test_names_that_some_disks_take_for_one_differ(tmp_path: Path) -> None:
    of = {"a/1.jpg": "Robin", "b/1.JPG": "Robin", "c/1.jpg": "robin", "e\u0301.jpg": "x:y", "d/\u00e9.jpg": "x/y"}
    of |= {"f/e\u0301.jpg": "x/y"}
    assert _places(of, tmp_path, ()) == {
        "a/1.jpg": "Robin/1.jpg",
        "b/1.JPG": "Robin/1 (2).JPG",
        "c/1.jpg": "robin (2)/1.jpg",
        "d/\u00e9.jpg": "x_y/\u00e9.jpg",
        "e\u0301.jpg": "x_y (2)/e\u0301.jpg",
        "f/e\u0301.jpg": "x_y/e\u0301 (2).jpg",
    }


def test_the_command_prints_what_is_done(
    mine: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "sorted"

    def said(*words: str) -> str:
        monkeypatch.setattr(sys, "argv", ["ctxgcd", "sort", str(mine), str(folder), *words])
        main()
        return capsys.readouterr().out

    assert said() == f"51 images copied into 4 folders of {folder}\n"
    assert said() == f"0 images copied into 4 folders of {folder}; 51 images were there already\n"
    next((folder / "iris").iterdir()).unlink()
    assert said() == f"1 image copied into 4 folders of {folder}; 50 images were there already\n"
    assert said("--undo") == f"51 files deleted from {folder}\n"
    assert not os.listdir(tmp_path)
