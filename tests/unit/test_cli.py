"""The `ctxgcd` command."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from ctxgcd.cli import differences
from ctxgcd.config import Params
from ctxgcd.errors import UserError

ROOT = Path(__file__).resolve().parents[2]


def ctxgcd(*words: str, at: Path = ROOT) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "ctxgcd.cli", *words]
    return subprocess.run(command, cwd=at, capture_output=True, text=True, check=False)


def test_difference_of_settings() -> None:
    done = ctxgcd("diff", "paper", "released")
    assert done.returncode == 0
    assert [line.split() for line in done.stdout.splitlines()] == [
        ["value", "paper", "released"],
        ["k", "10", "4"],
        ["lambda_c", "0.3", "0.1"],
        ["context_delay", "0", "1"],
    ]
    of_cub = ctxgcd("diff", "paper", "released", "--benchmark", "cub").stdout
    assert ["k", "10", "8"] in [line.split() for line in of_cub.splitlines()]
    assert ctxgcd("diff", "paper", "paper").stdout == "paper and paper have the same values\n"


def test_difference_of_rows(params: Params) -> None:
    lines = differences(params, "full-paper", "full-paper+tau=1.0", "cub").splitlines()
    assert [line.split() for line in lines] == [
        ["value", "full-paper", "full-paper+tau=1.0"],
        ["tau", "0.5", "1.0", "not", "in", "the", "paper"],
    ]
    text = differences(params, "simgcd", "full-mended", "cub")
    assert [line.split()[1:3] for line in text.splitlines() if line.startswith("lambda_c")] == [["-", "0.3"]]


@pytest.mark.parametrize(
    ("names", "benchmark", "words"),
    [
        (("paper", "realeased"), None, "did you mean 'released'?"),
        (("full-paper", "simgcd"), None, "is a row, whose values depend on the benchmark; add --benchmark NAME"),
        (("full-paper", "simgdc"), "cub", "did you mean 'simgcd'?"),
        (("paper", "full-released"), "cub", "give two of one kind"),
        (("paper", "released"), "cubb", "did you mean 'cub'?"),
    ],
)
def test_refused(params: Params, names: tuple[str, str], benchmark: str | None, words: str) -> None:
    with pytest.raises(UserError) as raised:
        differences(params, *names, benchmark)
    assert words in str(raised.value)
    assert "\n" not in str(raised.value)


def test_away_from_the_project(tmp_path: Path) -> None:
    done = ctxgcd("diff", "paper", "released", at=tmp_path)
    assert done.returncode == 2
    assert done.stderr == "error: params.yaml does not exist here; run from the folder that holds it\n"
