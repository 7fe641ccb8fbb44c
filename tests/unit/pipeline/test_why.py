"""The reason why a run would be made again."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ctxgcd.config import Params
from ctxgcd.pipeline.resolve import resolve
from ctxgcd.pipeline.run_cache import FILES
from ctxgcd.pipeline.runs import Run
from ctxgcd.pipeline.why import difference


@pytest.mark.parametrize(
    ("made_as", "words"),
    [
        ("simgcd+loss_group=64", "loss_group is 0, was 64"),
        ("simgcd+new_by=kmeans", 'new_by is "classifier", was "kmeans"'),
        ("gcd", "entropy_weight is 2.0, was absent, "),
    ],
)
def test_a_value_at_its_default_is_shown(params: Params, tmp_path: Path, made_as: str, words: str) -> None:
    run = Run("cub", "simgcd", 0)
    for name in FILES:
        (tmp_path / run.file(name)).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / run.file(name)).touch()
    made = {"parameters": resolve(params, "cub", made_as, 0)}
    (tmp_path / run.file("run.json")).write_text(json.dumps(made))
    assert words in difference(params, run, tmp_path)
