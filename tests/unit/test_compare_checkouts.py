"""Comparing two checkouts: the runs, differences, and refused folders."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch

from ctxgcd.config import Params
from ctxgcd.pipeline.resolve import resolve
from tests.helpers.places import ROOT
from workflow.scripts.compare_checkouts import ROWS, WAYS, compare


@pytest.mark.parametrize("way", WAYS)
def test_every_row_can_be_made_in_every_way(way: str, params: Params) -> None:
    made = {row: WAYS[way].row(row) for row in (*ROWS, "full-paper-without-n", "full-mended-zero")}
    assert [row for row, name in made.items() if not name] == (["kmeans"] if WAYS[way].fresh else [])
    bank = params.protocols["fashion"].view_bank
    for name in filter(None, made.values()):
        resolved = resolve(params, "fashion", name, 0)
        assert resolved.get("view_bank") == (None if name.startswith("kmeans") else 0 if WAYS[way].fresh else bank)
        assert resolved["precision"] == ("bf16" if way == "bf16" else "float32")


def write(side: Path, tensors: dict[str, torch.Tensor], predicted: int = 1, version: int = 1) -> None:
    folder = side / "made/protocol/simgcd/seed0"
    folder.mkdir(parents=True)
    torch.save({"kind": "ctxgcd-model", "code": version, "network": tensors}, folder / "final.pt")
    (folder / "assignments.csv").write_text(f"id,predicted\n0,{predicted}\n")


NETWORK = {"head.weight": torch.tensor([[0.0, torch.nan, 1.0]]), "head.bias": torch.tensor([1.0])}


@pytest.mark.parametrize(
    ("changed", "predicted", "line"),
    [
        ({}, 1, "equal (3)"),
        ({"head.bias": torch.tensor([1.0000001])}, 1, "DIFFERENT (1 of 3): network.head.bias"),
        ({"head.bias": torch.tensor([1.0], dtype=torch.float64)}, 1, "DIFFERENT (1 of 3): network.head.bias"),
        ({"head.weight": torch.tensor([[-0.0, torch.nan, 1.0]])}, 1, "DIFFERENT (1 of 3): network.head.weight"),
        ({"head.weight": NETWORK["head.weight"].T}, 1, "DIFFERENT (1 of 3): network.head.weight"),
        ({"new": torch.zeros(0)}, 1, "DIFFERENT (1 of 4): network.new"),
        ({}, 2, "DIFFERENT (1 of 3): assignments.csv"),
    ],
)
def test_any_bit_and_any_name_counts(
    changed: dict[str, torch.Tensor], predicted: int, line: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write(tmp_path / "base", NETWORK)
    write(tmp_path / "other", NETWORK | changed, predicted, version=2)  # the code's hash may differ
    assert compare({"protocol": ["simgcd/seed0"]}, tmp_path / "base", tmp_path / "other") is line.startswith("equal")
    assert f"simgcd/seed0: {line}\n" in capsys.readouterr().out


@pytest.mark.parametrize("checkout", ["no-such-revision", "docs"])
def test_a_folder_without_a_checkout_is_refused(checkout: str) -> None:
    command = [sys.executable, "workflow/scripts/compare_checkouts.py", ".", checkout]
    done = subprocess.run(command, cwd=ROOT, env={"PYTHONPATH": str(ROOT)}, capture_output=True, text=True)
    assert done.returncode == 2
    assert done.stderr.startswith(f"error: {'docs contains no Snakefile' if checkout == 'docs' else repr(checkout)}")
    assert done.stderr.count("\n") == 1
