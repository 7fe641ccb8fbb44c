"""The results of a real call for all eight benchmarks: runs, tables, records."""

from __future__ import annotations

import json
import re
import shutil

import numpy as np
import pandas as pd
import pytest
import torch
import yaml

from ctxgcd.models.precision import has_bf16
from tests.helpers.workflow import (
    ABLATION_ROWS,
    BESIDE,
    MADE,
    MAIN_ROWS,
    NO_TEST,
    OWN,
    REAL,
    SPEED,
    Project,
    Result,
    folder_of,
)


def test_each_run_is_trained_once(finished: tuple[Project, Result]) -> None:
    project, result = finished
    assert result.trainings == MADE
    assert result.output.count("Training ") == len(MADE)
    written = project.folder.glob("results/runs/*/*/*/run.json")
    assert {path.parent.relative_to(project.folder).as_posix() for path in written} == set(map(folder_of, MADE))


EARLIER = {"kmeans", "rs_plus", "uno_plus", "orca", "gcd", "simgcd"}
COMPARED = EARLIER | {"xcon", "promptcal", "dccl"}
NOT_RUN = {"main_ssb": COMPARED, "main_generic": COMPARED, "main_challenging": EARLIER}


def test_tables(done: Project) -> None:
    head = ["benchmark", "method", "set", "metric", "K", "K_source", "precision", "epoch", "n"]
    head += [f"{q}_{c}" for q in ("all", "old", "new") for c in ("mean", "std", "published", "difference", "verdict")]
    tables = {**{table: (of, MAIN_ROWS) for table, of in REAL.items()}, "ablation_cub": (["cub"], ABLATION_ROWS)}
    for table, (benchmarks, rows) in tables.items():
        found = pd.read_csv(done.folder / f"results/{table}.csv", dtype={"K_source": "str"})
        assert list(found.columns[: len(head)]) == head
        published = found.note == "published, not run here"
        assert set(found[published].method) == NOT_RUN.get(table, set())
        assert found[published][["all_mean", "all_std", "seeds", "K"]].isna().all(axis=None)
        found = found[~published]
        assert set(zip(found.benchmark, found.method, strict=True)) == {(b, row) for b in benchmarks for row in rows}
        assert set(found.set) == {"unlabelled", "test"}
        assert {"v2", "v2b"} <= set(found.metric)
        gap = found.benchmark.isin(NO_TEST) & (found.set == "test")
        assert set(found[gap].note) <= {"no test part in the data"}
        assert (found[gap].n == 0).all()
        assert found[gap].all_mean.isna().all()
        found = found[~gap]
        assert (found.n == 1).all()
        assert found.all_std.isna().all()  # ddof = 1: no spread of one seed
        assert found.all_mean.between(0, 100).all()
        assert set(found.K_source) == {"true"}
        assert set(found.epoch) == {2}
        for suffix in ("md", "tex", "html"):
            assert (done.folder / f"results/{table}.{suffix}").stat().st_size > 0
    assert "Stanford Cars: no test part in the data" in (done.folder / "results/main_ssb.md").read_text()
    ablation = pd.read_csv(done.folder / "results/ablation_cub.csv")
    shown = ablation[(ablation.set == "unlabelled") & (ablation.metric == "v2")]
    assert list(shown.method) == ABLATION_ROWS


def test_an_estimated_k_reaches_the_run_and_its_tables(done: Project) -> None:
    estimate = json.loads((done.folder / f"results/estimates/{OWN}.json").read_text())
    tried = pd.read_csv(done.folder / f"results/estimates/{OWN}.csv").set_index("K").accuracy
    assert 3 < estimate["K"] <= 48
    assert tried[estimate["K"]] == tried.max() == estimate["accuracy"]
    metrics = json.loads((done.folder / folder_of((OWN, "full-paper+K=estimated", 0)) / "metrics.json").read_text())
    assert (metrics["K"], metrics["K_source"]) == (estimate["K"], "estimated")
    unknowns = pd.read_csv(done.folder / f"results/unknowns_{OWN}.csv")
    assert list(unknowns.K_source) == ["estimated"]
    assert list(unknowns.K) == [estimate["K"]]
    text = (done.folder / f"results/unknowns_{OWN}.md").read_text()
    assert f"K = {estimate['K']} (estimated)" in text


def test_terms_have_their_sizes(done: Project) -> None:
    terms = pd.read_csv(done.folder / "results/terms_cub.csv")
    assert set(terms.method) == set(ABLATION_ROWS)
    released = terms[(terms.method == "full-released") & (terms.term == "L_n")]
    assert (released.gradient_mean == 0).all()
    assert (released.loss_mean > 0).all()
    paper = terms[(terms.method == "full-paper") & (terms.term == "L_n")]
    assert sorted(paper.epoch) == [1, 2]  # where it starts, and the last
    assert (paper.tail_gradient_mean > 0).all()
    shares = terms.groupby(["method", "epoch"])[["loss_share_mean", "gradient_share_mean"]].sum()
    assert shares.to_numpy() == pytest.approx(1)


def test_gcd_keeps_its_centres(done: Project) -> None:
    folder = done.folder / folder_of(("cifar10", "gcd", 0))
    final = torch.load(folder / "final.pt", weights_only=True)
    assert final["centres"].shape == (10, 64)
    history = pd.read_csv(folder / "history.csv")
    assert list(history.columns) == ["epoch", "lr", "loss", "info_nce", "sup_con"]
    assert len(history)
    assert history.notna().all(axis=None)


def test_status_lists_what_is_reproduced(another: Project) -> None:
    result = another.call("status")
    assert result.code == 0, result.output
    found = pd.read_csv(another.folder / "results/status_published.csv")
    done = found[found.state == "reproduced"]
    reproduced = set(zip(done.table, done.benchmark, done.method, strict=True))
    assert {
        *((table, b, "full") for table in ("ssb", "generic", "challenging") for b in REAL[f"main_{table}"]),
        *(("losses", "cub", method) for method in ("full", "full_wo_n", "simgcd")),
    } <= reproduced
    assert ("losses", "cub", "full_wo_c") not in reproduced
    assert not any(method in ("kmeans", "gcd") for _, _, method in reproduced)
    assert done.device.str.startswith("cpu: ").all()


def test_a_number_of_a_table_is_that_of_its_run(done: Project) -> None:
    table = pd.read_csv(done.folder / "results/main_ssb.csv").set_index(["benchmark", "method", "set", "metric"])
    for benchmark in REAL["main_ssb"]:
        for row in MAIN_ROWS:
            predictions = pd.read_csv(done.folder / f"results/runs/{benchmark}/{row}/seed0/predictions.csv")
            hit = predictions.matched_class == predictions.true_class
            shown = table.loc[(benchmark, row, "unlabelled", "v2")]
            assert shown.all_mean == pytest.approx(100 * hit.mean())
            assert shown.old_mean == pytest.approx(100 * hit[predictions.old == 1].mean())
            assert shown.new_mean == pytest.approx(100 * hit[predictions.old == 0].mean())


def test_splits_and_predictions(done: Project) -> None:
    for benchmark in (b for of in REAL.values() for b in of):
        split = pd.read_csv(done.folder / f"results/splits/{benchmark}.csv", keep_default_na=False)
        assert list(split.columns) == ["id", "path", "part", "role", "class_id", "class_name", "old"]
        assert re.fullmatch(r"[0-9a-f]{64}\n", (done.folder / f"results/splits/{benchmark}.sha256").read_text())
        ids = {role: set(split.id[split.role == role]) for role in ("labelled", "unlabelled", "test")}
        for row in MAIN_ROWS:
            folder = done.folder / f"results/runs/{benchmark}/{row}/seed0"
            found = pd.read_csv(folder / "predictions.csv")
            assert list(found.columns) == ["id", "path", "predicted", "matched_class", "true_class", "old"]
            assert set(found.id) == ids["unlabelled"]
            assert len(found) == len(ids["unlabelled"])
            of_test = pd.read_csv(folder / "predictions_test.csv")
            assert set(of_test.id) == ids["test"]
            joined = found.merge(split, on="id")
            assert (joined.true_class == joined.class_id).all()
            assert (joined.path_x == joined.path_y).all()


def test_metrics_describe_the_run(done: Project) -> None:
    keys = {
        *("schema", "benchmark", "row", "method", "variant", "seed", "K", "K_source", "scores", "clusters", "epoch"),
        *("identity", "split_sha256", "code", "environment", "commit", "parameters", "active_from", "trainable"),
        *("seconds", "peak_memory_mb"),
    }
    for path in done.folder.glob("results/runs/*/*/*/metrics.json"):
        found = json.loads(path.read_text())
        assert keys <= set(found)
        assert {"torch", "timm", "device"} <= set(found["environment"])
        assert found["commit"] == "unknown"  # the copy is outside git, which is not required
        scored = {("unlabelled", "v2")} | ({("test", "v2")} if found["benchmark"] not in NO_TEST else set())
        assert {(s["set"], s["metric"]) for s in found["scores"]} >= scored
        own = done.folder / f"results/splits/{found['benchmark']}.sha256"
        assert found["split_sha256"] == own.read_text().strip()
        assert yaml.safe_load((path.parent / "params.yaml").read_text()) == found["parameters"]
    full = json.loads((done.folder / "results/runs/cub/full-released/seed0/metrics.json").read_text())
    assert full["parameters"]["k"] == 8  # the released scripts' own for CUB
    assert full["active_from"] == {**dict.fromkeys(("info_nce", "sup_con", "distill", "entropy", "cls"), 0)} | {
        "L_n": 2,
        "L_c": 2,
    }


def test_results_contain_no_path_of_this_machine(done: Project) -> None:
    for path in (done.folder / "results").rglob("*"):
        if path.suffix in {".json", ".csv", ".yaml", ".md", ".tex", ".html"}:
            text = path.read_text()
            assert str(done.folder) not in text, path
            assert str(done.data) not in text, path


def test_history(done: Project) -> None:
    columns = ["epoch", "lr", "teacher_temperature", "loss", "info_nce", "sup_con", "distill", "entropy", "cls"]
    starts: dict[str, dict[str, int]] = {"simgcd": {}, "full-paper": {"L_n": 1, "L_c": 1}}
    starts |= {"full-paper-without-n": {"L_c": 1}, "full-released": {"L_n": 2, "L_c": 2}}
    for row, first in starts.items():
        history = pd.read_csv(done.folder / f"results/runs/cub/{row}/seed0/history.csv")
        assert list(history.columns) == [*columns, *first]
        assert list(history.epoch) == [0, 1, 2]
        assert history[columns].notna().all(axis=None)
        for term in first:
            assert list(history[term].isna()) == [epoch < first[term] for epoch in range(3)]
    frozen = pd.read_csv(done.folder / folder_of(BESIDE[0]) / "history.csv")
    assert (list(frozen.columns), len(frozen)) == (["epoch", "loss"], 0)


def test_seeds_are_paired_over_rows(done: Project) -> None:
    folder = done.folder / "results/runs/cub"
    first = [pd.read_csv(folder / row / "seed0/history.csv").loc[0, "loss"] for row in ABLATION_ROWS]
    assert len(set(first)) == 1  # no context term acts in epoch 0: same start, same images, same views


def test_learns_something(done: Project) -> None:
    history = pd.read_csv(done.folder / "results/runs/cifar10/full-paper/seed0/history.csv")
    assert history.cls.iloc[-1] < history.cls.iloc[0]
    scores = json.loads((done.folder / folder_of(BESIDE[0]) / "metrics.json").read_text())["scores"]
    v2 = next(score for score in scores if (score["set"], score["metric"]) == ("unlabelled", "v2"))
    assert v2["all"] > 20  # 10 classes with different colours; random guessing gives 10 percent


def test_faster_settings_have_a_separate_table(done: Project) -> None:
    (row,) = SPEED
    speed = pd.read_csv(done.folder / f"results/speed_{OWN}.csv")
    assert speed[["method", "against", "n"]].to_numpy().tolist() == [[row, SPEED[row], 1]]
    run = json.loads((done.folder / folder_of((OWN, row, 0)) / "metrics.json").read_text())
    assert (run["parameters"]["precision"], run["parameters"]["view_bank"]) == ("bf16", 2)
    log = (done.folder / f"work/logs/train/{OWN}/{row}/seed0.log").read_text()
    assert ("precision float32 is faster" in log) != has_bf16(torch.device("cpu"))
    kept = {np.load(file, mmap_mode="r").dtype.name for file in done.folder.glob(f"work/features/{OWN}-*/*-bf16.npy")}
    assert kept == {"float16"}


def test_two_processes_make_the_run_of_one(another: Project) -> None:
    """On a CPU they are connected by gloo; the number of devices is not part of a run's identity."""
    folder = another.folder / folder_of(("cub", "full-paper", 0))
    alone = pd.read_csv(folder / "history.csv"), pd.read_csv(folder / "predictions.csv")
    assert another.dry("results/main_ssb.csv", "--set-resources", "train:gpu=2").trainings == set()
    shutil.rmtree(folder)
    shutil.rmtree(another.folder / "work/runs")  # where the run is cached
    wanted = f"{folder_of(('cub', 'full-paper', 0))}/metrics.json"
    result = another.call("--cores", "2", wanted, "--set-resources", "train:gpu=2")
    assert result.code == 0, result.output[-3000:]
    assert json.loads((folder / "run.json").read_text())["processes"] == 2
    pd.testing.assert_frame_equal(pd.read_csv(folder / "history.csv"), alone[0], rtol=1e-3)
    predicted = pd.read_csv(folder / "predictions.csv").predicted
    assert (predicted == alone[1].predicted).mean() > 0.97
