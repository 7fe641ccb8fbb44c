"""Names of rows: valid ones, and error messages for others."""

from __future__ import annotations

from typing import Any

import pytest

from ctxgcd.config import Params
from ctxgcd.pipeline.resolve import resolve
from ctxgcd.pipeline.rows import parse_row
from tests.helpers.params import BOTH
from tests.helpers.refusals import error_of

ROWS: list[tuple[str, tuple[str, str | None, dict[str, Any], list[str], list[str]]]] = [
    ("kmeans", ("kmeans", None, {}, [], [])),
    ("simgcd", ("simgcd", None, {}, [], [])),
    ("full-paper", ("full", "paper", {}, BOTH, [])),
    ("full-released", ("full", "released", {}, BOTH, [])),
    ("full-mended", ("full", "mended", {}, BOTH, [])),
    ("full-paper+lambda_n=0.3", ("full", "paper", {"lambda_n": 0.3}, BOTH, [])),
    ("full-paper-without-n", ("full", "paper", {}, ["L_c"], [])),
    ("full-paper-without-c", ("full", "paper", {}, ["L_n"], [])),
    ("full-paper-zero", ("full", "paper", {}, BOTH, BOTH)),
    ("full-mended-without-n", ("full", "mended", {}, ["L_c"], [])),
    ("full-paper+k=20", ("full", "paper", {"k": 20}, BOTH, [])),
    ("full-paper+lambda_n=0.3+lambda_c=0.5", ("full", "paper", {"lambda_n": 0.3, "lambda_c": 0.5}, BOTH, [])),
    ("full-paper+lambda_n=1e-05", ("full", "paper", {"lambda_n": 1e-05}, BOTH, [])),
    ("full-paper+lambda_n=1e-05-without-c", ("full", "paper", {"lambda_n": 1e-05}, ["L_n"], [])),
    ("full-paper+lr=1.0e-3+k=5-zero", ("full", "paper", {"lr": 0.001, "k": 5}, BOTH, BOTH)),
    ("full-paper+settings=stated", ("full", "paper", {"settings": "stated"}, BOTH, [])),
    ("full-paper+settings=stated-without-n", ("full", "paper", {"settings": "stated"}, ["L_c"], [])),
    ("simgcd+settings=stated", ("simgcd", None, {"settings": "stated"}, [], [])),
    ("simgcd+lr=0.05", ("simgcd", None, {"lr": 0.05}, [], [])),
    ("full-paper+reciprocal=dataset", ("full", "paper", {"reciprocal": "dataset"}, BOTH, [])),
]


@pytest.mark.parametrize(("row", "parts"), ROWS, ids=[row for row, _ in ROWS])
def test_rows_that_can_be_read(params: Params, row: str, parts: Any) -> None:
    assert parse_row(row) == (*parts, [])
    resolved = resolve(params, "cub", row, 0)
    assert resolved["row"] == row
    assert resolved["method"] == parts[0]
    for key, value in parts[2].items():
        if key in resolved:
            assert resolved[key] == value
            assert type(resolved[key]) is type(value)


REFUSED_ROWS: list[tuple[str, list[str]]] = [
    ("full-papr", ["unknown variant of full 'papr'", "did you mean 'paper'?", "paper, released, mended"]),
    ("full", ["row 'full' names no variant; write full-paper, full-released, full-mended"]),
    ("full-realeased", ["did you mean 'released'?"]),
    ("ful-paper", ["unknown method 'ful'", "did you mean 'full'?"]),
    ("simgdc", ["unknown method 'simgdc'", "did you mean 'simgcd'?", "kmeans, gcd, simgcd, full"]),
    ("k-means", ["unknown method 'k'", "kmeans, gcd, simgcd, full"]),
    ("", ["unknown method ''"]),
    ("simgcd-paper", ["simgcd has neither variants nor terms to leave out"]),
    ("simgcd-without-n", ["simgcd has neither variants nor terms to leave out", "write 'simgcd'"]),
    ("kmeans-zero", ["kmeans has neither variants nor terms to leave out"]),
    ("full-paper-without-m", ["is invalid", "-without-n|-without-c|-zero"]),
    ("full-paper-without-n-without-c", ["is invalid"]),
    ("full-paper+lambda_n", ["is invalid", "+key=value"]),
    ("full-paper+lambda_n=0.3-without-n", ["sets lambda_n", "-without-n already changes L_n", "remove one"]),
    ("full-paper+lambda_c=0.3-zero", ["sets lambda_c", "-zero already changes L_c"]),
    ("simgcd+eagc", ["is invalid: '+eagc' has no value; write METHOD[+key=value...]"]),
    ("full-paper+lambda_n=", ["is invalid"]),
    ("full-paper lambda_n=0.3", ["is invalid"]),
    ("full-paper+lamda_n=0.3", ["unknown parameter 'lamda_n'", "did you mean 'lambda_n'?"]),
    ("full-paper+settings=statd", ["unknown settings 'statd'", "did you mean 'stated'?"]),
    ("simgcd+k=8", ["simgcd does not read k, which is a value of full, dccl; valid: tail,"]),
    ("simgcd+T_warm=8", ["simgcd does not read T_warm, which is a value of full"]),
    (
        "kmeans+lr=0.1",
        [
            "kmeans does not read lr, which is a value of gcd, simgcd, full, rsplus, unoplus, orca, xcon, dccl, "
            "promptcal; valid: precision"
        ],
    ),
    ("full-paper+restarts=3", ["full does not read restarts, which is a value of kmeans"]),
    ("full-paper+lambda_n=-0.1", ["lambda_n", "greater than or equal to 0", "found -0.1"]),
    ("full-paper+lambda_n=NaN", ["lambda_n", "finite", "found nan"]),
    ("full-paper+lambda_n=Infinity", ["lambda_n", "finite", "found inf"]),
    ("full-paper+lambda_n=much", ["lambda_n", "number", "found 'much'"]),
    ("full-paper+k=8.5", ["k", "integer", "found 8.5"]),
    ("full-paper+reciprocal=data", ["reciprocal", "'batch'", "'dataset'"]),
]


@pytest.mark.parametrize(("row", "words"), REFUSED_ROWS, ids=[row or "empty" for row, _ in REFUSED_ROWS])
def test_rows_that_are_refused(params: Params, row: str, words: list[str]) -> None:
    sentence = error_of(lambda: resolve(params, "cub", row, 0))
    assert not [word for word in words if word not in sentence], sentence
    assert row in sentence


def test_unknown_benchmark(params: Params) -> None:
    assert "did you mean 'scars'?" in error_of(lambda: resolve(params, "cars", "simgcd", 0))
