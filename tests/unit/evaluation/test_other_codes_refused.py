"""Predictions and truths that cannot be scored, and their error messages."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from ctxgcd.api import evaluate
from ctxgcd.errors import UserError
from tests.helpers.predictions import NAMED, PREDICTED, TRUTH, scores, written


@pytest.mark.parametrize(
    ("predictions", "truth", "options", "words"),
    [
        ("", TRUTH, {}, "predictions.csv is empty; write a line with column names"),
        ("path,predicted\n", TRUTH, {}, "has no lines after the column names"),
        (PREDICTED, "path,class,old\n", {}, "truth.csv has no lines after the column names"),
        ("path,guess\na.jpg,1\n", TRUTH, {}, "has the columns path, guess, but expected predicted or "),
        ("photo,predicted\na.jpg,1\n", TRUTH, {}, "has the columns photo, predicted, but expected path or file or"),
        (
            "a.jpg,1\nb.jpg,1\n",
            TRUTH,
            {},
            "line 1 is 'a.jpg,1', which has no known column name; the first line must be path,pred",
        ),
        (
            PREDICTED,
            "sep=;\na.jpg;cat\n",
            {},
            "line 2 is 'a.jpg;cat', which has no known column name; the first line must be path,class",
        ),
        (PREDICTED, TRUTH.replace("old", "Class"), {}, "has the column 'class' twice"),
        (PREDICTED.replace("b.jpg,7", "b.jpg,,7"), TRUTH, {}, "line 3 has 3 columns, but expected 2"),
        (PREDICTED, "path,old\na.jpg,1\n", {}, "expected class_id or class or true_class or class_name"),
        (PREDICTED.replace("path", "id"), TRUTH, {}, "by id and"),
        (PREDICTED, TRUTH, {"join_by": "id"}, "has the columns path, predicted, but expected id"),
        (PREDICTED.replace(",3", ",nan", 1), TRUTH, {}, "predictions.csv line 4: predicted is empty"),
        (PREDICTED, TRUTH.replace("dog", "", 1), {}, "truth.csv line 4: class is empty"),
        (PREDICTED.replace("b.jpg", ""), TRUTH, {}, "predictions.csv line 3: path is empty"),
        (PREDICTED + "./a.jpg,1\n", TRUTH, {}, "has different rows for the image a.jpg, on lines 2 and 7"),
        (PREDICTED, TRUTH + "a.jpg,dog,0\n", {}, "has different rows for the image a.jpg, on lines 2 and 7"),
        (PREDICTED.replace("a.jpg,7", "a.jpg,7,8"), TRUTH, {}, "line 2 has 3 columns, but expected 2"),
        (PREDICTED.replace("path", "predicted"), TRUTH, {}, "the column 'predicted' twice"),
        (PREDICTED.replace(".jpg", ".png"), TRUTH, {}, "have no image in common by path, as 'a.png' and 'a.jpg'"),
        (
            PREDICTED.encode("utf-16"),
            TRUTH,
            {},
            "predictions.csv is not UTF-8 text; save it as UTF-8 (in Excel: save as CSV UTF-8)",
        ),
        (PREDICTED, "path,class\na.jpg,möwe\n".encode("cp1252"), {}, "as UTF-8 (in Excel: save as CSV UTF-8)"),
        (PREDICTED, TRUTH.replace("cat", "Kätzchen").encode("latin-1"), {}, "truth.csv is not UTF-8 text"),
        (b"\x89PNG\r\n\x1a\n\x00\x01", TRUTH, {}, "predictions.csv is a binary file, such as an image"),
        (PREDICTED, b"PK\x03\x04\x00\xe4", {}, "truth.csv is a binary file"),
        (PREDICTED, TRUTH.replace(",1\n", ",maybe\n", 1), {}, "truth.csv line 2: old is 'maybe', but expected 0 or 1"),
        (PREDICTED, TRUTH.replace("cat,1", "cat,0", 1), {}, "marks the class 'cat' both Old and New"),
        (PREDICTED, TRUTH, {"old": ["cta"]}, "--old is 'cta', which is neither a file nor a class of"),
        (PREDICTED, TRUTH, {"old": []}, "lists no class"),
        (PREDICTED, TRUTH, {"old": ["CAT"]}, "; did you mean 'cat'?"),
        (PREDICTED, TRUTH.replace("cat", '"c\na\x1bt"'), {"old": ["c a t"]}, r"; did you mean 'c\na\x1bt'?"),
        (PREDICTED, TRUTH.replace("cat", "c\0at", 1), {}, "truth.csv line 2 contains a NUL byte"),
        (PREDICTED, TRUTH.replace("cat", '"c\nat"').replace("1\n", "0\n", 1), {}, r"marks the class 'c\nat' both"),
        (PREDICTED, TRUTH, {"clusters": 2}, "has 3 clusters, but --clusters is 2"),
        (PREDICTED, TRUTH, {"set": "test"}, "has no column role, so --set test cannot be used"),
        (PREDICTED, TRUTH.replace("old", "role"), {}, "has no images with the role unlabelled, only 0, 1"),
        # Two columns of classes that differ, as where one of them was edited.
        (
            NAMED.replace("b.jpg,7,cat", "b.jpg,7,new 3"),
            TRUTH,
            {},
            "predictions.csv has the columns class and name, which name different classes: line 2 has '7' and 'cat', "
            "line 3 has '7' and 'new 3'; keep the correct column and delete the other",
        ),
        (NAMED.replace("new 1", "new 3"), TRUTH, {}, "line 4 has '3' and 'new 3', line 6 has '1' and 'new 3'; keep"),
        (
            NAMED.replace("class,name", "name,label").replace("new 1", "cat"),
            TRUTH,
            {},
            "the columns label and name, which",
        ),
        (
            NAMED.replace("class,name", "predicted,pred").replace("new 1", "cat"),
            TRUTH,
            {},
            "has the columns predicted and pred, which name different classes: line 2 has '7' and 'cat', line 6 has",
        ),
        (
            PREDICTED,
            NAMED.replace("name", "class_name").replace("new 1", "new 3"),
            {},
            "truth.csv has the columns class and class_name, which name",
        ),
        (
            PREDICTED,
            NAMED.replace("class,name", "class_id,class").replace("b.jpg,7,cat", "b.jpg,7,dog"),
            {},
            "truth.csv has the columns class_id and class, which name different classes: line 2 has '7' and 'cat'",
        ),
        (
            PREDICTED,
            NAMED.replace("name", "true_class").replace("new 1", "cat"),
            {},
            "the columns class and true_class",
        ),
    ],
)
def test_refused(
    tmp_path: Path, predictions: str | bytes, truth: str | bytes, options: dict[str, Any], words: str
) -> None:
    with pytest.raises(UserError) as raised:
        evaluate(*written(tmp_path, predictions, truth), **options)
    assert words in str(raised.value)
    assert "\n" not in str(raised.value)


OF_DISCOVER = (
    "path,class,name,confidence,nearest,score\na.jpg,0,cat,0.9,x.jpg,0.8\nb.jpg,0,cat,0.9,y.jpg,0.8\n"
    "c.jpg,1,new-1,0.9,x.jpg,0.8\n"
)


OF_PREDICT = OF_DISCOVER.replace("score\n", "score,none_of_these\n").replace("0.8\n", "0.8,0\n")


@pytest.mark.parametrize(
    ("truth", "columns"),
    [
        (OF_DISCOVER, "confidence and nearest"),
        (OF_PREDICT, "confidence and nearest"),
        (PREDICTED, "predicted"),
        (PREDICTED.replace("predicted", "Pred"), "pred"),
        ("id,path,predicted,matched_class,old\n0,a.jpg,3,1,1\n", "predicted"),
    ],
)
def test_predictions_are_refused_as_truth(tmp_path: Path, truth: str, columns: str) -> None:
    first, second = written(tmp_path, TRUTH, truth)
    with pytest.raises(UserError) as raised:
        evaluate(first, second)
    assert str(raised.value) == (
        f"{second} contains predictions (columns {columns}); give the predictions first and the truth second"
    )


def test_a_table_with_predictions_and_truth_is_accepted_as_truth(tmp_path: Path) -> None:
    both = "path,pred,class\na.jpg,1,cat\nb.jpg,2,dog\n"
    assert scores(evaluate(*written(tmp_path, both, both))) == [100, None, None]
    files = written(tmp_path, PREDICTED, "path,true_class,predicted\n" + "".join(f"{i}.jpg,cat,1\n" for i in "abcde"))
    assert evaluate(*files)["n"] == 5


def test_images_that_a_discovery_does_not_predict(tmp_path: Path) -> None:
    """`discover` predicts only the unlabelled images and `predict` all images, so the advice differs."""
    more = TRUTH + "x.jpg,cat,1\ny.jpg,cat,1\n"
    files = written(tmp_path, OF_DISCOVER, more)
    lacks = f"{files[0]} lacks 4 of the 7 images of {files[1]}, first 'd.jpg'; "
    with pytest.raises(UserError) as raised:
        evaluate(*files)
    assert str(raised.value) == (
        f"{lacks}add --allow-missing to score the others (discover only predicts the unlabelled images)"
    )
    assert evaluate(*files, allow_missing=True)["n"] == 3
    with pytest.raises(UserError) as raised:
        evaluate(*written(tmp_path, OF_PREDICT, more))
    assert str(raised.value) == f"{lacks}predict them too, or add --allow-missing to score the others"


def test_labels_of_a_discovery_are_refused_as_truth(tmp_path: Path) -> None:
    predictions, labels = written(tmp_path, OF_DISCOVER, "path,class\nw.jpg,cat\n./y.jpg,cat\n")
    with pytest.raises(UserError) as raised:
        evaluate(predictions, labels, allow_missing=True)
    assert str(raised.value) == (
        f"{labels} has no image of {predictions}, only labelled ones, such as 'y.jpg', which discover does "
        "not predict; give the true classes of the unlabelled images"
    )
    with pytest.raises(UserError, match=r"no image in common by path, as 'a.jpg' and 'z.jpg'; use the same names"):
        evaluate(*written(tmp_path, OF_DISCOVER, "path,class\nz.jpg,cat\n"))


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    predictions, truth = written(tmp_path)
    with pytest.raises(UserError, match=r"nowhere.csv does not exist; check its name and folder"):
        evaluate(tmp_path / "nowhere.csv", truth)
    with pytest.raises(UserError, match=r"cannot be read \(Is a directory\)"):
        evaluate(predictions, tmp_path)
    with pytest.raises(UserError, match="the predictions has no row"):
        evaluate(pd.DataFrame({"path": [], "predicted": []}), truth)


def test_missing_values_of_a_frame(tmp_path: Path) -> None:
    frame = pd.DataFrame({"path": ["a.jpg", "b.jpg"], "predicted": [1, np.nan]})
    with pytest.raises(UserError, match="the predictions line 1: predicted is empty"):
        evaluate(frame, written(tmp_path)[1])


def test_a_cluster_of_its_own_for_every_image() -> None:
    images = pd.DataFrame({"id": range(30_000), "predicted": range(30_000)})
    truth = pd.DataFrame({"id": range(30_000), "class": [i % 7 for i in range(30_000)], "old": [0] * 30_000})
    found = evaluate(images, truth)
    assert (found["clusters_found"], scores(found)) == (
        30_000,
        [pytest.approx(100 * 7 / 30_000), None, pytest.approx(7 / 300)],
    )
