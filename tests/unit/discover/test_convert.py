"""Predictions in the formats of other programs."""

from __future__ import annotations

import json
import os
from pathlib import Path
from xml.etree import ElementTree

import pytest

from ctxgcd import api
from ctxgcd.cli.command import parser
from tests.helpers.refusals import error_of

NAMES = {"a/ü 1.jpg": 'rose, "wild" <b>&', "a/2.PNG": "new-1", "3.tar.jpg": "new-1"}
SUBJECT = (
    "{http://www.w3.org/1999/02/22-rdf-syntax-ns#}RDF/{http://www.w3.org/1999/02/22-rdf-syntax-ns#}Description/"
    "{http://purl.org/dc/elements/1.1/}subject/{http://www.w3.org/1999/02/22-rdf-syntax-ns#}Bag/*"
)


@pytest.fixture
def predictions(tmp_path: Path) -> Path:
    """Predictions of three images, and of one that is none of the classes."""
    file = tmp_path / "predictions.csv"
    lines = [f'{path},0,"{name.replace(chr(34), 2 * chr(34))}",0' for path, name in NAMES.items()]
    file.write_text("\n".join(["path,class,name,none_of_these", *lines, "4.jpg,1,new-1,1"]) + "\n", encoding="utf-8")
    return file


def test_a_file_for_fiftyone(predictions: Path, tmp_path: Path) -> None:
    """Labels by the paths without their last suffix, as its importer looks images up."""
    out = tmp_path / "labels.json"
    assert api.convert(predictions, out, "fiftyone") == 3
    assert json.loads(out.read_text(encoding="utf-8")) == {
        "classes": None,
        "labels": {"a/ü 1": NAMES["a/ü 1.jpg"], "a/2": "new-1", "3.tar": "new-1"},
    }
    api.convert(predictions, tmp_path / "photos", "xmp")  # sidecar files in the same folder are other keys
    for path in NAMES:
        (tmp_path / "photos" / path).touch()
    files = [path.relative_to(tmp_path / "photos") for path in (tmp_path / "photos").rglob("*.*")]
    of = {os.path.splitext(path)[0]: path.as_posix() for path in files}
    assert {of[key]: name for key, name in json.loads(out.read_text(encoding="utf-8"))["labels"].items()} == NAMES
    assert error_of(lambda: api.convert(predictions, out, "fiftyone")) == f"{out} exists; give a new file"
    predictions.write_text("path,name\n1.jpg,x\n1.png,y\n")
    assert "cannot tell these apart: '1.jpg', '1.png'; rename" in error_of(
        lambda: api.convert(predictions, tmp_path / "other.json", "fiftyone")
    )


def test_keywords_in_sidecar_files(predictions: Path, tmp_path: Path) -> None:
    photos = tmp_path / "photos"
    assert api.convert(predictions, photos, "xmp") == 3
    files = {path.relative_to(photos).as_posix() for path in photos.rglob("*") if path.is_file()}
    assert files == {f"{path}.xmp" for path in NAMES}
    for path, name in NAMES.items():
        text = (photos / f"{path}.xmp").read_text(encoding="utf-8")
        assert text.startswith('<?xpacket begin="\ufeff"')
        assert [item.text for item in ElementTree.fromstring(text).findall(SUBJECT)] == [name]


def test_sidecars_never_overwrite(predictions: Path, tmp_path: Path) -> None:
    """Not one is written if one exists."""
    (tmp_path / "photos/a").mkdir(parents=True)
    there = tmp_path / "photos/a/2.PNG.xmp"
    there.write_text("mine")
    assert error_of(lambda: api.convert(predictions, tmp_path / "photos", "xmp")) == (
        f"{tmp_path / 'photos'} has sidecar files already, which are not overwritten: 1 file, such as a/2.PNG.xmp; "
        "give another folder"
    )
    assert [path for path in (tmp_path / "photos").rglob("*") if path.is_file()] == [there]
    assert there.read_text() == "mine"
    there.unlink()
    (tmp_path / "long.csv").write_text(f"path,name\n1.jpg,x\n{'x' * 250}.jpg,x\n")
    assert "File name too long" in error_of(lambda: api.convert(tmp_path / "long.csv", tmp_path / "photos", "xmp"))
    assert not list((tmp_path / "photos").rglob("*.xmp"))


def test_an_interrupted_call_is_completed(predictions: Path, tmp_path: Path) -> None:
    api.convert(predictions, tmp_path / "photos", "xmp")
    (tmp_path / "photos/a/2.PNG.xmp").unlink()
    assert api.convert(predictions, tmp_path / "photos", "xmp") == 3
    assert (tmp_path / "photos/a/2.PNG.xmp").exists()


@pytest.mark.parametrize("path", ["../x.jpg", "/x.jpg", "a/../../x.jpg"])
def test_paths_outside_the_folder_are_refused(path: str, tmp_path: Path) -> None:
    (tmp_path / "p.csv").write_text(f"path,name\n{path},x\n")
    assert "paths that are not in the folder of the images" in error_of(
        lambda: api.convert(tmp_path / "p.csv", tmp_path / "photos", "xmp")
    )
    assert not (tmp_path / "photos").exists()


def test_tables_that_cannot_be_used(tmp_path: Path) -> None:
    file = tmp_path / "p.csv"
    corrections = "action,image,class,target\nconfirm,1.jpg,x,\n"
    for text, says in (
        (corrections, "is a corrections.csv; give"),
        ("path,name,none_of_these\n1.jpg,x,1\n", "has no image with a class"),
        ("", "is empty"),
    ):
        file.write_text(text)
        assert says in error_of(lambda: api.convert(file, tmp_path / "o.json", "fiftyone"))


def test_the_command_counts(predictions: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for to, name, says in (("fiftyone", "labels.json", "3 images"), ("xmp", "photos", "3 sidecar files")):
        arguments = parser().parse_args(["convert", str(predictions), str(tmp_path / name), "--to", to])
        arguments.call(arguments)
        assert capsys.readouterr().out == f"{says} written to {tmp_path / name}\n"
