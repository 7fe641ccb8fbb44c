"""The eight benchmarks in a tiny project, and one real call of it, made once because one process runs this folder."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.helpers.layouts import Painter, write_fixture
from tests.helpers.workflow import (
    BESIDE,
    CURVES,
    EIGHT,
    OWN,
    REAL,
    TRAIN_PER_CLASS,
    Project,
    Result,
    add_own,
    cut_to_real,
    folder_of,
    fresh,
    shrink,
    write_weights,
)


@pytest.fixture(scope="session")
def data(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, dict[str, int]]]:
    """The eight benchmarks in their official layouts, all classes, and their counts of images."""
    root = tmp_path_factory.mktemp("data")
    counts = {}
    for benchmark in EIGHT:
        per_class = TRAIN_PER_CLASS.get(benchmark, 2)
        if benchmark == "imagenet_100":  # lies in the folder of imagenet_1k, written below
            counts[benchmark] = {"train": 100 * per_class, "test": 100}
        else:
            counts[benchmark] = write_fixture(benchmark, root, train_per_class=per_class)
    painter = Painter(0)
    for class_id, name in enumerate(("aster", "daisy", "iris", "lily", "rose & thorn", "tulip")):
        for number in range(8):
            painter.save(root / OWN / name / f"{number}.jpg", class_id, 24, 40)
    (root / OWN / "labelled.txt").write_text("rose & thorn\ndaisy\nlily\n")
    (root / "scars" / "cars_test_annos_withlabels.mat").unlink()
    return root, counts


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory, data: tuple[Path, dict[str, dict[str, int]]]) -> Project:
    """A project with tiny parameters for all eight benchmarks, for dry runs only."""
    root, counts = data
    project = fresh(tmp_path_factory.mktemp("tiny") / "project", root)
    write_weights(project.folder)
    project.change(lambda content: shrink(content, counts))
    project.change(lambda content: add_own(content, root / OWN))
    return project


@pytest.fixture(scope="session")
def finished(tmp_path_factory: pytest.TempPathFactory, tiny: Project) -> tuple[Project, Result]:
    """The project after one call that made the main tables of all eight benchmarks and the ablation of CUB."""
    project = tiny.copy(tmp_path_factory.mktemp("finished") / "project")
    project.change(cut_to_real)
    of_cub = [f"{kind}_cub" for kind in ("ablation", "statistics", "terms")]
    tables = (*REAL, *of_cub, f"unknowns_{OWN}", f"speed_{OWN}", "audit_published")
    targets = [f"results/{table}.{suffix}" for table in tables for suffix in ("csv", "md")]
    result = project.call("--cores", "2", *targets, CURVES, *(folder_of(run) + "/metrics.json" for run in BESIDE))
    assert result.code == 0, result.output[-6000:]
    return project, result


@pytest.fixture
def done(finished: tuple[Project, Result]) -> Project:
    return finished[0]


@pytest.fixture
def another(finished: tuple[Project, Result], tmp_path: Path) -> Project:
    """A copy of the finished project in another folder, which a test may change."""
    return finished[0].copy(tmp_path / "another")
