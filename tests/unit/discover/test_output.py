"""The folder of a discovery: its results are not deleted before other results are complete."""

from __future__ import annotations

import json
import os
import re
import shutil
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from ctxgcd.discover.output import RESULTS, Output
from ctxgcd.errors import UserError

OLD, NEW = {"images": "1", "seed": 0}, {"images": "1", "seed": 1}
WRITTEN = {"old": set(RESULTS), "new": set(RESULTS) - {"unreadable.csv"}}  # all images can be read now


def compute(out: Path, request: dict[str, Any], name: str, images: str = "images-1") -> None:
    """Make the results of a request; all files contain `name`."""
    output = Output(out, request)
    output.check()
    output.claim()
    output.begin()
    place = output.folder(output.folder(output.work / images) / f"run-{name}")
    (place / "state").write_text(name)
    with output.replaced(place, "this code") as (new, facts):
        facts["name"] = name
        for result in WRITTEN[name]:
            (new / result).write_text(name)


def results(out: Path) -> dict[str, str]:
    return {name: (out / name).read_text() for name in RESULTS if (out / name).exists()}


def runs(out: Path) -> set[str]:
    return {path.name for path in out.glob("work/images-*/run-*")}


def test_other_results_replace_the_old_ones_and_their_work(tmp_path: Path) -> None:
    compute(tmp_path, OLD, "old")
    assert results(tmp_path) == dict.fromkeys(WRITTEN["old"], "old")
    compute(tmp_path, NEW, "new", "images-2")
    assert results(tmp_path) == dict.fromkeys(WRITTEN["new"], "new")
    assert {path.name for path in (tmp_path / "work").iterdir()} == {"images-2"}
    assert json.loads((tmp_path / "asked.json").read_text())["seed"] == 1


def test_results_that_fail_halfway_keep_the_old_ones(tmp_path: Path) -> None:
    compute(tmp_path, OLD, "old")
    output = Output(tmp_path, NEW)
    output.begin()
    place = output.folder(tmp_path / "work/images-2")
    with suppress(KeyboardInterrupt), output.replaced(place, "this code") as (new, _):
        (new / "predictions.csv").write_text("new")
        raise KeyboardInterrupt
    assert not new.exists()
    assert results(tmp_path) == dict.fromkeys(WRITTEN["old"], "old")
    assert runs(tmp_path) == {"run-old"}
    compute(tmp_path, OLD, "old")  # a repeated request keeps the results of the other one
    assert place.is_dir()


def test_incomplete_files_of_a_killed_call_are_deleted(tmp_path: Path) -> None:
    compute(tmp_path, OLD, "old")
    (tmp_path / "work/new/model").mkdir(parents=True)
    Output(tmp_path, OLD).begin()
    assert not (tmp_path / "work/new").exists()


def test_complete_results_of_the_same_request_and_code_are_found(tmp_path: Path) -> None:
    compute(tmp_path, OLD, "old")
    output, place = Output(tmp_path, OLD), tmp_path / "work/images-1/run-old"
    assert output.finished("this code", place) == {"name": "old"}
    assert Output(tmp_path, NEW).finished("this code", place) is None
    assert output.finished("this code", tmp_path / "work/images-1/run-new") is None  # of other weights, say
    assert output.finished("another", place) is None
    assert output.finished("this code") is None  # its place has to be compared
    shutil.rmtree(tmp_path / "work")
    assert output.finished("this code") == {"name": "old"}
    assert output.finished("another") is None
    (tmp_path / "report.html").unlink()
    assert output.finished("this code", place) is None


def test_differences_are_named_by_options_of_the_command(tmp_path: Path, capsys: Any) -> None:
    request = {"images": "1", "classes": 4, "preset": "quick", "crop": 96, "resize": 110, "seed": 0}
    compute(tmp_path, request, "old")
    Output(tmp_path, request | {"preset": "long", "crop": 224, "resize": 256}).begin()
    assert "with different preset, size; it is kept" in capsys.readouterr().out
    Output(tmp_path, request | {"lr": 0.1}).begin()  # of a version with another value
    assert "with different lr; it is kept" in capsys.readouterr().out


@pytest.mark.parametrize("number", range(1, len(WRITTEN["new"]) + 3))
@pytest.mark.parametrize("again", [OLD, NEW, {"images": "3"}], ids=["old", "new", "a third one"])
def test_a_call_killed_between_two_renames_is_completed(
    tmp_path: Path, number: int, again: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first rename makes the new results complete, and that of the record is the last one."""
    compute(tmp_path, OLD, "old")
    rename, done = os.replace, 0

    def killed(source: Path, target: Path) -> None:
        nonlocal done
        if "complete" in (Path(source).name, Path(source).parent.name, Path(target).name) or "complete/model" in str(
            source
        ):
            done += 1
            if done == number:
                raise KeyboardInterrupt
        rename(source, target)

    monkeypatch.setattr(os, "replace", killed)
    try:
        compute(tmp_path, NEW, "new", "images-2")
    except KeyboardInterrupt:
        pass
    else:
        assert number == len(WRITTEN["new"]) + 2  # complete, the results, the record
    monkeypatch.undo()
    Output(tmp_path, again).begin()
    whole = "old" if number == 1 else "new"
    assert results(tmp_path) == dict.fromkeys(WRITTEN[whole], whole)
    assert f"run-{whole}" in runs(tmp_path)
    assert json.loads((tmp_path / "asked.json").read_text())["seed"] == (OLD if number == 1 else NEW)["seed"]
    assert not (tmp_path / "work/complete").exists()


def test_work_of_a_request_is_stored_next_to_that_of_the_recorded_one(tmp_path: Path) -> None:
    """A third request deletes the work of the second one and keeps that of the first one."""
    compute(tmp_path, OLD, "old")
    for name in ("second", "third"):
        output = Output(tmp_path, {"images": name})
        output.begin()
        output.folder(output.folder(tmp_path / "work/images-1") / f"run-{name}")
    assert runs(tmp_path) == {"run-old", "run-third"}


def test_work_of_an_unfinished_request_is_kept_too(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    output = Output(tmp_path, OLD)
    output.claim()
    output.begin()
    output.folder(output.folder(tmp_path / "work/images-1") / "run-old")
    other = Output(tmp_path, NEW)
    other.begin()
    assert "contains a discovery with different seed; it is kept until this one is complete" in capsys.readouterr().out
    other.folder(tmp_path / "work/images-2")
    assert runs(tmp_path) == {"run-old"}


def test_a_folder_without_results_is_reused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Output(tmp_path, OLD).claim()
    Output(tmp_path, NEW).begin()
    assert json.loads((tmp_path / "asked.json").read_text()) == NEW
    assert capsys.readouterr().out == ""


def test_a_folder_of_an_earlier_version_is_kept_until_other_results_are_complete(tmp_path: Path) -> None:
    """Its record does not contain the folders that it uses, so all are kept."""
    for name in ("images-0/run-earlier", "images-1"):
        (tmp_path / "work" / name).mkdir(parents=True)
    (tmp_path / "asked.json").write_text(json.dumps(OLD))
    (tmp_path / "predictions.csv").write_text("old")
    output = Output(tmp_path, NEW)
    output.begin()
    output.folder(tmp_path / "work/images-2")
    assert runs(tmp_path) == {"run-earlier"}
    compute(tmp_path, NEW, "new", "images-2")
    assert results(tmp_path) == dict.fromkeys(WRITTEN["new"], "new")
    assert [path.name for path in tmp_path.glob("work/images-*")] == ["images-2"]


def test_disk_space_for_both_is_checked(tmp_path: Path) -> None:
    compute(tmp_path, OLD, "old")
    with pytest.raises(UserError, match=r"packing 9 images needs [\d,]+ MB more; free space"):
        Output(tmp_path, OLD).require_space(2**60, "packing 9 images")
    message = f"{re.escape(str(tmp_path))} has .* packing 9 images in addition to the discovery that is kept there"
    with pytest.raises(UserError, match=message):
        Output(tmp_path, NEW).require_space(2**60, "packing 9 images")
