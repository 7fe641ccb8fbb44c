"""Corrections: lines of corrections.csv, and what they make of the classes."""

from __future__ import annotations

from pathlib import Path

import pytest

from ctxgcd.discover.classes import Classes
from ctxgcd.discover.corrections import Line, State, appended, in_effect, read, replayed, text_of
from ctxgcd.errors import UserError
from tests.helpers.refusals import error_of

KEYS = ["iris", "new-1", "new-2", "new-3"]
CLASSES = Classes(1, KEYS, KEYS)
PREDICTED = {"a.jpg": "iris", "b.jpg": "new-1", "c.jpg": "new-2", "d.jpg": "new-3"}
HEAD = "action,image,class,target\n"


def lines_of(text: str, folder: Path) -> list[Line]:
    (folder / "c.csv").write_text(HEAD + text, encoding="utf-8")
    return [line for _, line in read(folder / "c.csv")]


def state_of(*lines: Line) -> State:
    return replayed(CLASSES, lines)


def name(cls: str, target: str) -> Line:
    return Line("name", cls=cls, target=target)


def merge(cls: str, target: str) -> Line:
    return Line("merge", cls=cls, target=target)


def move(image: str, target: str) -> Line:
    return Line("move", image=image, target=target)


def test_lines_are_read_as_they_are_written(tmp_path: Path) -> None:
    lines = [name("new-1", 'a, "b"=c\nd'), merge("new-2", "new-3"), move("x,y.jpg", "new-1"), Line("undo")]
    (tmp_path / "c.csv").write_text(text_of(lines), encoding="utf-8")
    assert [line for _, line in read(tmp_path / "c.csv")] == lines


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("rename,,new-1,x\n", "line 2: unknown action 'rename'; did you mean 'name'?; valid: name, merge, move"),
        ("name,,new-1,\n", "line 2: name needs the cell target; fill it or delete the line"),
        ("out,a.jpg,,\nmove,,,new-1\n", "line 3: move needs the cell image"),
    ],
)
def test_files_that_cannot_be_read(tmp_path: Path, text: str, problem: str) -> None:
    assert problem in error_of(lambda: lines_of(text, tmp_path))


def test_a_file_without_a_column(tmp_path: Path) -> None:
    (tmp_path / "c.csv").write_text("action,image,class\n", encoding="utf-8")
    assert error_of(lambda: read(tmp_path / "c.csv")).endswith(
        "has no column target; its first line must be action,image,class,target"
    )


def test_undo_takes_back_the_last_line_that_stands() -> None:
    first, second, undo = name("new-1", "x"), name("new-1", "y"), Line("undo")
    assert in_effect([first, second, undo]) == [first]
    assert in_effect([first, undo, second]) == [second]
    assert in_effect([first, second, undo, undo]) == []
    with pytest.raises(UserError, match="there is no correction to take back"):
        in_effect([first, undo, undo])


def test_a_name_labels_nothing_and_the_last_one_wins() -> None:
    state = state_of(name("new-1", "rose"), name("rose", "lily"))
    shown = state.shown(CLASSES)
    assert shown.names == ["iris", "lily", "new-2", "new-3"]
    assert shown.numbers == ["", "new-1", "new-2", "new-3"]
    assert not state.labels
    assert state.digest == state_of().digest
    assert state_of(name("new-1", "rose"), name("new-1", "new-1")).named == set()


def test_merged_classes_are_followed() -> None:
    state = state_of(merge("new-1", "new-2"), name("new-2", "rose"), merge("rose", "iris"), move("d.jpg", "new-1"))
    assert state.shown(CLASSES).into == [0, 0, 0, 3]
    assert state.label_of("d.jpg") == "iris"
    assert state.alive == ["iris", "new-3"]


def test_a_move_can_make_a_class_with_the_next_number() -> None:
    state = state_of(move("a.jpg", "moss"), move("b.jpg", "MOSS"), move("c.jpg", "fern"))
    assert state.labels == {"a.jpg": "new-4", "b.jpg": "new-4", "c.jpg": "new-5"}
    assert state.shown(CLASSES).names[4:] == ["moss", "fern"]
    assert state.made == [("moss", "new-4"), ("fern", "new-5")]


def test_numbers_are_never_given_again() -> None:
    later = Classes(1, ["iris", "new-3"], ["iris", "new-3"], ["new-1", "new-2", "new-7"])
    assert replayed(later, [move("a.jpg", "moss")]).labels == {"a.jpg": "new-8"}
    assert replayed(later, [move("a.jpg", "new-2")]).labels == {"a.jpg": "new-2"}  # its own number, made again


def test_lines_mean_the_same_after_a_continued_discovery() -> None:
    """The model of the later results has the class that was made by hand, but not the merged one."""
    lines = [merge("new-1", "new-2"), move("a.jpg", "moss"), name("moss", "fern"), move("b.jpg", "moss")]
    lines.append(Line("confirm", image="c.jpg", cls="new-1"))
    before = replayed(CLASSES, lines)
    assert before.labels == {"a.jpg": "new-4", "b.jpg": "new-5", "c.jpg": "new-2"}
    keys = ["iris", "new-2", "new-4", "new-5", "new-3"]
    later = Classes(1, keys, keys, ["new-1"], before.made)
    after = replayed(later, lines)
    assert (after.labels, after.names["new-4"], after.digest) == (before.labels, "fern", before.digest)
    assert after.made == before.made
    undone = replayed(later, [*lines, Line("undo"), Line("undo")])
    assert undone.labels == {"a.jpg": "new-4"}
    assert undone.names["new-5"] == "new-5"


def test_the_last_line_of_an_image_wins() -> None:
    out, confirm = Line("out", image="b.jpg"), Line("confirm", image="b.jpg", cls="new-1")
    assert state_of(confirm, out).out == {"b.jpg"}
    assert state_of(confirm, out).labels == {}
    state = state_of(out, move("b.jpg", "new-2"), confirm)
    assert (state.out, state.labels, state.confirmed) == (set(), {"b.jpg": "new-1"}, {"b.jpg"})


def test_the_digest_is_that_of_what_a_training_takes() -> None:
    digests = [
        state_of(*lines).digest
        for lines in ([], [move("a.jpg", "new-1")], [move("a.jpg", "new-2")], [merge("new-1", "new-2")])
    ]
    assert len({*digests, state_of(Line("out", image="a.jpg")).digest}) == 5
    assert state_of(move("a.jpg", "new-1"), move("a.jpg", "new-2")).digest == digests[2]


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        (name("new-9", "x"), "there is no class 'new-9'; did you mean 'new-"),
        (name("iris", "x"), "'iris' is a class of your labels and cannot be renamed; change the file of labels"),
        (name("new-1", "new-2"), "'new-2' is the number of a class; give new-1 another name"),
        (name("new-1", "NEW-77"), "'NEW-77' is the number of a class; give new-1 another name"),
        (name("new-1", "Iris"), "'Iris' is the name of another class; to merge both, write new-1,Iris=Iris"),
        (merge("iris", "new-1"), "'iris' is a class of your labels and cannot be merged into another one"),
        (merge("new-1", "new-1"), "new-1 and new-1 are the same class; give two classes"),
        (move("a.jpg", "new-12"), "there is no class 'new-12'"),
        (move("e.jpg", "new-1"), "'e.jpg' is not an image of predictions.csv; did you mean '"),
        (Line("confirm", image="b.jpg", cls="new-2"), "b.jpg is in new-1, not in new-2; write move instead"),
        (Line("undo"), "there is no correction to take back"),
    ],
)
def test_corrections_that_are_impossible(line: Line, problem: str) -> None:
    message = error_of(lambda: appended(CLASSES, [], [("here", line)], PREDICTED))
    assert message.startswith(f"here: {problem}")


def test_all_lines_are_checked_in_their_order() -> None:
    given = [name("new-1", "rose"), Line("out", image="b.jpg"), Line("undo"), move("c.jpg", "rose")]
    assert appended(CLASSES, [], [("here", line) for line in given], PREDICTED) == given
    gone = [Line("out", image="b.jpg"), Line("confirm", image="b.jpg", cls="new-1")]
    with pytest.raises(UserError, match=r"b.jpg was thrown out; write move with its class instead"):
        appended(CLASSES, [], [("here", line) for line in gone], PREDICTED)


def test_paths_are_spelled_as_in_the_predictions() -> None:
    found = appended(CLASSES, [], [("here", move("e\u0301.jpg", "new-1"))], {"\u00e9.jpg": "iris"})
    assert found == [move("\u00e9.jpg", "new-1")]


def test_a_known_class_that_looks_like_a_number_has_none() -> None:
    classes = Classes(1, ["new-1", "new-2"], ["new-1", "new-2"])
    assert replayed(classes, []).shown(classes).numbers == ["", "new-2"]
