"""A finished small project for all tests of DVC, made by Snakemake and not recorded yet."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from filelock import FileLock

from tests.dvc.project import make_small, succeed


@pytest.fixture(scope="session")
def made(tmp_path_factory: pytest.TempPathFactory, worker_id: str) -> Path:
    """The finished project, made once for all processes of the tests; tests must not change it."""
    base = tmp_path_factory.getbasetemp()
    folder = (base if worker_id == "master" else base.parent) / "made"
    with FileLock(folder.with_suffix(".lock")):
        if not folder.with_suffix(".finished").exists():
            succeed(make_small(folder), "snakemake", "demo")
            folder.with_suffix(".finished").touch()
    return folder


@pytest.fixture
def project(made: Path, tmp_path: Path) -> Path:
    """A copy of the finished project, which a test may change."""
    return shutil.copytree(made, tmp_path / "project", symlinks=True)
