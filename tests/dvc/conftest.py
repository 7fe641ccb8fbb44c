"""Small projects for all tests of DVC, each made once for all processes of the tests, which must not change them."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from filelock import FileLock

from tests.dvc.project import commit, make_small, succeed

Once = Callable[[str, Callable[[Path], object]], Path]


@pytest.fixture(scope="session")
def once(tmp_path_factory: pytest.TempPathFactory, worker_id: str) -> Once:
    """A function that makes a folder, or waits until another process has made it."""
    base = tmp_path_factory.getbasetemp()

    def once(name: str, make: Callable[[Path], object]) -> Path:
        folder = (base if worker_id == "master" else base.parent) / name
        with FileLock(folder.with_suffix(".lock")):
            if not folder.with_suffix(".finished").exists():
                make(folder)
                folder.with_suffix(".finished").touch()
        return folder

    return once


@pytest.fixture(scope="session")
def made(once: Once) -> Path:
    """A finished project, made by Snakemake and not recorded yet."""
    return once("made", lambda folder: succeed(make_small(folder), "snakemake", "demo"))


@pytest.fixture(scope="session")
def published(once: Once, made: Path) -> Path:
    """A finished project whose results are recorded, committed and pushed."""

    def publish(folder: Path) -> None:
        shutil.copytree(made, folder, symlinks=True)
        succeed(folder, "dvc", "repro", "demo")
        succeed(folder, "dvc", "remote", "add", "--default", "near", str(folder.with_suffix(".remote")))
        commit(folder)
        succeed(folder, "dvc", "push")

    return once("published", publish)


@pytest.fixture
def project(made: Path, tmp_path: Path) -> Path:
    """A copy of the finished project, which a test may change."""
    return shutil.copytree(made, tmp_path / "project", symlinks=True)
