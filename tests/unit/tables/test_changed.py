"""The column `changed`: the share of images whose class differs between two rows."""

from __future__ import annotations

import json
import runpy
import sys
from collections.abc import Sequence
from pathlib import Path

import pandas as pd
import pytest

from ctxgcd.errors import UserError
from ctxgcd.pipeline.identity import parameters_hash
from ctxgcd.pipeline.runs import Run
from ctxgcd.tables import layout, render
from ctxgcd.tables.aggregate import read_long
from ctxgcd.tables.changed import mean_changed
from ctxgcd.tables.statistics import statistics, statistics_listing
from tests.helpers.places import ROOT
from tests.helpers.predictions import of_run
from tests.helpers.tables import long, run, three, v2

# Four images: two of the Old classes 0 and 1, two of the New classes 2 and 3.
BASE = (0, 1, 2, 3)
SWAPPED = (0, 1, 3, 2)  # equal to BASE: New clusters with exchanged numbers
ONE_OTHER = (0, 0, 2, 3)
ALL_OLD = (0, 1, 0, 0)


def files(folder: Path, runs: dict[tuple[str, int], Sequence[int]], benchmark: str = "cub") -> dict[Run, Path]:
    return {Run(benchmark, *key): of_run(folder, Run(benchmark, *key), predicted) for key, predicted in runs.items()}


def test_the_mean_is_over_the_seeds_that_both_rows_have(tmp_path: Path) -> None:
    runs = {("simgcd", 0): BASE, ("simgcd", 1): SWAPPED, ("simgcd", 7): BASE}
    runs |= {("full-paper", 0): ONE_OTHER, ("full-paper", 1): ALL_OLD, ("full-paper", 5): BASE}
    runs |= {("gcd", 7): SWAPPED, ("full-mended", 3): BASE}
    predictions = files(tmp_path, runs) | files(tmp_path, {("full-paper", 0): BASE, ("simgcd", 0): BASE}, "scars")
    pairs = dict.fromkeys(("simgcd", "gcd", "full-paper", "full-mended"), "simgcd")
    assert mean_changed(predictions, pairs) == {
        ("cub", "full-paper"): (25 + 50) / 2,
        ("cub", "gcd"): 0.0,
        ("scars", "full-paper"): 0.0,
    }


def test_rows_that_do_not_train_are_not_compared(tmp_path: Path) -> None:
    predictions = files(tmp_path, {("kmeans", 0): BASE, ("simgcd", 0): BASE})
    assert mean_changed(predictions, {"kmeans": "simgcd"}) == mean_changed(predictions, {"simgcd": "kmeans"}) == {}


def test_predictions_of_other_images_are_refused(tmp_path: Path) -> None:
    predictions = files(tmp_path, {("full-paper", 0): BASE, ("simgcd", 0): BASE[:3]})
    with pytest.raises(UserError, match=r"full-paper/seed0/.* and .*simgcd/seed0/.* have different images"):
        mean_changed(predictions, {"full-paper": "simgcd"})
    predictions[Run("cub", "simgcd", 0)].write_text("id,predicted\n0,x\n")
    with pytest.raises(UserError, match=r"simgcd/seed0/predictions\.csv is damaged"):
        mean_changed(predictions, {"full-paper": "simgcd"})


def test_without_a_new_image_every_class_is_old(tmp_path: Path) -> None:
    predictions = {
        Run("cub", row, 0): of_run(tmp_path, Run("cub", row, 0), predicted, old=4)
        for row, predicted in (("simgcd", BASE), ("full-paper", SWAPPED))
    }
    assert mean_changed(predictions, {"full-paper": "simgcd"}) == {("cub", "full-paper"): 50.0}


# -- in the tables -----------------------------------------------------------------------------------------

CHANGED = {("cub", "full-paper"): 0.3, ("scars", "full-paper"): 100 / 3}
NOTE = (
    "Changed: percent of the unlabelled images whose class differs from SimGCD's of the same seed, New classes "
    "matched; mean over seeds."
)


def of_two() -> pd.DataFrame:
    rows, benchmarks = ["simgcd", "full-paper"], ("cub", "scars")
    return long(
        [r for b in benchmarks for row in rows for r in three(row, 60.0, benchmark=b)], rows, benchmarks, CHANGED
    )


def test_it_stands_beside_the_accuracies_of_its_benchmark(tmp_path: Path) -> None:
    table = of_two()
    assert v2(table)["changed"].fillna(-1).tolist() == [-1, 0.3, -1, 100 / 3]
    assert table["changed"].notna().sum() == 2  # not beside other metrics, nor the test part
    render.write_table(table, tmp_path / "main_x", title="t", note="", kind="main")
    pd.testing.assert_frame_equal(read_long(tmp_path / "main_x.csv"), table, check_exact=True)
    md, tex, html = ((tmp_path / f"main_x.{suffix}").read_text("utf-8") for suffix in ("md", "tex", "html"))
    head = "All | Old | New | Changed |"
    assert f"| Method | n | CUB: {head} Stanford Cars: {head}" in md
    cells = "**60.0 ± 1.0** | **65.0 ± 1.0** | **57.0 ± 1.0** |"
    assert f"| SimGCD | 3 | {cells} – | {cells} – |" in md
    assert f"| Full method (paper) | 3 | {cells} 0.30 | {cells} 33.33 |" in md
    assert f"- {NOTE}\n" in md
    assert r"\begin{tabular}{lrrrrrrrrr}" in tex
    assert r"\cmidrule(lr){3-6}" in tex
    assert r"\cmidrule(lr){7-10}" in tex
    assert r"\multicolumn{4}{c}{Stanford Cars}" in tex
    assert html.count('colspan="4"') == 2
    assert html.count(">Changed</th>") == 2


@pytest.mark.parametrize("without", ["no value", "no column"])
def test_a_table_without_it_has_no_such_column(without: str) -> None:
    table = of_two().assign(changed=None) if without == "no value" else of_two().drop(columns="changed")
    shown = layout.wide_table(table, title="t", note="", kind="main", label="x")
    assert shown.columns == ["All", "Old", "New"]
    assert not any("Changed" in note for note in shown.notes)


def test_differences_have_it_once_for_each_row() -> None:
    metrics = [run(row, seed, (60.0, 65.0, 57.0)) for row in ("simgcd", "full-paper") for seed in (0, 1)]
    pairs = dict.fromkeys(("full-paper", "full-mended"), "simgcd")
    frame = statistics(metrics, pairs=pairs, benchmark="cub", changed=CHANGED)
    assert frame["changed"].fillna(-1).tolist() == [0.3, -1]
    listing = statistics_listing(frame, "t")
    assert listing.head[-2:] == ["Changed", "Verdict"]
    assert [line[-2] for line in listing.lines] == ["0.30", "", "", "–"]
    assert all(len(line) == len(listing.head) for line in listing.lines)
    assert NOTE.replace("SimGCD's of", "the other row's of") in listing.notes
    for other in (frame.assign(changed=float("nan")), frame.drop(columns="changed")):
        shown = statistics_listing(other, "t")
        assert "Changed" not in shown.head
        assert all(len(line) == len(shown.head) for line in shown.lines)


@pytest.mark.parametrize("kind", ["main", "statistics", "sensitivity"])
def test_the_script_reads_the_predictions_beside_the_scores(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    runs = {("simgcd", 0): BASE, ("full-paper", 0): ONE_OTHER, ("full-paper+k=20", 0): ONE_OTHER}
    metrics, hashes = [], []
    for one, file in files(tmp_path, runs).items():
        parameters = {"benchmark": one.benchmark, "row": one.row, "seed": one.seed}
        content = run(one.row, one.seed, (60.0, 65.0, 57.0), parameters=parameters)
        metrics.append(file.with_name("metrics.json"))
        metrics[-1].write_text(json.dumps(content))
        hashes.append(parameters_hash(parameters))
    rows = ["simgcd", "full-paper"] if kind == "main" else ["full-paper", "full-paper+k=20"]
    request = {"table": f"{kind}_cub", "kind": kind, "rows": rows, "benchmarks": ["cub"], "note": "", "absent": []}
    request |= {"pairs": {} if kind == "sensitivity" else {"full-paper": "simgcd"}}
    script = str(ROOT / "workflow/scripts/make_table.py")
    call = [script, "--request", json.dumps(request), "--stem", str(tmp_path / "t")]
    monkeypatch.setattr(sys, "argv", [*call, "--metrics", *map(str, metrics), "--hashes", *hashes])
    runpy.run_path(script, run_name="__main__")
    table = pd.read_csv(tmp_path / "t.csv")
    known = table[table["changed"].notna()]
    found = known[["method", "set", "metric", "changed"]].to_numpy().tolist()
    assert found == ([] if kind == "sensitivity" else [["full-paper", "unlabelled", "v2", 25.0]])
