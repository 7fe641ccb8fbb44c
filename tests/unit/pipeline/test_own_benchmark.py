"""`ctxgcd benchmark` adds a folder to params.yaml, with values that fit its images, and changes nothing else."""

from __future__ import annotations

import difflib
import shutil
from pathlib import Path
from typing import Any

import pytest
import yaml

from ctxgcd import api
from ctxgcd.benchmarks.check import check_section
from ctxgcd.config import Params, parse, read
from ctxgcd.pipeline.few_images import fitted
from ctxgcd.pipeline.resolve import resolve
from tests.helpers.layouts import Painter
from tests.helpers.places import ROOT
from tests.helpers.refusals import error_of

CLASSES = ("ant", "bee", "cat", "dög & co")
SPLIT = {"seed": 0, "labelled_share": 0.5}


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with params.yaml and four class folders of ten images."""
    shutil.copy(ROOT / "params.yaml", tmp_path)
    painter = Painter(0)
    for class_id, name in enumerate(CLASSES):
        for number in range(10):
            painter.save(tmp_path / "own" / name / f"{number}.png", class_id, 20, 30)
    (tmp_path / "own/labelled.txt").write_text("cat\nant\n", encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def added_lines(before: str, after: str) -> list[str]:
    """Return the added lines; no line may be removed."""
    lines = [*difflib.ndiff(before.split("\n"), after.split("\n"))]
    assert not [line for line in lines if line.startswith("- ")]
    return [line[2:] for line in lines if line.startswith("+ ")]


def test_a_folder_becomes_a_benchmark(place: Path) -> None:
    before = (place / "params.yaml").read_text(encoding="utf-8")
    made = api.benchmark("mine", "own")
    after = (place / "params.yaml").read_text(encoding="utf-8")
    # 605 steps as cub50, of batches of 16 of 40 images
    assert added_lines(before, after) == [
        "  main_mine: [mine]",
        "  mine:",
        "    reader: folder",
        "    path: own",
        "    listing: ''",
        "    labelled: labelled.txt",
        "    classes: 4",
        "    images: {train: 40, test: 0}",
        "    K: true",
        "    protocol: cub50",
        "    overrides: {batch_size: 16, epochs: 302}",
        "    methods:",
        "      gcd: {projector_width: 512, projection_dim: 256, head_dim: 4096}",
        "      simgcd: {projector_width: 512, projection_dim: 256, teacher_warmup_epochs: 60}",
        "      full: {T_warm: 75, k: 8, neighbour_images: 16}",
        "      rsplus: {first_drop: 128, second_drop: 257, ramp_epochs: 226}",
        "      unoplus: {projector_width: 512, projection_dim: 256, warmup_epochs: 15}",
        "      xcon: {projector_width: 512, projection_dim: 256, head_dim: 4096, batch_size: 16}",
        "      dccl: {projector_width: 512, projection_dim: 256, head_dim: 4096, warmup_epochs: 15, ramp_epochs: 226, "
        "k: 8}",
        "    settings: {}",
    ]
    assert (made["table"], made["old"]) == ("main_mine", 2)
    assert made["adapted"][0] == "batch_size is reduced from 128 to 16, because there are only 40 images"
    params = read(place / "params.yaml")
    assert params.benchmarks["mine"].model_dump() == made["section"]
    assert check_section({"benchmark": "mine", **made["section"], **SPLIT}).ready
    for row in params.rows.main:  # every row of its table is possible
        assert resolve(params, "mine", row, 0)["classes"] == 4


def test_values_are_those_of_a_discovery(place: Path, params: Params) -> None:
    """The same function adapts both; many images keep the values of the other benchmark."""
    api.benchmark("mine", "own")
    found = resolve(read(place / "params.yaml"), "mine", "full-paper", 0)
    steps = 55 * (1500 // 128)
    values, _ = fitted(resolve(params, "cub50", "full-paper", 0) | {"steps": steps}, 40)
    keys = ("batch_size", "epochs", "k", "neighbour_images", "teacher_warmup_epochs", "T_warm")
    assert {key: found[key] for key in keys} == {key: values[key] for key in keys}
    same, _ = fitted(resolve(params, "cub50", "rsplus", 0) | {"steps": steps}, 1500)
    assert [same[key] for key in ("epochs", "first_drop", "second_drop", "ramp_epochs")] == [55, 23, 47, 41]


def test_files_elsewhere_and_other_line_breaks(place: Path, tmp_path: Path) -> None:
    """A file that is not in the folder is absolute, and so is a folder that is not beside params.yaml."""
    (place / "known.txt").write_text("bee\n", encoding="utf-8")
    (place / "deep").mkdir()
    text = (place / "params.yaml").read_text(encoding="utf-8").replace("\n", "\r\n")
    (place / "deep/params.yaml").write_bytes(text.encode())
    made = api.benchmark("mine", "own", labelled="known.txt", like="fashion", params="deep/params.yaml")
    assert made["section"]["labelled"] == str(place / "known.txt")
    assert made["section"]["path"] == str(place / "own")
    after = (place / "deep/params.yaml").read_bytes().decode()
    assert all(line.endswith("\r") for line in added_lines(text, after))
    assert parse(yaml.safe_load(after)).benchmarks["mine"].protocol == "fashion"


def in_one_line(text: str) -> str:
    """Write the section `tables` in one line."""
    head, tail = text[: text.index("\ntables:")], text[text.index("\n# The tables of") :]
    return f"{head}\ntables: {yaml.safe_load(text)['tables']}\n{tail}"


@pytest.mark.parametrize(
    ("words", "change", "says"),
    [
        ({"name": "a b"}, None, "the name 'a b' has other characters than letters, digits and _; choose another name"),
        (
            {"name": "cub50"},
            None,
            "params.yaml has benchmarks.cub50 already; choose another name, or delete",
        ),
        ({"name": "ssb"}, None, "params.yaml has tables.main_ssb already; choose another name, or"),
        ({"like": "cub5"}, None, "--like: unknown benchmark 'cub5'; did you mean 'cub50'?"),
        (
            {"folder": "nowhere"},
            None,
            "nowhere is not a folder; give the folder that contains one folder of",
        ),
        ({"folder": "own/ant"}, None, "own/ant contains no folder with images; add one folder of images per class"),
        (
            {"labelled": "known.txt"},
            None,
            "own/known.txt is missing; write the classes that have labels into it, one per line (for example ant, bee)",
        ),
        ({"labelled": "ant/0.png"}, None, "own/ant/0.png is a binary file"),
        ({"params": "other.yaml"}, None, "other.yaml does not exist; run the command from the folder that contains it"),
        (
            {},
            in_one_line,
            "params.yaml: the section tables does not start with a line 'tables:' and indented lines below it",
        ),
    ],
)
def test_bad_input_is_refused_in_one_sentence(place: Path, words: dict[str, Any], change: Any, says: str) -> None:
    file = place / "params.yaml"
    if change:
        file.write_text(change(file.read_text(encoding="utf-8")), encoding="utf-8")
    before = file.read_bytes()
    given = {"name": "mine", "folder": "own"} | words
    assert says in error_of(lambda: api.benchmark(**given))
    assert file.read_bytes() == before


def test_the_command_says_what_it_did(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from ctxgcd.cli.command import parser

    arguments = parser().parse_args(["benchmark", "mine", "own"])
    arguments.call(arguments)
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == (
        "params.yaml: added benchmarks.mine (40 images of 4 classes, 2 of them labelled) and tables.main_mine"
    )
    assert lines[-1] == "next: snakemake check_data results/splits/mine.csv, then snakemake results/main_mine.csv"
    assert error_of(lambda: arguments.call(arguments)).startswith("params.yaml has benchmarks.mine already")
