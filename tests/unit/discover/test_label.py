"""`ctxgcd label`: corrections of results are shown at once, and can be taken back."""

from __future__ import annotations

import json
import os
import re
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from ctxgcd import api
from ctxgcd.cli.command import main
from ctxgcd.discover import model as models
from ctxgcd.discover.output import RECORD
from ctxgcd.errors import UserError
from ctxgcd.utils.files import file_sha256
from tests.helpers.discovery import KNOWN, LABELLED, Place, table, with_onnx
from tests.helpers.refusals import error_of

pytestmark = pytest.mark.slow

HEAD = "action,image,class,target\n"
SHOWN = ("predictions.csv", "report.html", "model/classes.json")


@pytest.fixture
def mine(place: Place, out: Path, request: pytest.FixtureRequest) -> Iterator[Path]:
    """A copy of the results."""
    yield (copy := place.copied(out, "mine"))
    shutil.rmtree(copy)


def predictions(out: Path) -> pd.DataFrame:
    return table(out / "predictions.csv").set_index("path")


def images(out: Path, name: str) -> list[str]:
    rows = predictions(out)
    return list(rows.index[rows["name"] == name])


def edited(out: Path, names: dict[str, str], to: Path | None = None) -> Path:
    """Write predictions.csv with other names of some images, as a spreadsheet does."""
    rows = table(out / "predictions.csv")
    rows["name"] = [names.get(path, name) for path, name in zip(rows["path"], rows["name"], strict=True)]
    rows.to_csv(to or out / "predictions.csv", index=False, sep=";")
    return to or out / "predictions.csv"


def test_names_and_a_merged_pair_are_shown_at_once(mine: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = predictions(mine)
    api.label(mine, "new-1=sun=flower")
    rows = predictions(mine)
    assert (rows["number"] == before["number"]).all()
    assert (rows["class"] == before["class"]).all()
    assert set(rows["name"]) == {*KNOWN, "sun=flower", "new-2"}
    assert "sun=flower (new-1)" in (mine / "report.html").read_text(encoding="utf-8")
    merged = api.label(mine, "new-1,new-2=leopard")
    rows = predictions(mine)
    assert set(rows["name"]) == {*KNOWN, "leopard"}
    assert set(rows.loc[rows["name"] == "leopard", "number"]) == {"new-2"}
    assert (merged["K"], merged["found"]) == (3, 3)
    assert merged["corrected"] == ["Corrected by hand: 1 class named, 1 class merged into another one."]
    kept = [line.split(",") for line in (mine / "corrections.csv").read_text().splitlines()[1:]]
    assert kept == [
        ["name", "", "new-1", "sun=flower"],
        ["merge", "", "new-1", "new-2"],
        ["name", "", "new-2", "leopard"],
    ]
    assert "epoch" not in capsys.readouterr().out  # nothing is trained


def test_moved_confirmed_and_thrown_out_images(mine: Path, tmp_path: Path) -> None:
    known, first, second, third = *images(mine, "iris")[:1], *images(mine, "new-1")[:3]
    lines = f'move,{first},,iris\nmove,{second},,"mo,ss"\nout,{third},,\nconfirm,{known},iris,\n'
    (tmp_path / "c.csv").write_text(HEAD + lines, encoding="utf-8")
    found = api.label(mine, tmp_path / "c.csv")
    rows = predictions(mine)
    assert rows.loc[[first, second, known], "name"].tolist() == ["iris", "mo,ss", "iris"]
    assert rows.loc[[first, second, known], "number"].tolist() == ["", "new-3", ""]
    assert rows.loc[[first, second, known], "confidence"].tolist() == [1, 1, 1]
    assert third not in rows.index
    assert table(mine / "thrown_out.csv")["path"].tolist() == [third]
    assert (found["K"], found["found"]) == (5, 5)
    assert "1 image thrown out (thrown_out.csv)" in (mine / "report.html").read_text(encoding="utf-8")


def page_of(out: Path) -> tuple[str, dict[str, Any]]:
    """Return the report, and the data of its script."""
    page = (out / "report.html").read_text(encoding="utf-8")
    return page, json.loads(page.partition('id="all-images">')[2].partition("</script>")[0])


def test_counts_follow_the_corrections(mine: Path, place: Place, tmp_path: Path) -> None:
    """Those of the command and of the report, also without the packed images, which are packed again."""
    given = sorted(path for path, kind in place.truth.items() if kind < 2 and int(Path(path).stem) < 4 * LABELLED)
    page, data = page_of(mine)
    assert sorted(data["images"]["path"][41:]) == given
    assert [place.truth[path] for path in data["images"]["path"][41:]] == data["images"]["of"][41:]
    known, first, second, *others = *images(mine, "iris")[:1], *images(mine, "new-1")
    lines = [f"move,{first},,iris", f"out,{second},,", f"confirm,{known},iris,"]
    (tmp_path / "c.csv").write_text(HEAD + "".join(f"{line}\n" for line in lines), encoding="utf-8")
    found = api.label(mine, tmp_path / "c.csv")
    assert (found["images"], found["labelled"], found["by_hand"]) == (50, 12, 2)
    page, data = page_of(mine)
    assert "38 images without a label in 4 classes" in page
    assert "50 images, 12 of them with a label." in page
    assert second not in data["images"]["path"]
    facts = dict(re.findall(r'<h4>(.*?)</h4>\n<p class="facts"><span>(.*?)</p>', page))
    assert facts["new-1"].startswith(f"{len(others)} unlabelled image")
    assert "</span><span>5 labelled</span><span>2 labelled by hand</span>" in facts["iris"]
    shutil.rmtree(mine / "work")
    api.label(mine, "new-1=rose")
    assert page_of(mine)[1]["images"] == data["images"]
    api.label(mine, undo=True)
    assert page_of(mine)[0] == page


def test_the_download_of_the_report_is_taken_in_and_shown(
    mine: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Lines as the page writes them: images first, and classes by their numbers also after they are named."""
    first, second, third, *_ = images(mine, "new-1")
    other, known = images(mine, "new-2")[0], images(mine, "iris")[0]
    lines = [
        f"confirm,{first},new-1,",
        f'move,{second},,"owl, ""barn"""',
        f"out,{third},,",
        f"move,{other},,iris",
        f"confirm,{known},iris,",
        'name,,new-1,"tulip, ""red"""',
        "merge,,new-2,new-1",
    ]
    file = tmp_path / "corrections.csv"
    file.write_text(HEAD + "".join(f"{line}\n" for line in lines), encoding="utf-8")
    api.label(mine, file)
    assert (mine / "corrections.csv").read_text(encoding="utf-8") == file.read_text(encoding="utf-8")
    capsys.readouterr()
    api.label(mine, file)  # downloaded once more
    assert "note: these corrections are in effect already" in capsys.readouterr().out
    assert (mine / "corrections.csv").read_text(encoding="utf-8") == file.read_text(encoding="utf-8")
    owl, tulip = 'owl, "barn"', 'tulip, "red"'
    rows = predictions(mine)
    assert rows.loc[[first, second, other, known], "name"].tolist() == [tulip, owl, "iris", "iris"]
    data = page_of(mine)[1]
    assert [tuple(of.values()) for of in data["classes"]] == [
        *((name, name, False) for name in KNOWN),
        ("new-1", tulip, False),
        ("new-2", "new-2", True),
        ("new-3", owl, False),
    ]
    file.write_text(f"{HEAD}name,,new-1,new-1\nmerge,,new-3,new-1\n", encoding="utf-8")  # from that page
    api.label(mine, file)
    assert set(predictions(mine)["name"]) == {*KNOWN, "new-1"}


def test_undo_takes_back_line_by_line(mine: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = {name: file_sha256(mine / name) for name in SHOWN}
    (tmp_path / "c.csv").write_text(f"{HEAD}out,{images(mine, 'new-1')[0]},,\n", encoding="utf-8")
    api.label(mine, "new-1=rose")
    api.label(mine, tmp_path / "c.csv")
    api.label(mine, undo=True)
    assert "note: taken back: out," in capsys.readouterr().out
    assert set(predictions(mine)["name"]) == {*KNOWN, "rose", "new-2"}
    assert not (mine / "thrown_out.csv").exists()
    api.label(mine, undo=True)
    assert {name: file_sha256(mine / name) for name in SHOWN} == before
    with pytest.raises(UserError, match=r"^--undo: there is no correction to take back$"):
        api.label(mine, undo=True)
    assert (mine / "corrections.csv").read_text().splitlines()[-1] == "undo,,,"


def test_predict_and_export_have_the_corrected_classes(place: Place, mine: Path) -> None:
    before, _ = api.predict(mine / "model", place.root / "photos")
    api.label(mine, "new-1,new-2=leopard")
    after, _ = api.predict(mine / "model", place.root / "photos")
    new = before["number"] != ""
    assert new.any()
    assert set(after.loc[new, "name"]) == {"leopard"}
    assert set(after.loc[new, "number"]) == {"new-2"}
    assert after.loc[~new].equals(before.loc[~new])
    assert (after.loc[new, "confidence"] >= before.loc[new, "confidence"]).all()  # of both classes together
    assert models.load(mine / "model").alive == [0, 1, 3, 3]


@with_onnx
def test_an_exported_model_has_names_and_numbers(mine: Path, tmp_path: Path) -> None:
    api.label(mine, "new-1,new-2=leopard")
    about = api.export(mine / "model", tmp_path / "model.onnx")
    assert json.loads(about["classes"]) == [*KNOWN, "leopard", "leopard"]
    assert json.loads(about["numbers"]) == ["", "", "new-2", "new-2"]


def test_an_edited_table_names_merges_and_moves(mine: Path) -> None:
    """All images of a class get a name, all of another one that of a known class, and one of a third is moved."""
    first, second, known = (images(mine, name) for name in ("new-1", "new-2", "iris"))
    before = predictions(mine)
    edited(mine, {**dict.fromkeys(first, "sunflower"), **dict.fromkeys(second, "iris"), known[0]: "moss"})
    api.label(mine, mine / "predictions.csv")
    lines = (mine / "corrections.csv").read_text(encoding="utf-8").splitlines()[1:]
    assert sorted(lines) == ["merge,,new-2,iris", f"move,{known[0]},,moss", "name,,new-1,sunflower"]
    rows = predictions(mine)
    assert (rows.loc[first, "number"] == "new-1").all()
    assert (rows.loc[second, "name"] == "iris").all()
    assert len(rows) == len(before)
    api.label(mine, "new-1=rose")  # the table is as written again


def test_an_edited_table_is_not_overwritten(place: Place, mine: Path) -> None:
    edited(mine, {images(mine, "new-1")[0]: "moss"})
    text = (mine / "predictions.csv").read_bytes()
    problem = "predictions.csv was edited after it was written; take its changes in with `ctxgcd label .*`, or"
    for call in (
        lambda: api.label(mine, "new-1=rose"),
        lambda: api.label(mine, undo=True),
        lambda: place.discover(str(mine)),
        lambda: place.discover(str(mine), seed=1),
        lambda: api.sort(mine, place.root / "sorted"),
    ):
        with pytest.raises(UserError, match=problem):
            call()
    assert (mine / "predictions.csv").read_bytes() == text
    api.label(mine, mine / "predictions.csv")
    assert "moss" in set(predictions(mine)["name"])


def test_an_edited_table_is_not_a_file_of_labels(place: Place, mine: Path, tmp_path: Path) -> None:
    file = edited(mine, {images(mine, "new-1")[0]: "moss"}, tmp_path / "edited.csv")
    message = error_of(lambda: place.discover(str(tmp_path / "out"), labels=file))
    assert message == (
        f"{file} is a predictions.csv, not a file of labels; take your changes of it in with `ctxgcd label OUT {file}`"
    )


def test_a_deleted_table_is_written_again_with_its_corrections(place: Place, mine: Path) -> None:
    api.label(mine, "new-1=rose")
    before = (mine / "predictions.csv").read_bytes()
    (mine / "predictions.csv").unlink()
    place.again(mine)
    assert (mine / "predictions.csv").read_bytes() == before


def test_labels_can_be_added_by_a_table(mine: Path, tmp_path: Path) -> None:
    first, second = images(mine, "new-1")[:2]
    (tmp_path / "more.csv").write_text(f"class,path\niris,{first}\nmoss,{second}\n", encoding="utf-8")
    api.label(mine, tmp_path / "more.csv")
    assert predictions(mine).loc[[first, second], "name"].tolist() == ["iris", "moss"]
    api.label(mine, "new-2=3")  # a number can be a name
    (tmp_path / "more.csv").write_text(f"path,class\n{first},3\n{second},17\n", encoding="utf-8")
    api.label(mine, tmp_path / "more.csv")
    assert predictions(mine).loc[[first, second], "name"].astype(str).tolist() == ["3", "17"]


def test_everything_works_without_the_work_folder(place: Place, found: dict[str, Any], mine: Path) -> None:
    shutil.rmtree(mine / "work")
    assert place.discover(str(mine)) == found
    assert not list((mine / "work").glob("images-*"))
    page = file_sha256(mine / "report.html")
    api.label(mine, "new-1=rose")
    assert "rose" in (mine / "report.html").read_text(encoding="utf-8")
    api.label(mine, undo=True)
    assert file_sha256(mine / "report.html") == page
    assert len(api.predict(mine / "model", place.root / "photos")[0]) == 51


def test_without_the_images_the_report_stays(
    place: Place, mine: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    away = Path(shutil.copytree(mine, tmp_path / "far" / "away"))
    shutil.rmtree(away / "work")
    page = file_sha256(away / "report.html")
    api.label(away, "new-1=rose")
    assert "note: report.html is not changed, because the images are not in" in capsys.readouterr().out
    assert file_sha256(away / "report.html") == page
    assert "rose" in set(predictions(away)["name"])


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (HEAD, "given.csv has no correction; write one line for each below the names of the columns$"),
        ("path,class\nwide.png,\n", "given.csv has no correction"),
        ("path;name\nnowhere.jpg;iris\n", "line 2: 'nowhere.jpg' is not an image of "),
        ("path;name\nwide.png;\n", "line 2: the name is empty; give a name, or throw the image out with a line of"),
        (
            "path;class;name\nwide.png;17;iris\n",
            r"line 2: class is '17', but '.' in .*/predictions.csv; change only the column name of that",
        ),
        ("path;number;name\nwide.png;new-9;iris\n", "line 2: number is 'new-9', but .* in .*; change only"),
        ("path;score\nwide.png;1\n", "has the columns path, score; give a table with action,image,class,target, an ed"),
        (
            "path,class\nwide.png,3\n",
            "line 2: '3' is the id of new-2 in the column class of predictions.csv, not a name; give names, as in its "
            "column name; if 3 is its name, give it this name first: new-2=3$",
        ),
        ("path,class\nwide.png,0\n", "line 2: '0' is the id of iris in .*; give names, as in its column name$"),
        ("action,image,class,target\nout,nowhere.jpg,,\n", "line 2: 'nowhere.jpg' is not an image of predictions.csv"),
        ("action,image,class,target\nmove,deep/er/000.jpg,,moss\n", "labelled images are changed in the file of lab"),
    ],
)
def test_tables_that_are_refused(mine: Path, tmp_path: Path, text: str, problem: str) -> None:
    (tmp_path / "given.csv").write_text(text, encoding="utf-8")
    with pytest.raises(UserError, match=problem):
        api.label(mine, tmp_path / "given.csv")
    assert not (mine / "corrections.csv").exists()


def test_a_table_without_changes_is_refused(mine: Path) -> None:
    with pytest.raises(UserError, match=r"predictions.csv has no changed name, so there is nothing to take in$"):
        api.label(mine, mine / "predictions.csv")


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        ([], "give corrections or --undo, such as new-5=sunflower"),
        (["new-1=x", "--undo"], "give corrections or --undo"),
        (["new-1"], "'new-1' is neither NUMBER=NAME nor a file; give names, such as new-5=sunflower, or one file"),
        (["new-1=x", "mine.csv"], "'mine.csv' is not the only argument; give names"),
        (["new-1="], "'new-1=' is not NUMBER=NAME, such as new-5=sunflower or new-2,new-7=leopard"),
        (["new-1=x", "new-7=y"], "new-7=y: there is no class 'new-7'"),
    ],
)
def test_words_that_are_refused(
    mine: Path,
    tmp_path: Path,
    words: list[str],
    problem: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (tmp_path / "mine.csv").write_text(HEAD)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["ctxgcd", "label", str(mine), *words])
    with pytest.raises(SystemExit, match=r"^2$"):
        main()
    assert capsys.readouterr().err.startswith(f"error: {problem}")
    assert not (mine / "corrections.csv").exists()


def test_the_command_prints_what_is_corrected(
    mine: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["ctxgcd", "label", str(mine), "--json", "new-1=lily"])
    main()
    assert json.loads(capsys.readouterr().out)["corrected"] == ["Corrected by hand: 1 class named."]
    monkeypatch.setattr(sys, "argv", ["ctxgcd", "label", str(mine), "new-1=rose"])
    main()
    assert capsys.readouterr().out.splitlines() == [
        "Corrected by hand: 1 class named.",
        "41 unlabelled images in 4 classes",
        f"report: {mine / 'report.html'}; predictions: {mine / 'predictions.csv'}",
    ]


def test_folders_that_cannot_be_corrected(mine: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="contains no results of `ctxgcd discover`; give its --out"):
        api.label(tmp_path, "new-1=x")
    (mine / "model/found.npz").unlink()
    with pytest.raises(UserError, match="was written by an earlier version, without what corrections need; run"):
        api.label(mine, "new-1=x")


def test_a_killed_call_is_completed_by_the_next_one(mine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rename = os.replace

    def killed(source: Path, target: Path) -> None:
        if Path(source).name == "report.html":
            raise KeyboardInterrupt
        rename(source, target)

    with monkeypatch.context() as patched:
        patched.setattr(os, "replace", killed)
        with pytest.raises(KeyboardInterrupt):
            api.label(mine, "new-1=rose")
    assert (mine / "work/complete" / RECORD).exists()
    api.label(mine, "new-2=lily")
    assert set(predictions(mine)["name"]) == {*KNOWN, "rose", "lily"}
