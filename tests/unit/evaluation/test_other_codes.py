"""Predictions of any code: the numbers of the workflow, and tables in usual formats."""

from __future__ import annotations

import json
import unicodedata
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from ctxgcd.api import evaluate
from ctxgcd.errors import UserError
from ctxgcd.evaluation.score_run import score_run
from ctxgcd.names import METRICS
from tests.helpers.predictions import NAMED, PREDICTED, TRUTH, scores, written

NFC, NFD = (unicodedata.normalize(form, "Käfer") for form in ("NFC", "NFD"))


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A scored run of 300 images, K = 11 with clusters 4 and 10 empty, and its split."""
    folder, draws = tmp_path_factory.mktemp("run"), np.random.RandomState(0)
    ids = np.arange(300)
    split = pd.DataFrame({"id": ids, "path": [f"img/{i}.png" for i in ids], "class_id": draws.randint(0, 9, 300)})
    split["class_name"] = [f"kind {i}" for i in split["class_id"]]
    split["old"] = (split["class_id"] < 4).astype(int)
    split["role"] = np.array(["labelled", "test", "unlabelled", "unlabelled", "unlabelled"])[ids % 5]
    split.to_csv(folder / "split.csv", index=False)
    guess = np.where(draws.rand(300) < 0.5, split["class_id"], draws.randint(0, 9, 300))
    assigned = pd.DataFrame({"id": ids, "predicted": np.where(guess == 4, 9, guess)})[split["role"] != "labelled"]
    assigned.to_csv(folder / "assignments.csv", index=False)
    parameters = {"benchmark": "b", "row": "simgcd", "method": "simgcd", "seed": 0, "K": 11, "K_source": "true"}
    (folder / "run.json").write_text(json.dumps({"epoch": 9, "parameters": parameters}))
    outputs = {"unlabelled": folder / "predictions.csv", "test": folder / "predictions_test.csv"}
    score_run(folder / "run.json", [folder / "assignments.csv"], split, folder / "metrics.json", outputs, code="")
    return folder


@pytest.mark.parametrize(
    ("part", "file"), [("unlabelled", "predictions"), ("test", "predictions_test"), ("test", "assignments")]
)
def test_the_workflow_and_evaluate_give_the_same_numbers(run: Path, part: str, file: str) -> None:
    metrics = json.loads((run / "metrics.json").read_text())
    found = evaluate(run / f"{file}.csv", run / "split.csv", set=part, clusters=11)
    keys = ("metric", "n", "all", "old", "new")
    expected = [{key: row[key] for key in keys} for row in metrics["scores"] if row["set"] == part]
    assert found["scores"] == expected
    assert [row["metric"] for row in expected] == list(METRICS)
    clusters = metrics["clusters"][part]
    assert [found["histogram"].get(str(label), 0) for label in range(11)] == clusters["histogram"]
    assert found["empty_clusters"] == clusters["empty_clusters"] == clusters["histogram"].count(0) >= 2
    assert found["old_share"] == clusters["old_share"]
    assert (found["set"], found["clusters_found"]) == (part, 11 - clusters["empty_clusters"])


def test_a_run_is_scored_without_options(run: Path) -> None:
    """The unlabelled images of the split are scored; a run's predictions also contain the true classes."""
    by_split = evaluate(run / "predictions.csv", run / "split.csv")
    assert (by_split["set"], by_split["joined_by"], by_split["empty_clusters"]) == ("unlabelled", "path", None)
    assert evaluate(run / "predictions.csv", run / "predictions.csv")["scores"] == by_split["scores"]
    assert evaluate(run / "predictions.csv", run / "split.csv", join_by="id")["scores"] == by_split["scores"]


def test_names_of_classes_and_clusters_change_no_number(run: Path, tmp_path: Path) -> None:
    predictions = pd.read_csv(run / "predictions.csv")
    expected = evaluate(predictions, predictions)
    named = predictions.assign(
        predicted=[f"cluster {9 - p}" for p in predictions["predicted"]],
        true_class=[f"kind, {y}" for y in predictions["true_class"]],
    ).sample(frac=1, random_state=0)
    found = evaluate(named, named.sample(frac=1, random_state=1))
    for metric in ("v2", "nmi", "ari", "purity"):
        assert scores(found, metric)[0] == pytest.approx(scores(expected, metric)[0])
    assert found["histogram"]["cluster 0"] == expected["histogram"]["9"]


def test_by_hand(tmp_path: Path) -> None:
    found = evaluate(*written(tmp_path), clusters=4)
    assert scores(found) == [80, 100, pytest.approx(200 / 3)]
    assert scores(found, "v2b") == [pytest.approx(250 / 3), 100, pytest.approx(200 / 3)]
    assert scores(found, "purity") == [100, 100, 100]
    facts = {key: found[key] for key in ("n", "classes", "old_classes", "clusters_found", "empty_clusters", "set")}
    assert facts == {"n": 5, "classes": 2, "old_classes": 1, "clusters_found": 3, "empty_clusters": 1, "set": None}
    assert found["histogram"] == {"1": 1, "3": 2, "7": 2}
    assert found["notes"] == []
    assert evaluate(*written(tmp_path), clusters=10**15)["empty_clusters"] == 10**15 - 3


def rows_reversed(text: str) -> str:
    head, *rows = text.splitlines()
    return "\n".join([head, *reversed(rows)]) + "\n"


@pytest.mark.parametrize(
    ("predictions", "truth"),
    [
        (PREDICTED.replace(",", ";"), TRUTH.replace(",", "\t")),
        (b"\xef\xbb\xbf" + PREDICTED.encode(), b"\xef\xbb\xbf" + TRUTH.replace("\n", "\r\n").encode()),
        (rows_reversed(PREDICTED), TRUTH),
        (PREDICTED.rstrip("\n"), TRUTH + "\n\n"),
        (PREDICTED.replace("a.jpg", "./a.jpg"), TRUTH),
        (PREDICTED.replace("a.jpg", "x\\a.jpg"), TRUTH.replace("a.jpg", "x/a.jpg")),
        (PREDICTED + "a.jpg,7\n", TRUTH + "e.jpg,dog,0\n"),  # a repeated line
        (PREDICTED.replace("7", "Ünicode, 7".join('""')).replace("3", "-1"), TRUTH.replace("cat", "猫")),
        (PREDICTED.replace(",7", ",7.0"), TRUTH.replace(",1\n", ",True\n").replace(",0\n", ",False\n")),
        (PREDICTED.replace("7", "123456789012"), TRUTH.replace("class", "class_name")),
        # As `ctxgcd discover` writes them.
        (
            "path,class,name,confidence,nearest\n"
            "a.jpg,7,cat,0.9,cat\nb.jpg,7,cat,0.9,cat\n"
            "c.jpg,3,new 3,0.9,cat\nd.jpg,3,new 3,0.9,cat\ne.jpg,1,new 1,0.1,cat\n",
            TRUTH,
        ),
        (PREDICTED.replace("path", "id"), TRUTH.replace("path", "id")),
        # As Excel saves them.
        ("sep=;\r\n" + PREDICTED.replace(",", ";"), b"\xef\xbb\xbfSEP=,\r\n" + TRUTH.encode()),
        ("sep=|\n" + PREDICTED.replace(",", "|"), '"sep=\t"\n' + TRUTH.replace(",", "\t")),
        (
            PREDICTED.replace("\n", ",,\n") + ",,,\n",
            TRUTH.replace("\n", ",\n").replace("a.jpg,cat,1,", "a.jpg,cat,1,,"),
        ),
        # The accepted names of columns, in letters of any case.
        (PREDICTED.replace("path,predicted", "filename,label"), TRUTH.replace("path,class", "Image,Label")),
        (PREDICTED.replace("path,predicted", "PATH,Class_Name"), TRUTH.replace("path,class,old", "File,CLASS,Old")),
        (PREDICTED.replace("path", "ID"), TRUTH.replace("path", "Id")),
        # Two columns of the same classes, one of them in two Unicode forms or without some names.
        (NAMED.replace("a.jpg,7,cat", f"a.jpg,7,{NFC}").replace("b.jpg,7,cat", f"b.jpg,7,{NFD}"), TRUTH),
        (NAMED.replace("b.jpg,7,cat", "b.jpg,7,").replace("new 1", "NaN"), TRUTH),
        (PREDICTED, TRUTH.replace(",1\n", ",1,Cat\n").replace(",0\n", ",0,Dog\n").replace("old", "old,class_name")),
        # Names other than of classes, such as photographers.
        (NAMED.replace(",nearest", ",camera").replace("b.jpg,7,cat", "b.jpg,7,Ann"), TRUTH),
        (PREDICTED, TRUTH.replace(",1\n", ",1,Ann\n").replace(",0\n", ",0,Ann\n").replace("old", "old,name")),
        # A column of true classes beside the predicted ones.
        ("path,label,Pred\na.jpg,x,7\nb.jpg,x,7\nc.jpg,x,3\nd.jpg,x,3\ne.jpg,x,1\n", TRUTH),
    ],
)
def test_tables_in_usual_formats(tmp_path: Path, predictions: str | bytes, truth: str | bytes) -> None:
    found = evaluate(*written(tmp_path, predictions, truth))
    assert scores(found) == [80, 100, pytest.approx(200 / 3)]
    assert (found["n"], found["notes"]) == (5, [])


@pytest.mark.parametrize("old", [None, NFC, NFD])
def test_a_class_in_two_unicode_forms_is_one(tmp_path: Path, old: str | None) -> None:
    """macOS stores an accent as a separate character, so equal names can have different bytes."""
    truth = TRUTH.replace("a.jpg,cat", f"a.jpg,{NFC}").replace("b.jpg,cat", f"b.jpg,{NFD}")
    predictions = PREDICTED.replace("a.jpg,7", f"a.jpg,{NFD}").replace("b.jpg,7", f"b.jpg,{NFC}")
    files = written(tmp_path, predictions, truth if old is None else truth.replace(",old", ",was"))
    found = evaluate(*files, old=old)
    assert scores(found) == [80, 100, pytest.approx(200 / 3)]
    assert (found["classes"], found["old_classes"], found["clusters_found"]) == (2, 1, 3)
    assert found["histogram"][NFC] == 2
    note = f": classes written in more than one Unicode form, which count as one class each: '{NFC}'"
    assert found["notes"] == [f"{file}{note}" for file in files]


def test_classes_that_differ_only_between_files(tmp_path: Path) -> None:
    """The list of Old classes may have another form than the truth."""
    (tmp_path / "old.txt").write_text(NFC, encoding="utf-8")
    found = evaluate(
        *written(tmp_path, truth=TRUTH.replace("cat", NFD).replace(",old", ",was")), old=tmp_path / "old.txt"
    )
    assert (scores(found), found["notes"]) == ([80, 100, pytest.approx(200 / 3)], [])


def test_paths_in_another_unicode_form_are_joined(tmp_path: Path) -> None:
    predictions, truth = (text.replace("a.jpg", f"{name}.jpg") for text, name in ((PREDICTED, NFC), (TRUTH, NFD)))
    for files in (
        (predictions, truth),
        (PREDICTED.replace("a.jpg", f"{NFD}.jpg"), TRUTH.replace("a.jpg", f"{NFC}.jpg")),
    ):
        found = evaluate(*written(tmp_path, *files))
        assert (scores(found), found["n"], found["notes"]) == ([80, 100, pytest.approx(200 / 3)], 5, [])
    # The same image twice, in two forms.
    assert evaluate(*written(tmp_path, f"{predictions}{NFD}.jpg,7\n", truth))["n"] == 5
    with pytest.raises(UserError, match=f"has different rows for the image {NFD}.jpg, on lines 2 and 7"):
        evaluate(*written(tmp_path, f"{predictions}{NFD}.jpg,8\n", truth))


def test_two_images_whose_names_differ_in_their_unicode_form(tmp_path: Path) -> None:
    """An exact spelling takes precedence, also for an image of another set; a third spelling is refused."""
    first, second = (f"{name}.jpg" for name in (NFC, NFD))
    predictions = PREDICTED.replace("a.jpg", first).replace("c.jpg", second)
    truth = TRUTH.replace("a.jpg", first).replace("c.jpg", second)
    found = evaluate(*written(tmp_path, predictions, truth))
    assert scores(found) == [80, 100, pytest.approx(200 / 3)]
    [note] = found["notes"]
    assert note.endswith(f"different images whose names differ only in their Unicode form: '{first}'")
    roles = "path,class,role\n" + f"{first},cat,unlabelled\n{second},dog,labelled\nb.jpg,dog,unlabelled\n"
    with pytest.raises(UserError, match="lacks 1 of the 2 images"):
        evaluate(*written(tmp_path, f"path,predicted\n{second},1\nb.jpg,2\n", roles))
    third = {form: unicodedata.normalize(form, "Ü-Ö") for form in ("NFC", "NFD")}
    truth = f"path,class\n{third['NFC']},cat\n{third['NFD']},dog\n"
    with pytest.raises(
        UserError, match=r"matches '\\xdc-\\xd6' and 'U\\u0308-O\\u0308' of .*truth.csv, which differ only in"
    ):
        evaluate(*written(tmp_path, f"path,predicted\n{third['NFC'][0]}{third['NFD'][2:]},1\n", truth))


def test_a_frame_may_have_columns_of_any_kind(tmp_path: Path) -> None:
    frame = pd.DataFrame({"File": ["a.jpg", "b.jpg", "c.jpg", "d.jpg", "e.jpg"], "Label": [7, 7, 3, 3, 1], 0: 5})
    assert scores(evaluate(frame, written(tmp_path)[1])) == [80, 100, pytest.approx(200 / 3)]


def test_an_id_wins_over_other_names_of_a_path(tmp_path: Path) -> None:
    predictions = PREDICTED.replace("path", "id").replace("\n", ",x.jpg\n").replace("d,x.jpg", "d,image")
    found = evaluate(*written(tmp_path, predictions, TRUTH.replace("path", "id")))
    assert (found["joined_by"], found["n"]) == ("id", 5)
    found = evaluate(*written(tmp_path, PREDICTED.replace("path", "filename"), TRUTH), join_by="path")
    assert (found["joined_by"], found["n"]) == ("path", 5)


def test_old_classes_of_a_list(tmp_path: Path, run: Path) -> None:
    files = written(tmp_path, truth=TRUTH.replace(",old", ",was"))
    (tmp_path / "old.txt").write_bytes(b"\xef\xbb\xbfcat\r\n\r\n")
    (tmp_path / "old.csv").write_text("class,n\ncat,2\n")
    expected = [80, 100, pytest.approx(200 / 3)]
    for old in (tmp_path / "old.txt", str(tmp_path / "old.csv"), ["cat"], "cat"):
        assert scores(evaluate(*files, old=old)) == expected
    assert scores(evaluate(*files, old=["cat", "dog"])) == [80, 80, None]
    of_split = run / "predictions.csv", run / "split.csv"
    for old in ([f"kind {i}" for i in range(4)], ["0", "1", "2", "3"]):
        assert evaluate(*of_split, old=old)["scores"] == evaluate(*of_split)["scores"]


def test_without_old_and_new(tmp_path: Path) -> None:
    found = evaluate(*written(tmp_path, truth=TRUTH.replace(",old", ",was")))
    assert scores(found) == [80, None, None]
    assert scores(found, "v1") == [None, None, None]
    assert (found["old_classes"], found["old_share"]) == (None, None)
    assert "no column old and --old is not given, so only All is computed" in found["notes"][0]


def test_images_in_only_one_table(tmp_path: Path) -> None:
    more = evaluate(*written(tmp_path, PREDICTED + "f.jpg,2\n"))
    assert scores(more)[0] == 80
    assert more["histogram"] == {"1": 1, "3": 2, "7": 2}
    assert more["notes"] == ["predictions of other images than those scored: 1, first 'f.jpg'"]
    files = written(tmp_path, PREDICTED.replace("e.jpg,1\n", ""))
    with pytest.raises(UserError, match=r"lacks 1 of the 5 images of .*, first 'e.jpg'; .* --allow-missing"):
        evaluate(*files)
    fewer = evaluate(*files, allow_missing=True)
    assert (fewer["n"], scores(fewer)) == (4, [100, 100, 100])
    assert fewer["notes"] == ["images without a prediction, not scored: 1 of 5"]
