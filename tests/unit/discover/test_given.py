"""Corrections as a user gives them to `ctxgcd label`: words and tables, and those that are refused."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from ctxgcd import api
from ctxgcd.errors import UserError
from tests.helpers.discovery import HEAD, KNOWN, Place, edited, images, predictions
from tests.helpers.refusals import error_of

pytestmark = pytest.mark.slow


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


@pytest.mark.parametrize("other", ["iris", "fern"])
def test_an_edited_table_swaps_and_joins_names(mine: Path, other: str) -> None:
    """Two classes get each other's names, with an image that is moved; then both get one, of a known class or not."""
    api.label(mine, "new-1=rose", "new-2=lily")
    first, second, known = (images(mine, name) for name in ("rose", "lily", "iris"))
    edited(mine, {**dict.fromkeys(first, "lily"), **dict.fromkeys(second, "rose"), known[0]: "rose"})
    api.label(mine, mine / "predictions.csv")
    rows = predictions(mine)
    assert set(rows.loc[[*first], "name"]) == {"lily"}
    assert set(rows.loc[[*second, known[0]], "name"]) == {"rose"}
    assert set(rows.loc[first, "number"]) == {"new-1"}
    edited(mine, dict.fromkeys([*first, *second, known[0]], other))
    api.label(mine, mine / "predictions.csv")
    assert set(predictions(mine)["name"]) == {*KNOWN, other}


def test_paths_are_read_as_in_labels(mine: Path, place: Place, tmp_path: Path) -> None:
    """Absolute ones too; labels that are those of the discovery change nothing."""
    first, second = [path for path in images(mine, "new-1") if path.startswith("deep/")][:2]
    given = ["./" + first, place.root / "photos" / second, "deep\\er\\000.jpg"]
    (tmp_path / "more.csv").write_text("path,class\n" + "".join(f"{path},iris\n" for path in given), encoding="utf-8")
    api.label(mine, tmp_path / "more.csv")
    assert set(predictions(mine).loc[[first, second], "name"]) == {"iris"}
    assert len((mine / "corrections.csv").read_text(encoding="utf-8").splitlines()) == 3


def test_own_corrections_that_were_damaged_are_named(place: Place, mine: Path, tmp_path: Path) -> None:
    for text in ("", "garbage\n", f"{HEAD}undo,,,\n", f"{HEAD}mov,a.jpg,,iris\n"):
        (mine / "corrections.csv").write_text(text, encoding="utf-8")
        for call in (
            lambda: api.label(mine, "new-1=rose"),
            lambda: place.discover(str(mine)),
            lambda: api.sort(mine, tmp_path / "sorted"),
        ):
            assert error_of(call).startswith(
                f"{mine / 'corrections.csv'}, to which corrections are added, was changed "
            )
    (mine / "corrections.csv").unlink()
    api.label(mine, "new-1=rose")


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


def test_labels_can_be_added_by_a_table(mine: Path, tmp_path: Path) -> None:
    first, second = images(mine, "new-1")[:2]
    (tmp_path / "more.csv").write_text(f"class,path\niris,{first}\nmoss,{second}\n", encoding="utf-8")
    api.label(mine, tmp_path / "more.csv")
    assert predictions(mine).loc[[first, second], "name"].tolist() == ["iris", "moss"]
    api.label(mine, "new-2=3")  # a number can be a name
    (tmp_path / "more.csv").write_text(f"path,class\n{first},3\n{second},17\n", encoding="utf-8")
    api.label(mine, tmp_path / "more.csv")
    assert predictions(mine).loc[[first, second], "name"].astype(str).tolist() == ["3", "17"]


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
        ("path,name\nwide.png,3\n", "given.csv line 2: '3' is the id of new-2 in the column class"),
        ("path,class\nwide.png,0\n", "line 2: '0' is the id of iris in .*; give names, as in its column name$"),
        ("action,image,class,target\nout,nowhere.jpg,,\n", "line 2: 'nowhere.jpg' is not an image of predictions.csv"),
        (
            "action,image,class,target\nmove,deep/er/000.jpg,,moss\n",
            "line 2: 'deep/er/000.jpg' has the label iris; change it in the file of labels$",
        ),
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
    mine: Path, tmp_path: Path, words: list[str], problem: str, refused_call: Callable[..., str]
) -> None:
    (tmp_path / "mine.csv").write_text(HEAD)
    assert refused_call("label", str(mine), *words).startswith(f"error: {problem}")
