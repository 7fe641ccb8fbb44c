"""A user's own images: folders or a CSV, labelled classes or images, and errors."""

from __future__ import annotations

import json
import os
import shutil
import unicodedata
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ctxgcd.benchmarks.check import check, check_section
from ctxgcd.benchmarks.fingerprint import fingerprint
from ctxgcd.benchmarks.readers.own_images import FOLDER
from ctxgcd.benchmarks.readers.registry import reader_of
from ctxgcd.benchmarks.split import make_split
from ctxgcd.config import parse
from ctxgcd.errors import UserError
from ctxgcd.pipeline.data_fingerprint import ABSENT, data_fingerprint
from ctxgcd.pipeline.resolve import resolve
from tests.helpers.layouts import Painter

CLASSES = ("ant", "bee", "cat", "dög & co")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Four class folders of five images."""
    painter = Painter(0)
    for class_id, name in enumerate(CLASSES):
        for number in range(5):
            painter.save(tmp_path / "own" / name / f"{number}.png", class_id, 20, 30)
    (tmp_path / "own" / "labelled.txt").write_text("cat\nant\n", encoding="utf-8")
    return tmp_path / "own"


def section(folder: Path, **changes: Any) -> dict[str, Any]:
    return {
        **{"benchmark": "mine", "reader": "folder", "path": str(folder), "listing": "", "labelled": "labelled.txt"},
        **{"classes": 4, "images": "any", "seed": 0, "labelled_share": 0.5},
        **changes,
    }


def own_split(entry: dict[str, Any]) -> Any:
    reader, place = reader_of(entry), Path(entry["path"])
    manifest = reader.manifest(place)
    class_list, labelled = reader.divide(place, manifest, "mine")  # type: ignore[attr-defined]
    return make_split(
        manifest, class_list, seed=0, labelled_share=0.5, drawn_order=reader.drawn_order, labelled_paths=labelled
    )


def problem(entry: dict[str, Any]) -> str:
    result = check_section(entry)
    assert not result.ready
    assert "\n" not in result.problem
    return result.problem


def test_folders_with_labelled_classes(folder: Path) -> None:
    split = own_split(section(folder))
    assert split["role"].value_counts().to_dict() == {"unlabelled": 15, "labelled": 5}
    assert split.drop_duplicates("class_id").set_index("class_id")["class_name"].sort_index().tolist() == [
        *("ant", "cat"),
        *("bee", "dög & co"),
    ]
    assert set(split[split["old"] == 1]["class_name"]) == {"ant", "cat"}
    assert set(split[split["role"] == "labelled"]["class_name"]) <= {"ant", "cat"}
    result = check_section(section(folder))
    assert (result.ready, dict(result.found)) == (True, {"train": 20, "test": 0, "classes": 4})
    assert not result.remarks


def test_listed_images_are_the_labelled_images(folder: Path) -> None:
    images = ["bee/3.png", "ant/0.png", "bee/1.png"]
    (folder / "labelled.txt").write_text("\n".join(images), encoding="utf-8")
    split = own_split(section(folder))
    assert split[split["role"] == "labelled"]["path"].tolist() == ["ant/0.png", "bee/1.png", "bee/3.png"]
    assert set(split[split["old"] == 1]["class_name"]) == {"ant", "bee"}
    assert (split["role"] == "unlabelled").sum() == 17


@pytest.mark.parametrize("separator", [",", ";", "\t"])
@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig"])
def test_a_listing_of_flat_images(folder: Path, tmp_path: Path, separator: str, encoding: str) -> None:
    flat = tmp_path / "flat"
    flat.mkdir()
    rows = [separator.join(("class", "path", "part"))]
    for class_id, name in enumerate(CLASSES):
        for number in range(5):
            shutil.copy(folder / name / f"{number}.png", flat / f"{class_id}-{number}.png")
            rows.append(separator.join((name, f"{class_id}-{number}.png", "test" if number == 4 else "train")))
    (flat / "list.csv").write_text("\r\n".join(rows) + "\r\n\r\n", encoding=encoding)
    (flat / "labelled.csv").write_text(f"path\n{'1-0.png'}\n", encoding=encoding)
    split = own_split(section(flat, listing="list.csv", labelled="labelled.csv"))
    assert split["role"].value_counts().to_dict() == {"unlabelled": 15, "test": 4, "labelled": 1}
    assert split["class_name"][0] == "bee"
    result = check_section(section(flat, listing="list.csv", labelled="labelled.csv"))
    assert dict(result.found) == {"train": 16, "test": 4, "classes": 4}


def test_lists_accept_the_column_names_of_all_tables(folder: Path) -> None:
    rows = [f"{name};{name}/{number}.png;;" for name in CLASSES for number in range(5)]
    (folder / "list.csv").write_text("\n".join(["sep=;", "Label;Filename;;", *rows]), encoding="utf-8")
    (folder / "labelled.csv").write_text("Image\nbee/1.png\n", encoding="utf-8")
    split = own_split(section(folder, listing="list.csv", labelled="labelled.csv"))
    assert split["role"].value_counts().to_dict() == {"unlabelled": 19, "labelled": 1}
    (folder / "labelled.csv").write_text("label\nbee\nant\n", encoding="utf-8")
    assert (own_split(section(folder, listing="list.csv", labelled="labelled.csv"))["old"] == 1).sum() == 10
    # If a column has the usual name, other columns are not read.
    (folder / "labelled.csv").write_text("path,label\nbee/1.png,x\n", encoding="utf-8")
    assert (own_split(section(folder, labelled="labelled.csv"))["role"] == "labelled").sum() == 1


NFC, NFD = (unicodedata.normalize(form, CLASSES[3]) for form in ("NFC", "NFD"))


@pytest.mark.parametrize(("on_disk", "listed"), [(NFC, NFD), (NFD, NFC)])
def test_names_in_another_unicode_form(folder: Path, on_disk: str, listed: str) -> None:
    """Files are opened with the spelling on disk, not with that of the list."""
    (folder / CLASSES[3]).rename(folder / on_disk)
    for number in range(5):
        (folder / on_disk / f"{number}.png").rename(folder / on_disk / f"{on_disk}{number}.png")
    for line in (listed, f"{listed}/{listed}0.png"):
        (folder / "labelled.txt").write_text(line, encoding="utf-8")
        split = own_split(section(folder))
        assert set(split.loc[split["old"] == 1, "class_name"]) == {on_disk}
        assert check_section(section(folder)).ready
    rows = [f"{listed}/{listed}{number}.png,{listed}" for number in range(5)]
    rows += [f"{name}/{number}.png,{name}" for name in CLASSES[:3] for number in range(5)]
    (folder / "list.csv").write_text("\n".join(["path,class", *rows]), encoding="utf-8")
    by_list = check_section(section(folder, listing="list.csv"))
    assert (by_list.ready, dict(by_list.found), by_list.remarks) == (True, {"train": 20, "test": 0, "classes": 4}, [])
    manifest = reader_of(section(folder, listing="list.csv")).manifest(folder)
    assert all((folder / path).is_file() for path in manifest["path"])
    assert f"{on_disk}/{on_disk}0.png" in set(manifest["path"])


def test_a_class_folder_in_two_unicode_forms_is_one_class(folder: Path) -> None:
    (folder / CLASSES[3]).rename(folder / NFC)
    shutil.copytree(folder / NFC, folder / NFD)
    for number in (3, 4):
        (folder / NFD / f"{number}.png").rename(folder / NFD / f"{number + 3}.png")
    (folder / "labelled.txt").write_text(NFD, encoding="utf-8")
    result = check_section(section(folder))
    assert (result.ready, dict(result.found)) == (True, {"train": 25, "test": 0, "classes": 4})
    assert result.remarks == [
        f"classes written in more than one Unicode form, which count as one class each: '{NFC}'",
        f"different images whose names differ only in their Unicode form: '{NFC}/0.png', '{NFC}/1.png', '{NFC}/2.png'",
    ]
    manifest = reader_of(section(folder)).manifest(folder)
    assert sorted(set(manifest["class_name"])) == [*CLASSES[:3], NFC]
    assert all((folder / path).is_file() for path in manifest["path"])
    # An exact spelling means only that image.
    (folder / "labelled.txt").write_text(f"{NFD}/0.png", encoding="utf-8")
    split = own_split(section(folder))
    assert split.loc[split["role"] == "labelled", "path"].tolist() == [f"{NFD}/0.png"]


def test_manifests_with_one_unicode_form_are_unchanged(folder: Path) -> None:
    """Also with one form other than NFC: names and order, which are part of a run's identity, are those on disk."""
    (folder / CLASSES[3]).rename(folder / NFD)
    manifest = reader_of(section(folder)).manifest(folder)
    assert manifest["class_name"].unique().tolist() == [*CLASSES[:3], NFD]
    assert manifest["path"].tolist()[-1] == f"{NFD}/4.png"


def test_train_and_test_folders_are_parts(folder: Path, tmp_path: Path) -> None:
    parts = tmp_path / "parts"
    shutil.copytree(folder, parts / "train")
    (parts / "train" / "labelled.txt").rename(parts / "labelled.txt")
    shutil.copytree(folder / "bee", parts / "test" / "bee")
    split = own_split(section(parts))
    assert split["role"].value_counts().to_dict() == {"unlabelled": 15, "labelled": 5, "test": 5}
    # A class can also be named train.
    shutil.copytree(folder / "bee", folder / "train")
    assert set(own_split(section(folder))["class_name"]) == {*CLASSES, "train"}


def test_other_files_are_skipped_with_a_note(folder: Path) -> None:
    (folder / "bee" / "._0.png").write_bytes(b"junk")
    (folder / "bee" / "notes.md").write_text("junk")
    (folder / "stray.png").write_bytes(b"junk")
    (folder / "bee" / "more").mkdir()
    shutil.copy(folder / "bee" / "0.png", folder / "bee" / "more" / "9.PNG")
    result = check_section(section(folder))
    assert result.found["train"] == 21
    assert result.remarks == ["2 files skipped, not an image of a class, first stray.png"]


def no_file(folder: Path) -> dict[str, Any]:
    return section(folder, labelled="nowhere.txt")


def lines(*text: str) -> Callable[[Path], dict[str, Any]]:
    def write(folder: Path) -> dict[str, Any]:
        (folder / "labelled.txt").write_text("\n".join(text), encoding="utf-8")
        (folder / "ant" / "a.CR2").touch()
        return section(folder)

    return write


def listing(text: str) -> Callable[[Path], dict[str, Any]]:
    def write(folder: Path) -> dict[str, Any]:
        (folder / "list.csv").write_text(text, encoding="utf-8")
        return section(folder, listing="list.csv")

    return write


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        (no_file, ["nowhere.txt is missing", "set in params.yaml"]),
        (lines("ant", "bea"), ["lists 'bea'", "did you mean 'bee'?"]),
        (lines("ant/0.png", "ant/7.png"), ["lists 'ant/7.png'", "neither a class nor the path"]),
        (lines("ant", "bee/1.png"), ["lists 'bee/1.png'", "either one class or one image"]),
        (lines(""), ["lists no labelled class or image"]),
        (lines(*CLASSES), ["labels all 4 classes", "to be discovered"]),
        (lambda f: section(f, classes=5), ["4 classes found, 5 expected", "params.yaml"]),
        (lambda f: section(f, images={"train": 21, "test": 0}), ["20 train images found, 21 expected"]),
        (lambda f: section(f / "ant"), ["contains no folder with images"]),
        (lambda f: section(f / "away"), ["away is missing"]),
        (lambda f: section(Path("$NOT_SET_HERE/x")), ["contains the variable $NOT_SET_HERE, which is not set"]),
        (listing(""), ["list.csv is empty"]),
        (listing("file,breed\na.png,b\n"), ["has the columns file, breed, but expected class or class_name or label"]),
        (listing("a.png,b\n"), ["line 1 is 'a.png,b'", "the first line must be path,class"]),
        (lines("ant/0.png", "ant/a.CR2"), ["lists 'ant/a.CR2', which is hidden or has an unsupported format"]),
        (
            listing("path,class,label\nant/0.png,ant,0\nbee/0.png,bee,0\n"),
            ["has the columns class and label, which name different classes: line 2 has 'ant' and '0', line 3 has"],
        ),
        (listing("path,class\nant/0.png,ant\nbee/0.png,be\0e\n"), ["list.csv line 3 contains a NUL byte"]),
        (lines("ant", "", "be\0e"), ["labelled.txt line 3 contains a NUL byte"]),
        (listing("path,class\n../x.png,a\n"), ["line 2", "'../x.png', but expected a path in"]),
        (listing("path,class\n/etc/x.png,a\n"), ["line 2", "but expected a path in"]),
        (listing("path,class\nant/0.png,\n"), ["line 2", "has no class"]),
        (listing("path,class\nant/0.png,a,b\n"), ["line 2 has 3 columns, but expected 2"]),
        (listing("path,class,part\nant/0.png,a,val\n"), ["the part is 'val', but expected train or test"]),
        (listing("path,class\nant/0.png,ant\nant/0.png,bee\n"), ["image ant/0.png is listed twice"]),
        (listing("path,class\n" + "".join(f"{n}/9.png,{n}\n" for n in CLASSES)), ["4 listed images are missing"]),
    ],
)
def test_errors_are_one_sentence(folder: Path, fault: Callable[[Path], Any], words: list[str]) -> None:
    message = problem(fault(folder))
    assert not [word for word in words if word not in message], message


def test_latin_1_is_named(folder: Path) -> None:
    (folder / "labelled.txt").write_bytes("dög & co".encode("latin-1"))
    assert "is not UTF-8 text" in problem(section(folder))


def test_the_identity_depends_on_the_contents_and_not_on_the_location(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    before = data_fingerprint("mine", section(folder))
    assert before == fingerprint(reader_of(section(folder)), folder)
    moved = shutil.copytree(folder, tmp_path / "moved", copy_function=shutil.copyfile)
    assert data_fingerprint("mine", section(moved)) == before
    image = moved / "bee" / "2.png"
    content = image.read_bytes()
    for change in (content + b"\0", content):  # one byte more, then changed back
        image.write_bytes(change)
        assert (data_fingerprint("mine", section(moved)) == before) == (change == content)
    (moved / "labelled.txt").write_text("cat\n", encoding="utf-8")
    assert data_fingerprint("mine", section(moved)) != before
    assert data_fingerprint("mine", section(tmp_path / "away")) == ABSENT
    record = tmp_path / "results" / "splits" / "mine.source.json"
    record.parent.mkdir(parents=True)
    record.write_text(json.dumps({"fingerprint": before}))
    assert data_fingerprint("mine", section(tmp_path / "away")) == before


def test_a_fingerprint_is_computed_once(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    before = data_fingerprint("mine", section(folder))
    os.utime(folder / "ant" / "0.png")
    assert data_fingerprint("mine", section(folder)) == before
    assert len(list((tmp_path / "work" / "fingerprints").iterdir())) == 1
    for file in (tmp_path / "work" / "fingerprints").iterdir():
        file.write_text("torn")
    assert data_fingerprint("mine", section(folder)) == before


def test_own_images_in_params(committed: dict[str, Any], folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder.parent)
    entry = {k: v for k, v in section(folder).items() if k not in {"benchmark", "seed", "labelled_share"}}
    entry |= {"K": True, "protocol": "fashion", "overrides": {}, "settings": {}}
    entry |= {"methods": committed["benchmarks"]["fashion"]["methods"]}
    committed["benchmarks"]["mine"] = entry
    params = parse(committed)
    resolved = resolve(params, "mine", "full-paper", 0)
    assert (resolved["K"], resolved["K_source"]) == (4, "true")
    assert resolved["data"] == fingerprint(reader_of(section(folder)), folder)
    assert str(folder) not in json.dumps(resolved)
    entry["lables"] = 1
    with pytest.raises(UserError, match=r"benchmarks\.mine: unknown key 'lables'; did you mean 'labelled'\?"):
        parse(committed)
    del entry["lables"], entry["labelled"]
    with pytest.raises(UserError, match=r"benchmarks\.mine\.labelled: this key is missing"):
        parse(committed)


def test_own_images_are_checked_like_official_ones(folder: Path) -> None:
    result = check("mine", replace(FOLDER, labelled="labelled.txt"), folder, None, {"classes": 4})
    assert result.ready
