"""The bench: rates, ratios, parts of a step, operations, figures. The measured values are not tested."""

from __future__ import annotations

import sys
import time
from pathlib import Path

import pandas as pd
import pytest
import torch
from PIL import Image

from ctxgcd.bench import shared
from ctxgcd.bench.budget import Clock
from ctxgcd.bench.gpu import flops_of_view, utilisation
from ctxgcd.bench.pictures import jpegs
from ctxgcd.bench.training import Step, step_of, works
from ctxgcd.bench.work import WORK_COLUMNS, Work, bench, nothing
from ctxgcd.errors import UserError
from ctxgcd.pipeline.trunk import grouped, trunk_of
from ctxgcd.plots.bench import cost_against_n, step_budget
from tests.helpers.places import ROOT

CPU = torch.device("cpu")


def two_seconds(folder: Path, n: int, device: torch.device) -> float:
    assert torch.get_num_threads() == 1
    return 2.0


def five_a_unit(folder: Path, n: int, device: torch.device) -> float:
    made = bytearray(200 * 2**20)
    return 5.0 * n + 0.0 * made[-1]


@pytest.mark.slow
def test_rates_ratios_and_memory(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    fast = Work("fast", "images/s", (10,), nothing, two_seconds, five_a_unit, plain=4)
    small = Work("small", "MiB", (4,), nothing, two_seconds, five_a_unit, least=8, plain=4, of_memory=True)
    held = bytearray(1000 * 2**20)  # by this process only, not by its child processes
    held[::4096] = b"x" * len(held[::4096])
    rows = bench([fast, small], tmp_path / "bench" / "steps.csv", 2.0, CPU)
    written = pd.read_csv(tmp_path / "bench" / "steps.csv")
    assert list(written) == WORK_COLUMNS
    assert written.n.tolist() == [20, 8]  # twice the size, by `scale`
    assert written.ours[0] == 20 / 2.0
    assert written.reference[0] == 0.2
    assert written.ratio[0] == 50.0
    assert 150 < written.reference[1] - written.ours[1] < 250  # the reference's 200 MiB
    assert written.ours[1] < 1000
    assert written.ours[1] == written.peak_memory_mb[1]
    assert len(rows) == len(capsys.readouterr().out.splitlines()) == 2


def test_a_clock_excludes_nested_parts() -> None:
    clock = Clock(CPU)
    inner = clock.wrap("inner", lambda: time.sleep(0.05))
    outer = clock.wrap("outer", lambda: (inner(), time.sleep(0.02), inner(), 7)[-1])
    assert outer() == 7
    assert clock.seconds["inner"] == pytest.approx(0.1, abs=0.05)
    assert clock.seconds["outer"] == pytest.approx(0.02, abs=0.015)


def test_steps_have_the_papers_batches_on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    step = step_of(torch.device("cuda"), "bf16", context=True)
    assert (step.views, step.p["precision"]) == (2 * (128 + 120), "bf16")
    assert step.epochs(16_368) == (11 * 128, 3, 1)  # 33 steps: three times through 1,408 images
    assert Step(step.p, False).epochs(16_384) == (11 * 128, 5, 16_384 / (5 * 11 * 256))  # 55 of 64 steps are made
    assert step_of(CPU, "float32", context=False).epochs(64) == (32, 1, 1)
    names = [work.name for work in works(CPU)]
    assert len(names) == len(set(names))
    assert {"training step, contextual phase, exact, float32", "checkpoint write"} <= set(names)


@pytest.mark.parametrize(("device", "queries"), [("cpu", {1, 2, 4}), ("cuda", {4, 6, 12, 16})])
def test_sixteen_rows_share_the_trunk(monkeypatch: pytest.MonkeyPatch, device: str, queries: set[int]) -> None:
    monkeypatch.chdir(ROOT)
    rows = [step.p for step in shared.steps_of(torch.device(device), "float32", context=True)]
    assert grouped(rows, trunk_of) == [list(range(16))]
    assert {p["neighbour_images"] // p["k"] for p in rows if "k" in p} == queries
    assert len({str(p) for p in rows}) == 16


def test_lists_of_two_rows_share_four_fifths_of_their_members() -> None:
    one, other = (shared.lists_of(400, 9, number) for number in (0, 1))
    places = torch.arange(400)[:, None]
    for lists in (one, other):
        assert lists.min() == 0
        assert lists.max() == 399
        assert not (lists == places).any()
    assert (one == other).float().mean() == pytest.approx(0.81, abs=0.02)


@pytest.mark.slow
def test_operations_of_a_view_and_utilisation_of_a_gpu() -> None:
    tokens, width = 197, 768
    block = tokens * 12 * width**2 + 2 * tokens**2 * width  # qkv and projection, MLP; both products of attention
    trunk = 2 * (11 * block + 196 * width * 768)
    assert flops_of_view() == pytest.approx(trunk, rel=0.01)  # of the last block little more than the MLP of one row
    row = {"work": "training step, exact", "unit": "views/s", "ours": "8000", "reference": "400", "n": 9}
    (found,) = utilisation([row, row | {"unit": "MiB"}], CPU, "NVIDIA H100 80GB HBM3")
    assert float(found["ours"]) == pytest.approx(100 * 8000 * trunk / 989e12, rel=0.01)
    assert float(found["ratio"]) == pytest.approx(20, rel=1e-3)
    assert utilisation([row], CPU, "an unknown card") == []


def test_a_part_of_a_bench_is_not_published(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(ROOT / "workflow/scripts"))
    from publish_bench import publish

    with pytest.raises(UserError, match=r"steps.csv is missing or damaged; run `make bench`"):
        publish(tmp_path, "bench")
    row = "search,cpu: x,images/s,9,3,3,120,10\n"
    (tmp_path / "steps.csv").write_text(",".join(WORK_COLUMNS) + "\n" + row)
    with pytest.raises(UserError, match=r"budget.csv is missing or damaged"):
        publish(tmp_path, "bench")
    (tmp_path / "budget.csv").write_text("way,part,milliseconds,views\nexact,trunk,9,64\n")
    with pytest.raises(UserError, match="is incomplete"):
        publish(tmp_path, "bench")
    with pytest.raises(UserError, match=r"--name is '\.\./x'"):
        publish(tmp_path, "../x")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["budget.csv", "steps.csv"]


def test_photographs_are_checked_before_anything_is_measured(tmp_path: Path) -> None:
    for folder, words in ((tmp_path / "none", "is not a folder"), (tmp_path, r"contains no .jpg or .jpeg file")):
        with pytest.raises(UserError, match=words):
            jpegs(folder)
    (tmp_path / "a").mkdir()
    Image.new("RGB", (9, 9)).save(tmp_path / "a" / "it's.JPEG")
    assert [path.name for path in jpegs(tmp_path)] == ["it's.JPEG"]
    (tmp_path / "b.jpg").write_text("no image")
    with pytest.raises(UserError, match=r"b.jpg cannot be decoded as an image"):
        jpegs(tmp_path)


def test_figures_and_the_published_table(tmp_path: Path) -> None:
    rows = [["search", "cpu: x", "images/s", 900.0 / n, 90.0 / n, 10.0, 120.0, n] for n in (10, 100)]
    steps = pd.DataFrame([*rows, ["share", "cpu: x", "%", 1.0, 4.0, 4.0, 0.0, 1]], columns=WORK_COLUMNS)
    cost_against_n(steps, tmp_path / "cost.png")
    parts = [
        ("reference", "views", 30.0),
        ("reference", "trunk", 70.0),
        ("exact", "trunk", 9.0),
        ("view bank", "views", 1.0),
    ]
    budget = pd.DataFrame([(*part, 64) for part in parts], columns=["way", "part", "milliseconds", "views"])
    step_budget(budget, tmp_path / "budget.png")
    assert all((tmp_path / name).read_bytes()[:4] == b"\x89PNG" for name in ("cost.png", "budget.png"))
    sys.path.insert(0, str(ROOT / "workflow/scripts"))
    from publish_bench import table

    lines = table(steps).splitlines()
    assert lines[2] == "| search | 10 | images/s | 90 | 9 | 10.00 | 120 |"
    assert lines[4] == "| share | 1 | % | 1 | 4 | 4.00 |  |"
