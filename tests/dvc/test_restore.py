"""`make restore` keeps the recorded results that match the current params.yaml and code."""

from __future__ import annotations

import json
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from ctxgcd.config import read
from ctxgcd.pipeline.restore import difference, taken_out
from ctxgcd.pipeline.runs import Run
from tests.dvc.project import NOTHING, change_params, git, run, succeed, trainings

RESTORE = ("python", "workflow/scripts/restore_results.py")
ROWS = {"full-paper", "full-paper+lambda_n=0.3", "simgcd"}


def clone(folder: Path, to: Path) -> Path:
    git(folder, "clone", "--quiet", str(folder), str(to))
    assert not (to / "results").exists()
    return to


def test_a_clone_has_nothing_to_do(published: Path, tmp_path: Path) -> None:
    folder = clone(published, tmp_path / "clone")
    assert "3 of 3 recorded runs" in succeed(folder, *RESTORE)
    assert NOTHING in succeed(folder, "snakemake", "--dry-run", "demo")
    assert "up to date" in succeed(folder, "dvc", "status", "demo")  # the new tables equal the recorded ones


def test_runs_with_a_changed_value_are_not_restored(published: Path, tmp_path: Path) -> None:
    """If a step fails, the removed files are moved back until the next call."""
    folder = clone(published, tmp_path / "clone")
    params, snakefile = ((folder / name).read_text() for name in ("params.yaml", "Snakefile"))
    change_params(folder, protocols={"fashion": {"lr": 0.05}})
    output = succeed(folder, *RESTORE)
    both = "fashion/full-paper/seed0, fashion/full-paper+lambda_n=0.3/seed0"
    assert f"not kept: {both}, fashion/simgcd/seed0: other parameters (lr" in output
    assert "0 of 3 recorded runs" in output

    (folder / "params.yaml").write_text(params)
    change_params(folder, benchmarks={"fashion": {"settings": {"default": {"full": {"tau": 0.25}}}}})
    (folder / "Snakefile").write_text(snakefile + "\n(\n")
    done = run(folder, *RESTORE)
    assert done.returncode == 2, done.stdout
    assert f"not kept: {both}: other parameters (tau" in done.stdout
    assert done.stdout.splitlines()[-1].startswith("error: `snakemake` failed")
    assert (folder / "results/runs/fashion/full-paper/seed0/metrics.json").is_file()
    assert (folder / "results/main_fashion.csv").is_file()
    assert not (folder / "work/restoring").exists()
    (folder / "Snakefile").write_text(snakefile)
    output = succeed(folder, *RESTORE)
    assert f"not kept: {both}: other parameters (tau" in output
    assert "1 of 3 recorded runs" in output
    assert trainings(folder) == ROWS - {"simgcd"}
    assert not (folder / "results/main_fashion.csv").exists()  # of runs that are not requested
    assert not (folder / "results/runs/fashion/full-paper/seed0").exists()
    assert not (folder / "work/left_out").exists()  # DVC's cache has all of it


def test_what_is_not_recorded_is_never_deleted(published: Path, tmp_path: Path) -> None:
    """Neither by DVC in a pulled folder nor by later steps."""
    folder = shutil.copytree(published, tmp_path / "project", symlinks=True)
    runs = folder / "results/runs"
    shutil.copytree(runs / "fashion/simgcd/seed0", runs / "elsewhere/simgcd/seed0")
    output = succeed(folder, *RESTORE)
    assert "results/runs/elsewhere/simgcd/seed0 is not recorded; moved to work/left_out/results/runs" in output
    assert (folder / "work/left_out/results/runs/elsewhere/simgcd/seed0/final.pt").is_file()
    shutil.copytree(runs / "fashion/simgcd/seed0", runs / "fashion/simgcd/seed7")
    mark = runs / "fashion/simgcd/seed7/run.json"
    mark.write_text("{}")
    run(folder, *RESTORE)
    kept = [file for file in folder.rglob("seed7/run.json") if ".dvc" not in file.parts]
    assert [file.read_text() for file in kept] == ["{}"]


def test_a_killed_restore_is_undone_by_the_next_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for file in ("results/runs/a/simgcd/seed0/run.json", "results/a.csv"):
        Path(file).parent.mkdir(parents=True, exist_ok=True)
        Path(file).write_text("as it was")
    with suppress(KeyboardInterrupt), taken_out() as take_out:
        take_out("results/runs/a/simgcd/seed0", False)
        take_out("results/a.csv", True)
        assert not Path("results/a.csv").exists()
        shutil.copytree("work/restoring", "killed")
        raise KeyboardInterrupt
    assert Path("results/a.csv").read_text() == Path("results/runs/a/simgcd/seed0/run.json").read_text() == "as it was"
    shutil.rmtree("results")
    shutil.move("killed", "work/restoring")
    with taken_out():
        assert Path("results/a.csv").read_text() == "as it was"
        assert Path("results/runs/a/simgcd/seed0/run.json").is_file()
    assert not Path("work/restoring").exists()


RUN, FILES = Path("results/runs/a/simgcd/seed0"), ("final.pt", "metrics.json", "run.json")


def write_run(text: str) -> None:
    RUN.mkdir(parents=True, exist_ok=True)
    for name in FILES:
        (RUN / name).write_text(text)


def runs_in(folder: str) -> list[str]:
    """Return the contents of the runs in a folder, each of which must be complete."""
    held = [{name: (run / name).read_text() for name in os.listdir(run)} for run in Path(folder).rglob("seed0*")]
    assert all(run.keys() == set(FILES) and len(set(run.values())) == 1 for run in held), held
    return sorted(run["run.json"] for run in held)


@pytest.fixture(params=["one file system", "work/ on another one"])
def work(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """An empty project as the current folder."""
    monkeypatch.chdir(tmp_path)
    if request.param == "one file system":
        yield
        return
    memory = Path("/dev/shm")
    if not memory.is_dir() or memory.stat().st_dev == tmp_path.stat().st_dev:
        pytest.skip("there is no second file system here")
    with tempfile.TemporaryDirectory(dir=memory) as folder:
        Path("work").symlink_to(folder)
        yield


def take_out_all(step_fails: bool) -> None:
    with suppress(ZeroDivisionError), taken_out() as take_out:
        take_out(str(RUN), False)
        take_out("results/a.csv", True)
        assert not step_fails or 1 / 0


def killed_at(number: int, step_fails: bool) -> bool:
    """Run a process that is killed before its change of files with this number; return whether it was killed."""
    if not (child := os.fork()):
        done = 0

        def kill(event: str, _: object) -> None:
            nonlocal done
            if event in ("os.mkdir", "os.rename", "shutil.copyfile", "os.utime", "os.remove", "os.rmdir"):
                done += 1
                if done == number:
                    os._exit(9)

        sys.addaudithook(kill)
        try:
            take_out_all(step_fails)
        finally:
            os._exit(0 if sys.exc_info()[0] is None else 1)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    assert status in (0, 9)
    return status == 9


@pytest.mark.parametrize("trained_anew", [False, True], ids=["", "trained anew"])
@pytest.mark.parametrize("step_fails", [False, True], ids=["step succeeds", "step fails"])
@pytest.mark.usefixtures("work")
def test_a_restore_killed_at_any_time_loses_no_run(step_fails: bool, trained_anew: bool) -> None:
    for number in count(1):
        for folder in ("results", "work/restoring", "work/left_out"):
            shutil.rmtree(folder, ignore_errors=True)
        write_run("old")
        Path("results/a.csv").write_text("old")
        killed = killed_at(number, step_fails)
        absent = not RUN.exists()
        if anew := trained_anew and absent:
            write_run("new")
        with taken_out():
            here, left_out = runs_in("results"), runs_in("work/left_out")
            assert here == (["new"] if anew else ["old"] if step_fails or not left_out or not absent else [])
            assert set(left_out) <= {"old"}
            assert {"old"} <= {*here, *left_out}
            if step_fails or not left_out:
                assert Path("results/a.csv").read_text() == "old"
        assert not [*Path().glob("**/.*.moving"), *Path("work/").glob("**/.*.moving")]
        assert not Path("work/restoring").exists()
        if not killed:
            break
    assert number > 5


@pytest.mark.usefixtures("work")
def test_results_made_after_a_killed_restore_are_kept(capsys: pytest.CaptureFixture[str]) -> None:
    write_run("old")
    Path("results/a.csv").write_text("old")
    with suppress(KeyboardInterrupt), taken_out() as take_out:
        take_out(str(RUN), True)
        take_out("results/a.csv", True)
        shutil.copytree("work/restoring", "killed")
        raise KeyboardInterrupt
    shutil.move("killed", "work/restoring")
    write_run("new")
    Path("results/a.csv").write_text("new")
    with taken_out():
        assert runs_in("results") == [Path("results/a.csv").read_text()] == ["new"]
        assert runs_in("work/left_out") == [Path("work/left_out/results/a.csv").read_text()] == ["old"]
    assert capsys.readouterr().out.splitlines() == [
        f"{path} exists and is not overwritten; the earlier version is moved to work/left_out/{path}"
        for path in (RUN, "results/a.csv")
    ]


@pytest.mark.usefixtures("work")
def test_a_failed_step_replaces_tables_but_no_run(capsys: pytest.CaptureFixture[str]) -> None:
    """A table of a failed call would prevent the next call from pulling the recorded one."""
    write_run("old")
    Path("results/a.csv").write_text("old")
    with suppress(KeyboardInterrupt), taken_out() as take_out:
        take_out(str(RUN), True)
        take_out("results/a.csv", True)
        write_run("new")
        Path("results/a.csv").write_text("new")
        raise KeyboardInterrupt
    assert Path("results/a.csv").read_text() == "old"
    assert (runs_in("results"), runs_in("work/left_out")) == (["new"], ["old"])
    assert capsys.readouterr().out.count("\n") == 1


@pytest.mark.usefixtures("work")
def test_an_empty_folder_does_not_count_as_a_new_run(capsys: pytest.CaptureFixture[str]) -> None:
    """Snakemake makes the folder of a training that fails."""
    write_run("old")
    with suppress(KeyboardInterrupt), taken_out() as take_out:
        take_out(str(RUN), False)
        RUN.mkdir()
        raise KeyboardInterrupt
    assert runs_in("results") == ["old"]
    assert not capsys.readouterr().out


def test_changed_scoring_or_tables_remove_no_run(published: Path, tmp_path: Path) -> None:
    """Runs recorded before tables had another column or other rows are kept; the current code makes the tables."""
    folder = clone(published, tmp_path / "clone")
    for module in ("evaluation/scores", "tables/make"):
        code = folder / "ctxgcd" / f"{module}.py"
        code.write_text(f"{code.read_text()}\nCHANGED = True\n")
    before = succeed(folder, *RESTORE)
    assert "3 of 3 recorded runs" in before
    assert NOTHING in succeed(folder, "snakemake", "--dry-run", "demo")


@pytest.mark.parametrize(
    ("key", "value", "reason"),
    [
        ("split_sha256", "0", "another split ("),
        ("modules", None, "its run.json has an older format without the digests of modules (docs/migration.md)"),
        ("modules", {}, "ctxgcd/benchmarks/readers/decoding.py is new, "),
        ("parameters", {}, "other parameters (row is"),
    ],
)
def test_differences_are_described(
    made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, key: str, value: Any, reason: str
) -> None:
    shutil.copytree(made / "results", tmp_path / "results")
    monkeypatch.chdir(tmp_path)
    params, simgcd = read(made / "params.yaml"), Run("fashion", "simgcd", 0)
    assert difference(params, simgcd) == ""
    file = Path(simgcd.file("run.json"))
    file.write_text(json.dumps(json.loads(file.read_text()) | {key: value}))
    assert difference(params, simgcd).startswith(reason)
    file.write_text("{")
    assert difference(params, simgcd) == "its run.json is missing or damaged"


def test_runs_with_an_outdated_estimate_are_not_restored(
    made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = Path(Run("fashion", "simgcd+K=estimated", 0).folder)
    shutil.copytree(made / "results" / "runs/fashion/simgcd/seed0", tmp_path / folder)
    monkeypatch.chdir(tmp_path)
    reason = difference(read(made / "params.yaml"), Run("fashion", "simgcd+K=estimated", 0))
    assert reason.startswith("its K must be estimated again (results/estimates/fashion.json is missing")


def test_a_failed_pull_is_reported_in_one_line(published: Path, tmp_path: Path) -> None:
    folder = clone(published, tmp_path / "clone")

    def message() -> str:
        done = run(folder, *RESTORE)
        assert done.returncode == 2, done.stdout
        assert "Traceback" not in done.stdout
        assert not [path for path in folder.glob("results/**/*") if path.is_file()]
        return done.stdout.splitlines()[-1]

    failed = "error: `dvc pull` failed and nothing was restored: failed to pull data from the cloud"
    succeed(folder, "dvc", "remote", "modify", "near", "url", str(tmp_path / "empty"))
    assert message().startswith(failed)
    succeed(folder, "dvc", "remote", "remove", "near")
    assert "nothing was restored: no default remote is set; run `dvc remote add" in message()
    (folder / "dvc.lock").unlink()
    assert message().startswith("error: dvc.lock does not exist, so no results are recorded")
