"""`ctxgcd label`: corrections of results are shown at once, and can be taken back."""

from __future__ import annotations

import json
import os
import re
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest

from ctxgcd import api
from ctxgcd.cli.command import main
from ctxgcd.discover import model as models
from ctxgcd.discover.output import RECORD
from ctxgcd.errors import UserError
from ctxgcd.utils.files import file_sha256
from tests.helpers.discovery import HEAD, KNOWN, LABELLED, Place, images, predictions, table, with_onnx

pytestmark = pytest.mark.slow

SHOWN = ("predictions.csv", "report.html", "model/classes.json")


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


def test_a_deleted_table_is_written_again_with_its_corrections(place: Place, mine: Path) -> None:
    api.label(mine, "new-1=rose")
    before = (mine / "predictions.csv").read_bytes()
    (mine / "predictions.csv").unlink()
    place.again(mine)
    assert (mine / "predictions.csv").read_bytes() == before


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


@pytest.mark.parametrize("corrected", [False, True])
def test_a_moved_folder_of_results_finds_the_images_again(
    place: Place, mine: Path, tmp_path: Path, corrected: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    if corrected:
        api.label(mine, "new-1=rose")
    away = Path(shutil.copytree(mine, tmp_path / "far" / "away"))
    problem = "far, where the images of .*away are expected, contains none of them; move the images or .*away back, or"
    with pytest.raises(UserError, match=problem):
        api.sort(away, tmp_path / "sorted")
    capsys.readouterr()
    place.again(away) if corrected else place.discover(str(away))
    assert "epoch" not in capsys.readouterr().out  # nothing is trained
    assert api.sort(away, tmp_path / "sorted")["written"] == 51
    assert (away / page_of(away)[1]["base"]).resolve() == (place.root / "photos").resolve()
