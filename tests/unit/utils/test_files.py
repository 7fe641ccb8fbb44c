"""Damaged files give an error message with the file and advice."""

from __future__ import annotations

import json
import re
import runpy
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from ctxgcd.benchmarks.split_file import DTYPES, read_split, write_split
from ctxgcd.errors import UserError
from ctxgcd.evaluation.score_run import PREDICTION_COLUMNS
from ctxgcd.pipeline import code
from ctxgcd.plots.embedding import read_features
from ctxgcd.utils.files import read_object, read_rows, refusals_named, require_writable, write_text
from tests.helpers.places import ROOT

AGAIN = "is damaged; delete it and run the same command again"
IMAGES = range(8)


def refused(read: Callable[[], object], file: Path) -> bool:
    """Return whether the call raises a UserError that names the file."""
    with pytest.raises(UserError, match=f"^{re.escape(str(file))} {AGAIN}$"):
        read()
    return True


@pytest.mark.parametrize("content", [b"", b'{"K": 3, "see', b"[]", b"3", b'{"k": 3}', b"\xff\x00\x80"])
def test_a_damaged_object(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "a.json").write_bytes(content)
    assert refused(lambda: read_object(tmp_path / "a.json", "K"), tmp_path / "a.json")


@pytest.mark.parametrize(
    "content", [b"", b"\n", b"id,n\n1,2\n2", b"id,n\n1,23", b"id\n1\n", b"id,n\n1,x\n", b"\xff\x00\n"]
)
def test_damaged_rows(tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "a.csv"
    file.write_bytes(content)
    assert refused(lambda: read_rows(file, usecols=["id", "n"], dtype="int64"), file)


def test_a_folder_and_a_missing_file(tmp_path: Path) -> None:
    for name in ("", "absent"):
        with pytest.raises(
            UserError, match=r"cannot be read or written \((Is a directory|No such file or directory)\)"
        ):
            read_object(tmp_path / name)


def split() -> pd.DataFrame:
    of = {"path": "a/b.jpg", "part": "train", "role": "unlabelled", "class_id": 0, "class_name": "NA", "old": 1}
    return pd.DataFrame({"id": IMAGES, **of}).astype(DTYPES)


@pytest.mark.parametrize("hashed", [True, False], ids=["beside its sum", "alone"])
def test_a_split_is_refused_wherever_it_was_cut(tmp_path: Path, hashed: bool) -> None:
    file = tmp_path / "a.csv"
    write_split(split(), file, tmp_path / ("a.sha256" if hashed else "elsewhere"))
    pd.testing.assert_frame_equal(read_split(file), split())
    whole = file.read_bytes()
    for length in range(len(whole)):
        cut = whole[:length]
        file.write_bytes(cut)
        if hashed or not (cut.startswith(whole[: whole.index(b"\n") + 1]) and cut.endswith(b"\n")):
            assert refused(lambda: read_split(file), file)


def made(run: Path) -> None:
    """The files of a run that figures read."""
    run.mkdir(parents=True)
    (run / "history.csv").write_text("epoch,loss\n0,2.5\n")
    (run / "run.json").write_text('{"parameters": {}, "epoch": 1}')
    rows = {**dict.fromkeys(PREDICTION_COLUMNS, 0), "id": IMAGES, "path": "a.jpg"}
    pd.DataFrame(rows)[PREDICTION_COLUMNS].to_csv(run / "predictions.csv", index=False)
    pd.DataFrame({"id": IMAGES, "predicted": 0}).to_csv(run / "assignments.csv", index=False)
    with (run / "embeddings.npz").open("wb") as file:
        np.savez_compressed(file, ids=np.array(IMAGES), features=np.random.default_rng(0).random((8, 3)))
    write_split(split(), run / "split.csv", run / "split.sha256")


@pytest.mark.parametrize("name", ["predictions.csv", "embeddings.npz"])
@pytest.mark.parametrize("share", [0.0, 0.3, 0.99])
def test_cut_files_of_the_embedding(tmp_path: Path, name: str, share: float) -> None:
    made(tmp_path / "run")
    files = tmp_path / "run/predictions.csv", tmp_path / "run/embeddings.npz"
    assert read_features(*files)[2].shape == (8, 3)
    whole = (tmp_path / "run" / name).read_bytes()
    (tmp_path / "run" / name).write_bytes(whole[: int(share * len(whole))])
    assert refused(lambda: read_features(*files), tmp_path / "run" / name)


def test_outputs_are_checked_before_the_work(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("as it was")
    for name in ("file", "new.csv", "a/b/new.csv", "n" * 255):  # the longest name; the temporary one must not be longer
        require_writable(tmp_path / name)
        assert [path.name for path in tmp_path.iterdir()] == ["file"]
    assert (tmp_path / "file").read_text() == "as it was"
    write_text(tmp_path / ("n" * 255), "x")
    long = "n" * 256
    for name in (long, f"a/{long}/x"):
        with pytest.raises(UserError, match=rf"{name} cannot be read or written \(File name too long\)"):
            require_writable(tmp_path / name)
    for name in ("file/x", "file/x/y"):
        with pytest.raises(
            UserError, match="file is a file, so no folder can be created below it; choose another path"
        ):
            require_writable(tmp_path / name)
    (tmp_path / "link").symlink_to("nowhere")
    for name in ("link", "link/x"):
        with pytest.raises(
            UserError, match="link is a link to nowhere, which does not exist; delete the link or choose"
        ):
            require_writable(tmp_path / name)
    with pytest.raises(UserError, match="is a folder; give the path of a file"):
        require_writable(tmp_path)
    assert not (tmp_path / "a").exists()


def test_only_errors_of_the_file_system_become_user_errors(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"n cannot be read or written \(File name too long\); give a shorter name"):
        named(lambda: (tmp_path / ("n" * 300)).stat())
    with pytest.raises(FileNotFoundError):
        named(lambda: (tmp_path / "absent").stat())


def named(call: Callable[[], object]) -> None:
    with refusals_named():
        call()


SCRIPTS = {  # the arguments of each script, and the damaged file
    "make_table": ("metrics.json", "--request {} --stem out --metrics metrics.json --hashes x"),
    "summarize_scores": ("metrics.json", "--benchmark x --out out --metrics metrics.json --hashes x"),
    "draw_curves": ("history.csv", "--benchmark x --out out.png --histories history.csv"),
    "draw_embedding": (
        "embeddings.npz",
        "--benchmark x --run y --out out.png --split split.csv --predictions predictions.csv "
        "--embeddings embeddings.npz",
    ),
    "score_run": (
        "run.json",
        "--run run.json --assignments assignments.csv --split split.csv "
        f"--code {code.script('score_run').hash} --metrics out.json "
        "--predictions out.csv --test-predictions test.csv",
    ),
}


@pytest.mark.parametrize("script", SCRIPTS)
def test_a_script_prints_only_the_message(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], script: str
) -> None:
    made(tmp_path / "run")
    (tmp_path / "run/metrics.json").write_text(json.dumps({"schema": 1}))
    name, words = SCRIPTS[script]
    (tmp_path / "run" / name).write_bytes(b"")
    file = str(ROOT / f"workflow/scripts/{script}.py")
    monkeypatch.chdir(tmp_path / "run")
    monkeypatch.setattr(sys, "argv", [file, *words.split()])
    with pytest.raises(SystemExit, match=r"^2$"):
        runpy.run_path(file, run_name="__main__")
    assert capsys.readouterr().err == f"error: {name} {AGAIN}\n"
    assert not list((tmp_path / "run").glob("out*"))
