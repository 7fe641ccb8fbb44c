"""Division of runs into jobs that train several runs."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
from snakemake.cli import get_argument_parser

from ctxgcd.config import Params
from ctxgcd.errors import UserError
from ctxgcd.pipeline import together
from ctxgcd.pipeline.resolve import resolve
from ctxgcd.pipeline.runs import Run


@pytest.mark.parametrize(("cores", "sizes"), [(1, [8, 9] * 3), (2, [8, 9] * 3), (10, [4, 4, 4, 5] * 3), (64, [1] * 51)])
def test_each_job_has_some_runs_of_one_seed(params: Params, cores: int, sizes: list[int]) -> None:
    rows = ["kmeans", "gcd", "simgcd", *(f"full-paper+lambda_n={number / 100}" for number in range(14))]
    runs = [Run("fashion", row, seed) for row in rows for seed in range(3)]
    jobs = together.divided(params, runs, cores)
    assert sorted(run for job in jobs for run in job) == sorted(runs)
    assert sorted(map(len, jobs)) == sorted(sizes)
    assert all(len({run.seed for run in job}) == 1 for job in jobs)


def test_runs_that_share_the_trunk_are_one_job(params: Params) -> None:
    """Those with new views and the same batches: on ImageNet-1K XCon has its own, and PromptCAL has its own trunk."""
    shared = [
        "gcd",
        "simgcd",
        "orca",
        "full-paper",
        "full-paper-without-n",
        *(f"full-paper+k={k}" for k in range(4, 12)),
    ]
    others = ["kmeans", "xcon", "promptcal", "simgcd+batch_size=512", "gcd+view_bank=2", "gcd+precision=float32"]
    runs = [Run("imagenet_1k", row, 0) for row in (*others, *shared)]
    jobs = together.divided(params, runs, 64)
    assert sorted(run for job in jobs for run in job) == sorted(runs)
    assert sorted(run.row for job in jobs for run in job if len(job) > 1) == sorted(shared)


def test_a_job_has_one_benchmark_and_one_number_of_threads(params: Params) -> None:
    """The number of threads determines the order of sums, which is part of a run."""
    runs = [Run(b, row, 0) for row in ("simgcd", "simgcd+threads=3", "full-paper") for b in ("fashion", "cub")]
    jobs = together.divided(params, runs, 1)
    combinations = [{(r.benchmark, resolve(params, r.benchmark, r.row, 0)["threads"]) for r in job} for job in jobs]
    assert all(len(one) == 1 for one in combinations)
    assert sorted(map(len, jobs)) == [1, 1, 2, 2]
    assert [together.threads(params, job) for job in jobs] == [threads for [(_, threads)] in combinations]


def test_a_job_is_found_by_its_wildcards(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    runs = [Run("fashion", "simgcd", 2), Run("fashion", "full-paper+lambda_n=0.3", 2)]
    wildcards = together.written(runs)
    assert together.read(**wildcards) == runs
    assert together.written(runs[:1]) != wildcards


def test_a_damaged_file_of_rows_is_written_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    wildcards = together.written([Run("fashion", "simgcd", 0)])
    (file,) = together.TOGETHER.iterdir()
    file.write_text("")
    with pytest.raises(UserError, match="is damaged; delete it and run the same command again"):
        together.read(**wildcards)
    assert together.written([Run("fashion", "simgcd", 0)]) == wildcards
    assert together.read(**wildcards) == [Run("fashion", "simgcd", 0)]


def targets_of(words: Sequence[str]) -> list[str]:
    """As in workflow/rules/common.smk."""
    found: list[str] = get_argument_parser().parse_known_args(words)[0].targets
    return found


@pytest.mark.parametrize(
    ("words", "left"),
    [
        ("demo -n", "-n"),
        ("-n demo results/a.csv --until results/a.csv", "-n --until results/a.csv"),
        ("--until results/a.csv -n -- results/a.csv demo", "--until results/a.csv -n"),
        ("--cores 1 results/a.csv demo --report demo", "--cores 1 --report demo"),
    ],
)
def test_targets_are_removed_and_values_of_options_kept(words: str, left: str) -> None:
    wanted = ["demo", *["results/a.csv"] * ("results" in words)]
    assert together.without_targets(words.split(), wanted, targets_of) == left.split()


def test_the_call_for_the_jobs_names_its_snakefile_and_folder(
    params: Params, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The paths of the first call may be relative to another folder; of repeated options the last takes precedence."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv(together.CALLED, "")
    calls: list[list[str]] = []
    monkeypatch.setattr(together.os, "execv", lambda program, words: calls.append(words))
    words = ["--snakefile", "project/Snakefile", "--directory", "project", "demo", "-n"]
    together.call([[Run("fashion", "simgcd", 0)]], ["demo"], words, "/project/Snakefile", targets_of)
    assert calls[0][-4:] == ["--snakefile", "/project/Snakefile", "--directory", str(tmp_path)]
    assert "demo" not in calls[0]
    assert together.targets() == ["demo"]
